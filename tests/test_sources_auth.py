"""Credentials: who may read what, where tokens go, and that they go nowhere else."""

from __future__ import annotations

import io
import json
import logging
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from cases import BUSY, indices, write
from remote import Places, stream
from servers.process import ServerProcess
from servers.s3 import S3Server

from robostream import RobostreamError, StreamLoader
from robostream.errors import AccessError, DataFileError, MetadataError, SourceError, SourceUnavailableError

ADA, BOB = "hf_token_of_ada", "hf_token_of_bob"
FRAMES = list(range(27))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("root"), [12, 15])


def refused(place: dict[str, Any], kind: type[RobostreamError], *words: str, **settings: Any) -> None:
    """Opening fails at once with an error of that kind, which holds the words and no token."""
    begin = time.monotonic()
    with pytest.raises(kind) as caught:
        stream(place, **settings)
    assert time.monotonic() - begin < BUSY * 2
    for word in words:
        assert word in str(caught.value)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert ADA not in repr(chain)
        assert BOB not in repr(chain)
        chain = chain.__cause__ or chain.__context__


# Who may read what -----------------------------------------------------------------------------------------------


def test_private_repositories_and_buckets(hub: ServerProcess, root: Path) -> None:
    hub.push("o/private", str(root), private=True, users=["ada"])
    hub.put_bucket("o/private", str(root), private=True, users=["ada"])
    for place in ({"repo_id": "o/private"}, {"repo_id": "o/private", "repo_type": "bucket"}):
        assert sorted(indices(stream(place, token=ADA))) == FRAMES
        for token in (None, False, BOB, "hf_of_nobody"):
            refused(place, AccessError, "o/private", "token", token=token)


def test_gated_repositories(hub: ServerProcess, root: Path) -> None:
    hub.push("o/gated", str(root), gated=True, users=["ada"])
    assert sorted(indices(stream({"repo_id": "o/gated"}, token=ADA))) == FRAMES
    for token in (None, BOB):
        refused({"repo_id": "o/gated"}, AccessError, "gated", "conditions", token=token)


def test_a_token_of_the_environment(hub: ServerProcess, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.push("o/private", str(root), private=True, users=["ada"])
    monkeypatch.setenv("HF_TOKEN", ADA)
    assert sorted(indices(stream({"repo_id": "o/private"}))) == FRAMES
    refused({"repo_id": "o/private"}, AccessError, token=False)


def test_a_stored_token(hub: ServerProcess, root: Path, own_caches: Path) -> None:
    hub.push("o/private", str(root), private=True, users=["ada"])
    (own_caches / "huggingface").mkdir(exist_ok=True)
    (own_caches / "huggingface" / "token").write_text(ADA)
    assert sorted(indices(stream({"repo_id": "o/private"}))) == FRAMES


def test_names_that_are_not_there(hub: ServerProcess, root: Path, tmp_path: Path) -> None:
    hub.push("o/n", str(root))
    refused({"repo_id": "o/other"}, AccessError, "o/other")
    refused({"repo_id": "o/n", "revision": "v9"}, SourceError, "v9")
    refused({"repo_id": "o/other", "repo_type": "bucket"}, AccessError, "o/other")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "README.md").write_text("nothing")
    hub.push("o/empty", str(tmp_path / "empty"))
    refused({"repo_id": "o/empty"}, MetadataError, "meta/info.json")
    hub.put_bucket("o/empty", str(tmp_path / "empty"))
    refused({"repo_id": "o/empty", "repo_type": "bucket"}, MetadataError, "meta/info.json")


def test_http_credentials(places: Places, root: Path) -> None:
    server = places.serve("files", folder=str(root), user=f"ada:{ADA}")
    host = server.url.removeprefix("http://")
    assert sorted(indices(stream({"root": f"http://ada:{ADA}@{host}"}))) == FRAMES
    refused({"root": server.url}, AccessError, "401", "credentials")
    refused({"root": f"http://ada:{BOB}@{host}"}, AccessError, "403", "credentials")
    assert len(server.record()) > 5
    bearer = places.serve("files", folder=str(root), token=ADA)
    options = {"headers": {"Authorization": f"Bearer {ADA}"}}
    assert sorted(indices(stream({"root": bearer.url}, storage_options=options))) == FRAMES
    refused({"root": bearer.url}, AccessError, "401")
    assert len([entry for entry in bearer.record() if "authorization" not in entry["headers"]]) == 1  # asked once
    refused({"root": bearer.url + "/nowhere"}, MetadataError, "nowhere/meta/info.json", storage_options=options)


def test_s3_credentials(s3_server: S3Server, root: Path) -> None:
    place = {"root": s3_server.upload(root, "datasets", "credentials")}
    options = s3_server.options
    assert sorted(indices(stream(place, storage_options=options))) == FRAMES
    refused(place, AccessError, "credentials", storage_options={**options, "secret": "wrong"})
    refused(place, AccessError, "credentials", storage_options={**options, "key": "nobody"})
    refused({"root": "s3://datasets/nowhere"}, MetadataError, "nowhere/meta/info.json", storage_options=options)


def test_access_that_is_lost_during_the_run(hub: ServerProcess, root: Path, tmp_path: Path) -> None:
    many = write(tmp_path, [20] * 10, cameras=1, episodes_per_video_file=1)
    hub.push("o/private", str(many), private=True, users=["ada"])
    dataset = stream({"repo_id": "o/private"}, token=ADA, buffer_size=10, fetch_bytes=1)  # nothing is here before
    samples = iter(dataset)
    next(samples)
    hub.push("o/private", str(many), private=True, users=["bob"])
    hub.revoke()
    begin = time.monotonic()
    with pytest.raises(SourceError, match=r"o/private.*(refused|404)"):
        list(samples)
    assert time.monotonic() - begin < BUSY * 2


# Where tokens go -------------------------------------------------------------------------------------------------


def test_signed_urls_are_renewed_and_get_no_token(hub: ServerProcess, root: Path) -> None:
    hub.push("o/private", str(root), private=True, users=["ada"])
    hub.put_bucket("o/private", str(root), private=True, users=["ada"])
    for place in ({"repo_id": "o/private"}, {"repo_id": "o/private", "repo_type": "bucket"}):
        hub.forget()
        dataset = stream(place, token=ADA, buffer_size=5)
        assert sorted(indices(dataset)) == FRAMES
        hub.revoke()  # what was signed until now is refused
        assert sorted(indices(dataset)) == FRAMES
        hub.set(lifetime=0.05)  # and from now on, every URL is soon too old
        time.sleep(0.1)
        assert sorted(indices(dataset)) == FRAMES
        hub.set(lifetime=3600.0)
        assert any(entry["status"] == 403 for entry in hub.cdn_record())
        assert any(entry["headers"].get("authorization") == f"Bearer {ADA}" for entry in hub.record())
        assert not any("authorization" in entry["headers"] for entry in hub.cdn_record())


def test_requests_per_file_of_a_signed_url(hub: ServerProcess, tmp_path: Path) -> None:
    """The Hub itself is asked once for each file, not for each range."""
    root = write(tmp_path, [20] * 10, cameras=1, episodes_per_video_file=5, episodes_per_data_file=5)
    hub.push("o/n", str(root))
    dataset = stream({"repo_id": "o/n"}, buffer_size=10)
    for _ in range(3):
        list(dataset)
    asked = [entry["target"] for entry in hub.record() if ".mp4" in entry["target"]]
    assert len(asked) <= 4
    assert len(hub.cdn_record()) > 20


def test_tokens_leave_no_trace(
    hub: ServerProcess, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hub.push("o/private", str(root), private=True, users=["ada"])
    monkeypatch.setenv("HF_TOKEN", ADA)
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "robostream")
    dataset = stream({"repo_id": "o/private"})
    loader = StreamLoader(dataset, batch_size=4)
    next(iter(loader))
    state = json.dumps(loader.state_dict()) + json.dumps(dataset.metrics())
    loader.close()
    dump = io.BytesIO()
    pickle.dump(dataset, dump)
    explicit = stream({"repo_id": "o/private"}, token=ADA)
    shown = [repr(dataset), repr(explicit), repr(explicit.__dict__), repr(vars(explicit.meta)), state, caplog.text]
    assert ADA not in "".join(shown)
    assert ADA.encode() not in dump.getvalue()
    hub.remove("o/private")
    with pytest.raises(RobostreamError) as caught:
        explicit.meta.source.read("videos/none.mp4")
    assert isinstance(caught.value, (AccessError, DataFileError))
    assert ADA not in str(caught.value)
    assert ADA not in "".join(capfd.readouterr())


# The Hub's own cache ---------------------------------------------------------------------------------------------


def test_offline_with_a_warm_cache(
    hub: ServerProcess, root: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    commit = hub.push("o/n", str(root))
    data = places.put("http", root)["root"]
    stream({"repo_id": "o/n"})
    hub.close()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for revision in (None, commit):
        dataset = stream({"repo_id": "o/n", "revision": revision, "data_files_root": data})
        assert dataset.meta.revision == commit
        assert sorted(indices(dataset)) == FRAMES
    refused({"repo_id": "o/never"}, SourceError, "HF_HUB_OFFLINE")


def test_offline_the_hub_is_asked_for_nothing(hub: ServerProcess, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    hub.push("o/n", str(root))
    hub.put_bucket("o/b", str(root))
    stream({"repo_id": "o/n"})
    hub.forget()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SourceUnavailableError, match=r"o/n.*HF_HUB_OFFLINE is set.*data_files_root"):
        list(stream({"repo_id": "o/n"}))
    refused({"repo_id": "o/b", "repo_type": "bucket"}, SourceUnavailableError, "HF_HUB_OFFLINE")
    assert hub.record() == hub.cdn_record() == []


def test_metadata_is_fetched_once(hub: ServerProcess, root: Path) -> None:
    hub.push("o/n", str(root))
    stream({"repo_id": "o/n"})
    hub.forget()
    stream({"repo_id": "o/n"})
    assert sum(entry["bytes"] for entry in hub.record() if "resolve" in entry["target"]) == 0
    stream({"repo_id": "o/n"}, force_cache_sync=True)
    assert sum(entry["bytes"] for entry in hub.record() if "resolve" in entry["target"]) > 1000


def test_bulk_data_never_goes_into_the_hubs_cache(hub: ServerProcess, root: Path, own_caches: Path) -> None:
    hub.push("o/n", str(root))
    assert sorted(indices(stream({"repo_id": "o/n"}))) == FRAMES
    kept = {path.name for path in own_caches.rglob("*") if path.is_file() or path.is_symlink()}
    assert "info.json" in kept
    assert not [name for name in kept if name.endswith(".mp4")]
    assert not list(own_caches.rglob("data/*/*.parquet"))
