"""Workers, ranks, resuming and closing over remote sources: what holds for a local folder holds there."""

from __future__ import annotations

import gc
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from cases import BUSY, indices, load, write
from cases import stream as stream_local
from remote import Places, stream
from test_cases_processes import by_index, check_equal, wait_for

from robostream import RetryPolicy, StreamLoader
from robostream.errors import SourceUnavailableError

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded:DeprecationWarning"
)

LENGTHS = [30, 21, 25, 18, 33, 27]
FRAMES = list(range(sum(LENGTHS)))
KINDS = ["http", "s3", "hub", "bucket"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("root"), LENGTHS, episodes_per_video_file=2, episodes_per_data_file=2)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("kind", KINDS)
def test_workers_give_the_same_after_the_parent_has_read(places: Places, root: Path, kind: str, start: str) -> None:
    wanted = by_index(stream_local(root))
    dataset = stream(places.put(kind, root))
    running = iter(dataset)
    first = [next(running), dataset[40]]
    check_equal(by_index(first), {int(s["index"]): wanted[int(s["index"])] for s in first})
    dataset.set_epoch(0)
    check_equal(by_index(load(dataset, 2, multiprocessing_context=start)), wanted)
    check_equal(by_index(dataset[i] for i in (0, 77, 153)), {i: wanted[i] for i in (0, 77, 153)})


@pytest.mark.parametrize("workers", [1, 3, 7])
@pytest.mark.parametrize("kind", ["http", "s3"])
def test_each_row_comes_once_for_any_number_of_workers(places: Places, root: Path, kind: str, workers: int) -> None:
    assert sorted(indices(load(stream(places.put(kind, root)), workers))) == FRAMES


@pytest.mark.parametrize("kind", ["http", "hub"])
def test_each_row_comes_once_over_ranks_and_epochs(places: Places, root: Path, kind: str) -> None:
    place = places.put(kind, root)
    ranks = [stream(place, rank=rank, world_size=3) for rank in range(3)]
    epochs = [[index for rank in ranks for index in indices(rank)] for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [FRAMES, FRAMES]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_goes_on_where_it_stopped(places: Places, root: Path, kind: str) -> None:
    place = places.put(kind, root)
    whole = indices(stream_local(root, buffer_size=40))
    state, found = None, []
    for _ in range(3):
        loader = StreamLoader(stream(place, buffer_size=40), batch_size=10)
        if state is not None:
            loader.load_state_dict(json.loads(state))
        batches = iter(loader)
        found += indices(next(batches) for _ in range(5))
        state = json.dumps(loader.state_dict())
        loader.close()
    assert found == whole[:150]


def test_a_state_of_the_local_dataset_goes_on_remotely(places: Places, root: Path) -> None:
    local = stream_local(root)
    samples = iter(local)
    found = indices(next(samples) for _ in range(41))
    remote = stream(places.put("http", root))
    remote.load_state_dict(local.state_dict())
    local.close()
    assert found + indices(remote) == indices(stream_local(root))


def test_a_resumed_run_reads_no_more_than_a_new_one(places: Places, root: Path) -> None:
    server = places.serve("files", folder=str(root))
    proxy = places.serve("proxy", target=server.url, rtt=0.05)

    def first_batch(state: Any) -> tuple[float, int, Any]:
        dataset = stream({"root": proxy.url}, buffer_size=20)
        loader = StreamLoader(dataset, batch_size=8)
        if state is not None:
            loader.load_state_dict(state)
        proxy.forget()
        begin = time.monotonic()
        batches = iter(loader)
        next(batches)
        took, requests = time.monotonic() - begin, proxy.totals()["requests"]
        for _ in range(3):
            next(batches)
        after = loader.state_dict()
        loader.close()
        return took, requests, after

    first_batch(None)  # fills the index
    took, requests, state = first_batch(None)
    again, requests_again, _ = first_batch(state)
    assert requests_again <= 1.5 * requests + 4
    assert again < BUSY * took


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_breaking_off_leaves_nothing_behind(places: Places, root: Path, kind: str, workers: int) -> None:
    place = places.put(kind, root)
    before = {thread.ident for thread in threading.enumerate()}

    def left() -> list[str]:
        new = [thread.name for thread in threading.enumerate() if thread.ident not in before]
        return [name for name in new if name.startswith("robostream")]

    dataset = stream(place)
    loader = load(dataset, workers) if workers else dataset
    for number, _ in enumerate(loader):
        if number == 3:
            break
    del loader
    dataset.close()
    assert wait_for(lambda: not [name for name in left() if not name.startswith("robostream-read")], 2), left()
    del dataset
    gc.collect()
    assert wait_for(lambda: not left(), 2), left()


def test_closing_does_not_wait_for_a_server_that_hangs(places: Places, root: Path) -> None:
    server = places.serve("files", folder=str(root))
    proxy = places.serve("proxy", target=server.url)
    for fault in ("stall", "503"):
        proxy.heal()
        patient = RetryPolicy(timeout_s=1.0, first_wait_s=5.0)
        dataset = stream({"root": proxy.url}, buffer_size=10, retry=patient)
        samples = iter(dataset)
        next(samples)
        proxy.fail(fault)
        time.sleep(0.3)
        begin = time.monotonic()
        dataset.close()
        assert time.monotonic() - begin < BUSY * 2


def test_a_worker_whose_source_dies_tells_the_parent(places: Places, tmp_path: Path) -> None:
    many = write(tmp_path, [20] * 40, cameras=1, episodes_per_video_file=1, width=320, height=240, crf=5, codec="h264")
    server = places.serve("files", folder=str(many))
    proxy = places.serve("proxy", target=server.url, bandwidth=10e6)  # slow, so that much is left to read
    impatient = RetryPolicy(timeout_s=1.0, deadline_s=3.0, first_wait_s=0.05)
    batches = iter(load(stream({"root": proxy.url}, buffer_size=10, retry=impatient), 2))
    next(batches)
    proxy.die()
    begin = time.monotonic()
    with pytest.raises(SourceUnavailableError, match="gave up after"):
        list(batches)
    assert time.monotonic() - begin < BUSY * 5
