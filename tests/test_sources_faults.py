"""Sources that fail: every kind of failure passes without a trace in the samples, or ends in one clear error."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cases import BUSY, CAM0, Reference, check_all, indices, video_path, write
from cases import stream as stream_local
from remote import Places, Serve, stream, through
from servers.faults import EARLY, EVERY_KIND, UPSTREAM
from servers.process import ServerProcess
from servers.s3 import S3Server

from robostream import RetryPolicy, StreamingLeRobotDataset
from robostream.errors import RobostreamError, SourceChangedError, SourceUnavailableError

LENGTHS = [12, 15, 9, 14, 10, 13]
QUICK = RetryPolicy(timeout_s=0.4, deadline_s=20, opening_deadline_s=20, first_wait_s=0.01, longest_wait_s=0.05)
DYING = RetryPolicy(timeout_s=0.4, deadline_s=1.5, opening_deadline_s=1.5, first_wait_s=0.05, longest_wait_s=0.2)
SECRET = "s3cr3t"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each episode in files of its own, so that an epoch takes some requests."""
    return write(
        tmp_path_factory.mktemp("many"), LENGTHS, episodes_per_video_file=1, episodes_per_data_file=1, texture="heavy"
    )


@pytest.fixture(scope="module")
def reference(root: Path) -> Reference:
    return Reference(root)


@pytest.fixture(scope="module")
def order(root: Path) -> list[int]:
    return indices(stream_local(root))


def proxied(places: Places, serve: Serve, kind: str, root: Path) -> tuple[ServerProcess, dict[str, Any]]:
    """A proxy, and the dataset behind it. For the Hub it stands before the host of the signed URLs."""
    place = places.put(kind, root)
    if kind in ("hub", "bucket"):
        hub: ServerProcess = places.request.getfixturevalue("hub")
        proxy = serve("proxy", target=hub.cdn_url, name="localhost")
        hub.set(cdn_url=proxy.url)
        return proxy, place
    url = place["storage_options"]["endpoint_url"] if kind == "s3" else place["root"]
    proxy = serve("proxy", target=url)
    return proxy, through(proxy, place)


# Failures that pass ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", EVERY_KIND)
def test_each_kind_of_failure_passes(
    places: Places, serve: Serve, root: Path, reference: Reference, order: list[int], fault: str
) -> None:
    proxy, place = proxied(places, serve, "http", root)
    # Failures of the body are for requests that have one, and of the range for those that ask for one.
    late = {} if fault in EARLY else {"method": "GET", "match": r"\.mp4|/data/"}
    proxy.fail(fault, every=5, retry_after="0.1" if fault == "429" else None, **late)
    dataset = stream(place, retry=QUICK)
    assert check_all(dataset, reference) == order
    dataset.close()
    faults = proxy.totals()["faults"][fault]
    assert faults >= 5
    assert dataset.metrics()["retries"] >= faults // 2  # some were for the next epoch, and still under way


@pytest.mark.parametrize("kind", ["s3", "hub", "bucket"])
def test_all_kinds_of_failure_pass_in_turn(
    places: Places, serve: Serve, root: Path, reference: Reference, order: list[int], kind: str
) -> None:
    proxy, place = proxied(places, serve, kind, root)
    kinds = [fault for fault in EVERY_KIND if kind != "s3" or fault not in UPSTREAM]
    proxy.fail(*kinds, every=3)
    dataset = stream(place, retry=QUICK)
    assert check_all(dataset, reference) == order
    assert sorted(check_all(dataset, reference)) == sorted(order)
    assert len(proxy.totals()["faults"]) >= len(kinds) // 2
    dataset.close()


def test_one_request_in_twenty_fails(
    places: Places, serve: Serve, root: Path, reference: Reference, order: list[int]
) -> None:
    proxy, place = proxied(places, serve, "http", root)
    proxy.fail(*EVERY_KIND, probability=0.05, seed=3)
    dataset = stream(place, retry=QUICK, buffer_size=30)
    local = stream_local(root, buffer_size=30)
    for _ in range(4):
        assert check_all(dataset, reference) == indices(local)
    totals = proxy.totals()
    assert totals["requests"] > 100
    assert sum(totals["faults"].values()) >= 3
    dataset.close()


@pytest.mark.parametrize("fault", ["429", "500", "503", "reset", "half"])
def test_the_hub_itself_fails_now_and_then(
    places: Places, serve: Serve, hub: ServerProcess, monkeypatch: pytest.MonkeyPatch, own_caches: Path, root: Path,
    order: list[int], fault: str,
) -> None:  # fmt: skip
    from servers.fixtures import use_hub

    place = places.put("hub", root)
    proxy = serve("proxy", target=hub.url)
    use_hub(monkeypatch, proxy.url, own_caches / "huggingface")
    proxy.fail(fault, every=4, retry_after="0.1" if fault == "429" else None)
    dataset = stream(place, retry=QUICK)
    assert indices(dataset) == order
    assert proxy.totals()["faults"][fault] >= 3
    dataset.close()


def test_a_busy_server_is_given_the_time_it_asks_for(places: Places, serve: Serve, root: Path) -> None:
    proxy, place = proxied(places, serve, "http", root)
    dataset = stream(place, retry=QUICK)
    proxy.fail("429", times=1, retry_after="1.5", match="cam1/chunk-000/file-003")
    list(dataset)
    asked = [entry for entry in proxy.record() if "cam1/chunk-000/file-003" in entry["target"]]
    failed = next(i for i, entry in enumerate(asked) if entry["fault"])
    again = next(e for e in asked[failed + 1 :] if e["headers"].get("range") == asked[failed]["headers"].get("range"))
    assert again["time"] - asked[failed]["time"] >= 1.5
    dataset.close()


# Sources that are gone -------------------------------------------------------------------------------------------


def refuse(proxy: ServerProcess) -> None:
    proxy.die()


def stall(proxy: ServerProcess) -> None:
    proxy.fail("stall")


def fail(proxy: ServerProcess) -> None:
    proxy.fail("503")


def whole(proxy: ServerProcess) -> None:
    proxy.fail("ignore_range")


@pytest.mark.parametrize("kind", ["http", "s3", "hub", "bucket"])
@pytest.mark.parametrize("how", [refuse, stall, fail])
def test_a_source_that_is_gone_ends_the_run(
    places: Places, serve: Serve, tmp_path: Path, kind: str, how: Callable[[ServerProcess], None]
) -> None:
    root = write(tmp_path, [20] * 12, episodes_per_video_file=1, cameras=1)
    proxy, place = proxied(places, serve, kind, root)
    dataset = stream(place, retry=DYING, buffer_size=20, on_error="skip", fetch_bytes=1)  # nothing is here before
    samples = iter(dataset)
    for _ in range(5):
        next(samples)
    how(proxy)
    begin = time.monotonic()
    with pytest.raises(SourceUnavailableError, match=r"file-\d+\.(mp4|parquet): gave up after \d+ attempt") as caught:
        for _ in samples:
            pass
    assert time.monotonic() - begin < BUSY * 4
    assert "deadline" in str(caught.value)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("robostream-fetch")]


@pytest.mark.parametrize("how", [refuse, stall, fail])
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_a_source_that_was_never_there(
    places: Places, serve: Serve, root: Path, kind: str, how: Callable[[ServerProcess], None]
) -> None:
    proxy, place = proxied(places, serve, kind, root)
    how(proxy)
    begin = time.monotonic()
    with pytest.raises(SourceUnavailableError, match=r"info\.json: gave up after"):
        stream(place, retry=DYING)
    assert time.monotonic() - begin < BUSY * 4


def test_a_server_that_knows_no_ranges_is_told_at_once(places: Places, serve: Serve, root: Path) -> None:
    proxy, place = proxied(places, serve, "http", root)
    proxy.fail("ignore_range")
    begin = time.monotonic()
    with pytest.raises(RobostreamError, match="range"):
        list(stream(place, retry=RetryPolicy(first_wait_s=0.05)))
    assert time.monotonic() - begin < BUSY * 4


def test_the_final_error_tells_no_secret(
    serve: Serve, root: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    server = serve("files", folder=str(root), user=f"ada:{SECRET}")
    proxy = serve("proxy", target=server.url)
    url = proxy.url.replace("http://", f"http://ada:{SECRET}@") + f"?sig={SECRET}"
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "robostream")
    dataset = stream({"root": url}, retry=DYING, buffer_size=5, fetch_bytes=1)
    iterator = iter(dataset)
    next(iterator)
    proxy.die()
    with pytest.raises(SourceUnavailableError) as caught:
        list(iterator)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert SECRET not in str(chain)
        assert SECRET not in repr(chain)
        chain = chain.__cause__ or chain.__context__
    assert f"http://127.0.0.1:{proxy.port}/" in str(caught.value)
    assert SECRET not in caplog.text
    assert SECRET not in repr(dataset.__dict__)
    assert SECRET not in "".join(capfd.readouterr())


# Sources that change ---------------------------------------------------------------------------------------------


def run_past_a_change(dataset: StreamingLeRobotDataset, change: Callable[[], None]) -> None:
    """Iterates until the change is noticed."""
    samples = iter(dataset)
    next(samples)
    change()

    def go_on() -> None:
        list(samples)
        for _ in range(3):
            list(dataset)

    with pytest.raises(SourceChangedError, match=r"\.mp4"):
        go_on()


@pytest.mark.parametrize("kind", ["http", "s3", "bucket"])
@pytest.mark.parametrize("same_size", [False, True])
def test_an_overwritten_file_is_noticed(places: Places, tmp_path: Path, kind: str, same_size: bool) -> None:
    root = write(tmp_path / "a", [20] * 6, cameras=1, episodes_per_video_file=6)
    place = places.put(kind, root)
    video = video_path(root, CAM0)

    def change() -> None:
        data = video.read_bytes()
        changed = data[:-200] + bytes(byte ^ 255 for byte in data[-200:]) + (b"" if same_size else b"\0" * 8)
        video.write_bytes(changed)
        now = time.time_ns()
        os.utime(video, ns=(now, now))
        if kind == "s3":
            store: S3Server = places.request.getfixturevalue("s3_server")
            store.upload(root, "datasets", place["root"].removeprefix("s3://datasets/"))
        if kind == "bucket":
            hub: ServerProcess = places.request.getfixturevalue("hub")
            hub.put_bucket("o/b", str(root))
            hub.revoke()  # else the URL that was signed before goes on to give what it was signed for

    run_past_a_change(stream(place, buffer_size=10, fetch_bytes=1), change)


def test_a_push_during_the_run_is_not_seen(places: Places, tmp_path: Path, hub: ServerProcess) -> None:
    root = write(tmp_path / "a", [20] * 6, cameras=1, episodes_per_video_file=6)
    wanted = Reference(root)
    dataset = stream(places.put("hub", root), buffer_size=10)
    commit = dataset.meta.revision
    samples = iter(dataset)
    seen = check_all([next(samples)], wanted)
    other = write(tmp_path / "b", [30] * 4, cameras=1, seed=9)
    newest = hub.push("o/n", str(other))
    hub.revoke()
    seen += check_all(samples, wanted)
    assert sorted(seen) == list(range(120))
    assert sorted(check_all(dataset, wanted)) == list(range(120))
    assert dataset.meta.revision == commit != newest
    fresh = stream({"repo_id": "o/n"})
    assert fresh.meta.revision == newest
    assert sorted(check_all(fresh, Reference(other))) == list(range(120))
