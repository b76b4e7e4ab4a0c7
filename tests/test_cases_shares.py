"""Rows shared out over workers and ranks: each exactly once, evenly, in an order that depends on the seed alone."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CAM0, STATE, WorkerStamp, check_pairing, indices, load, places, stream, write

from robostream import StreamingLeRobotDataset
from robostream.errors import MetadataError, SelectionError, SettingError
from robostream.source import LocalSource

# More workers than cores are meant.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def eight_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight Parquet files of 300 rows: two episodes in each."""
    root = tmp_path_factory.mktemp("eight")
    return write(root, [140, 160] * 8, cameras=1, episodes_per_data_file=2, episodes_per_video_file=4)


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 rows in one file: three episodes, shorter than a clip."""
    return write(tmp_path_factory.mktemp("one"), [12, 9, 11])


# DataLoader workers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "shuffle"), [(0, True), (1, True), (2, True), (3, True), (3, False), (7, True), (16, True)]
)
def test_every_row_comes_once_and_every_worker_works(eight_files: Path, workers: int, shuffle: bool) -> None:
    dataset = stream(eight_files, shuffle=shuffle, image_transforms=WorkerStamp())
    seen, by_worker = [], Counter[int]()
    for batch in load(dataset, workers, batch_size=30):
        seen += batch["index"].tolist()
        by_worker.update(batch[CAM0].tolist())
    assert sorted(seen) == list(range(2400))
    assert sorted(by_worker) == (list(range(workers)) or [-1])
    assert max(by_worker.values()) - min(by_worker.values()) <= 1


@pytest.mark.parametrize("workers", [1, 4, 5])
def test_one_file_and_fewer_episodes_than_workers(one_file: Path, workers: int) -> None:
    by_worker = Counter(int(sample[CAM0]) for sample in load(stream(one_file, image_transforms=WorkerStamp()), workers))
    assert sum(by_worker.values()) == 32
    assert set(by_worker.values()) <= {32 // workers, -(-32 // workers)}
    seen = [check_pairing(sample) for sample in load(stream(one_file), workers)]
    assert sorted(seen) == places([12, 9, 11])


def test_more_workers_than_rows(tmp_path: Path) -> None:
    root = write(tmp_path, [2, 1])
    assert sorted(check_pairing(sample) for sample in load(stream(root), 5)) == places([2, 1])


@pytest.mark.parametrize("workers", [0, 3])
def test_batches_hold_whole_samples(one_file: Path, workers: int) -> None:
    seen = []
    for batch in load(stream(one_file), workers, batch_size=5):
        assert batch[CAM0].shape[1:] == (3, 64, 64)
        assert len(batch["task"]) == len(batch["index"])
        parts = ({key: values[i] for key, values in batch.items()} for i in range(len(batch["index"])))
        seen += [check_pairing(part) for part in parts]
    assert sorted(seen) == places([12, 9, 11])


@pytest.mark.parametrize("workers", [0, 4])
def test_without_shuffling_rows_come_in_order(tmp_path: Path, workers: int) -> None:
    root = write(tmp_path, [60])
    seen = [check_pairing(sample)[1] for sample in load(stream(root, shuffle=False), workers)]
    if workers == 0:
        assert seen == list(range(60))
    # Workers take their turns, and each has its own part of the rows, in order.
    for worker in range(workers):
        assert seen[worker::workers] == list(range(15 * worker, 15 * worker + 15))


@pytest.mark.parametrize("persistent", [True, False])
def test_epochs_with_workers_differ_and_are_complete(one_file: Path, persistent: bool) -> None:
    loader = load(stream(one_file), 2, persistent_workers=persistent)
    epochs = [indices(loader) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(32))] * 3
    assert len(set(map(tuple, epochs))) == 3
    dataset = stream(one_file)
    loader = load(dataset, 2, persistent_workers=persistent)
    for number in (2, 0, 1):
        dataset.set_epoch(number)
        assert indices(loader) == epochs[number]


# Ranks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_ranks_are_disjoint_and_none_is_empty(one_file: Path, world_size: int, workers: int) -> None:
    ranks = [stream(one_file, rank=rank, world_size=world_size) for rank in range(world_size)]
    seen = [[check_pairing(sample) for sample in load(dataset, workers)] for dataset in ranks]
    assert sorted(place for part in seen for place in part) == places([12, 9, 11])
    sizes = [len(part) for part in seen]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("rows", [10, 11])
def test_even_ranks_yield_equal_numbers_of_batches(tmp_path: Path, rows: int, drop_last: bool) -> None:
    root = write(tmp_path, [20, rows])
    seen: list[list[int]] = []
    for rank in range(4):
        dataset = stream(root, episodes=[1], rank=rank, world_size=4, even=True)
        batches = [batch["index"].tolist() for batch in load(dataset, 0, batch_size=2, drop_last=drop_last)]
        assert [len(batch) for batch in batches] == [2] * (rows // 8)
        assert len(dataset) == 2 * len(batches)
        seen += batches
    flat = [index for batch in seen for index in batch]
    assert len(set(flat)) == len(flat) == rows // 4 * 4
    assert set(flat) <= set(range(20, 20 + rows))


@pytest.mark.parametrize("rows", [10, 11, 1])
def test_the_length_is_what_is_delivered(tmp_path: Path, rows: int) -> None:
    root = write(tmp_path, [5, rows])
    union: list[int] = []
    for rank in range(4):
        dataset = stream(root, episodes=[1], rank=rank, world_size=4)
        for _ in range(4):
            promised = len(dataset)
            seen = indices(dataset)
            assert len(seen) == promised
            assert promised in (rows // 4, -(-rows // 4))
        dataset.set_epoch(0)
        union += indices(dataset)
    assert sorted(union) == list(range(5, 5 + rows))


def test_what_even_leaves_over_differs_by_epoch_and_comes_in_time(tmp_path: Path) -> None:
    root = write(tmp_path, [11])
    ranks = [stream(root, rank=rank, world_size=4, even=True) for rank in range(4)]
    left = [set(range(11)) - {index for dataset in ranks for index in indices(dataset)} for _ in range(12)]
    assert all(len(epoch) == 3 for epoch in left)
    assert len(set(map(frozenset, left))) > 1
    assert set.intersection(*left) == set()


def test_too_few_rows_for_even_ranks_is_a_clear_error(tmp_path: Path) -> None:
    root = write(tmp_path, [5, 1])
    for rank in range(4):
        dataset = stream(root, episodes=[1], rank=rank, world_size=4, even=True)
        with pytest.raises(SettingError, match=r"even=True.*1 samples.*4 streams"):
            list(dataset)


def test_no_rows_is_a_clear_error(one_file: Path) -> None:
    with pytest.raises(SelectionError, match=r"episodes=\[\] selects nothing"):
        stream(one_file, episodes=[], rank=0, world_size=4)


def test_a_dataset_without_episodes_is_a_clear_error(tmp_path: Path) -> None:
    root = write(tmp_path, [3], version="v2.1")
    info = (root / "meta/info.json").read_text()
    info = info.replace('"total_episodes": 1', '"total_episodes": 0').replace('"total_frames": 3', '"total_frames": 0')
    (root / "meta/info.json").write_text(info)
    (root / "meta/episodes.jsonl").write_text("")
    with pytest.raises(MetadataError, match="no episodes"):
        stream(root)


# The order -------------------------------------------------------------------------------------------------------


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads that take a random time."""
    read, rng = LocalSource.read_ranges, random.Random()

    def slowly(self: LocalSource, path: str, starts: Any, lengths: Any) -> list[bytes]:
        time.sleep(rng.uniform(0, 0.01))
        return read(self, path, starts, lengths)

    monkeypatch.setattr(LocalSource, "read_ranges", slowly)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize(
    "settings", [{}, {"buffer_size": 100, "clip_frames": 10}, {"delta_timestamps": {CAM0: [-1, 1]}}]
)
def test_the_order_depends_on_neither_threads_nor_timing(eight_files: Path, settings: dict[str, Any]) -> None:
    episodes = [0, 3, 8, 15]
    orders = [
        indices(stream(eight_files, episodes=episodes, num_threads=threads, **settings)) for threads in (1, 1, 2, 3)
    ]
    assert orders.count(orders[0]) == 4
    assert len(set(orders[0])) == len(orders[0]) == 600
    assert orders[0] != sorted(orders[0])
    other = indices(stream(eight_files, episodes=episodes, seed=7, **settings))
    assert other != orders[0]
    assert sorted(other) == sorted(orders[0])


def test_three_epochs_are_complete_and_differ(eight_files: Path) -> None:
    dataset = stream(eight_files)
    epochs = [indices(dataset) for _ in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(2400))] * 3
    assert len(set(map(tuple, epochs))) == 3
    for number in (0, 0, 2, 1):
        dataset.set_epoch(number)
        assert indices(dataset) == epochs[number]


def test_an_iteration_given_up_is_an_epoch(one_file: Path) -> None:
    dataset = stream(one_file)
    epochs = [indices(dataset) for _ in range(2)]
    dataset.set_epoch(0)
    iterator = iter(dataset)
    assert [int(next(iterator)["index"]) for _ in range(3)] == epochs[0][:3]
    del iterator
    assert indices(dataset) == epochs[1]


def test_shuffling_spreads_over_the_buffer(eight_files: Path) -> None:
    seen = np.array(indices(stream(eight_files, buffer_size=1000)))
    episode = np.searchsorted(np.cumsum([140, 160] * 8), seen, "right").reshape(-1, 32)
    mixed = [len(np.unique(batch)) for batch in episode]  # batches of 32
    assert min(mixed) >= 3  # the first batches, which come while the window fills
    assert np.mean(mixed) >= 8  # clips of many more episodes
    assert np.median(abs(np.diff(seen))) > 100


def test_repeating_goes_on_without_a_short_batch(one_file: Path) -> None:
    batches = load(stream(one_file, repeat=True), 0, batch_size=10)
    seen: list[int] = []
    for number, batch in enumerate(batches):
        assert len(batch["index"]) == 10
        seen += batch["index"].tolist()
        if number == 31:
            break
    assert Counter(seen) == dict.fromkeys(range(32), 10)
    epochs = [seen[32 * k : 32 * k + 32] for k in range(10)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(32))] * 10
    assert epochs[:3] == [indices(order) for order in [stream(one_file)] for _ in range(3)]


def test_what_fits_in_memory_is_decoded_once(one_file: Path) -> None:
    def decoded(dataset: StreamingLeRobotDataset) -> int:
        return int(dataset.metrics()["frames_decoded"])

    dataset = stream(one_file, memory_bytes=1 << 30, delta_timestamps={CAM0: [-0.2, 0.0, 0.1], STATE: [0.0]})
    for _ in range(4):
        assert len({int(sample["index"]) for sample in dataset}) == 32
        assert decoded(dataset) == 2 * 32
    dataset.close()
    assert decoded(dataset) == 2 * 32
    forgetful = stream(one_file)
    for _ in range(4):
        assert len(indices(forgetful)) == 32
    assert decoded(forgetful) >= 4 * 2 * 32


def test_kept_pictures_are_the_right_ones(one_file: Path) -> None:
    picture = 64 * 64 * 3 * 2
    for memory_bytes in (10 * picture, 25 * picture, 100 * picture):
        dataset = stream(one_file, memory_bytes=memory_bytes, buffer_size=8, clip_frames=4)
        for _ in range(5):
            assert sorted(check_pairing(sample) for sample in dataset) == places([12, 9, 11])
        dataset.close()
