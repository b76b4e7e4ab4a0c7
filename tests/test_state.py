"""Exact positions in every way of loading: saved, written as JSON, loaded elsewhere, and gone on from bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from robostream import StreamingLeRobotDataset
from robostream.errors import StateError
from robostream.state import merge_states, worker_shares
from robostream.synth import SynthSettings, write_dataset

CAMERA = "observation.images.cam0"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state") / "dataset"
    lengths = [30, 17, 44, 25, 9]
    write_dataset(
        folder, SynthSettings(episodes=lengths, cameras=1, width=64, height=64, fps=10, codec="h264", coded=True)
    )
    return folder


def open_dataset(root: Path, **settings: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(root=root, **{"return_uint8": True, "buffer_size": 40, "num_threads": 1, **settings})


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(state))
    return copy


def same(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    return len(a) == len(b) and all(
        x.keys() == y.keys()
        and all(torch.equal(v, y[k]) if isinstance(v, torch.Tensor) else v == y[k] for k, v in x.items())
        for x, y in zip(a, b, strict=True)
    )


def head(loader: Any, count: int) -> list[Any]:
    items = []
    for item in loader:
        items.append(item)
        if len(items) == count:
            break
    return items


@pytest.mark.parametrize("count", [1, 7, 8, 40, 124])
def test_a_plain_iteration(root: Path, count: int) -> None:
    whole = list(open_dataset(root))
    dataset = open_dataset(root)
    samples = iter(dataset)
    first = [next(samples) for _ in range(count)]
    state = through_json(dataset.state_dict())
    samples.close()  # type: ignore[attr-defined]
    assert sum(state["consumed"].values()) == count
    again = open_dataset(root)
    again.load_state_dict(state)
    assert same(first + list(again), whole)


def test_saved_and_resumed_many_times(root: Path) -> None:
    whole = [*list(open_dataset(root, num_streams=3)), *[]]
    pieces: list[dict[str, Any]] = []
    state = None
    while len(pieces) < 125:
        dataset = open_dataset(root, num_streams=3)
        if state is not None:
            dataset.load_state_dict(state)
        samples = iter(dataset)
        for _ in range(min(13, 125 - len(pieces))):
            pieces.append(next(samples))
        state = through_json(dataset.state_dict())
        samples.close()  # type: ignore[attr-defined]
    assert same(pieces, whole)


def test_after_a_resumed_epoch_comes_the_next_one(root: Path) -> None:
    dataset = open_dataset(root)
    first = [int(s["index"]) for s in dataset]
    second = [int(s["index"]) for s in dataset]
    state = merge_states([open_dataset(root).state_at()])
    other = open_dataset(root)
    other.load_state_dict(state)
    assert [int(s["index"]) for s in other] == first
    assert [int(s["index"]) for s in other] == second


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_torchdatas_stateful_loader(root: Path, workers: int, count: int) -> None:
    def loader() -> StatefulDataLoader[Any]:
        return StatefulDataLoader(open_dataset(root), batch_size=10, num_workers=workers)

    whole = list(loader())
    running = loader()
    batches = iter(running)
    first = [next(batches) for _ in range(count)]
    state = running.state_dict()
    del batches
    resumed = loader()
    resumed.load_state_dict(state)
    assert same(first + list(resumed), whole)


@pytest.mark.parametrize(("workers", "count"), [(2, 1), (2, 5), (3, 4), (3, 11)])
def test_a_plain_loader_with_workers_by_the_loops_count(root: Path, workers: int, count: int) -> None:
    def loader(dataset: StreamingLeRobotDataset) -> DataLoader[Any]:
        return DataLoader(dataset, batch_size=10, num_workers=workers)

    whole = list(loader(open_dataset(root)))
    dataset = open_dataset(root)
    first = head(loader(dataset), count)
    state = through_json(dataset.state_after(count, batch_size=10, num_workers=workers, epoch=0))
    resumed = open_dataset(root)
    resumed.load_state_dict(state)
    rest = loader(resumed)
    assert same(first + list(rest), whole)
    next_epoch = [int(row) for batch in rest for row in batch["index"]]
    assert sorted(next_epoch) == list(range(125))


def test_state_that_only_workers_know_is_refused(root: Path) -> None:
    dataset = open_dataset(root)
    head(DataLoader(dataset, batch_size=10, num_workers=1), 2)
    with pytest.raises(StateError, match=r"torchdata's StatefulDataLoader, or use dataset\.state_after"):
        dataset.state_dict()


def test_a_state_of_another_number_of_workers_is_refused(root: Path) -> None:
    state = open_dataset(root).state_after(3, batch_size=10, num_workers=2, epoch=0)
    dataset = open_dataset(root)
    dataset.load_state_dict(state)
    with pytest.raises(StateError, match="num_streams: saved 2, now 1"):
        next(iter(dataset))


def test_turns_of_workers() -> None:
    assert worker_shares(0, [2, 2]) == ([0, 0], 0)
    assert worker_shares(3, [2, 2]) == ([2, 1], 1)
    assert worker_shares(5, [4, 1, 1]) == ([3, 1, 1], 1)
    with pytest.raises(StateError, match="5 batches were counted, but the epoch has 4"):
        worker_shares(5, [2, 2])
