"""Ranks: how they are found, what they share, how they end together, and how others go on with their state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import accelerate.state
import numpy as np
import pytest
import torch.distributed
from accelerate.state import PartialState
from cases import stream, write
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from robostream import StreamLoader, merge_states
from robostream.consumer import ConsumerOrder
from robostream.distributed import resolve_rank
from robostream.errors import SettingError, StateError
from robostream.plan import Plan, PlanSettings

# Who am I? ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    PartialState._reset_state()
    yield
    PartialState._reset_state()


def test_arguments_come_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_rank(None, None) == (0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert resolve_rank(None, None) == (3, 5)
    assert resolve_rank(1, 2) == (1, 2)


def test_accelerate_comes_before_the_environment_once_it_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert resolve_rank(None, None) == (3, 5)
    shared = {"process_index": 1, "num_processes": 4}
    monkeypatch.setattr(accelerate.state.PartialState, "_shared_state", shared)
    monkeypatch.setattr(accelerate.state.PartialState, "__init__", lambda self: self.__dict__.update(shared))
    assert resolve_rank(None, None) == (1, 4)


def test_nothing_is_initialised_on_the_users_behalf(tmp_path: Path) -> None:
    stream(write(tmp_path, [5], cameras=0))
    assert PartialState._shared_state == {}
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("given", "environment", "message"),
    [
        ((1, None), {}, "must be given together"),
        ((2, 2), {}, r"rank=2 must lie in \[0, world_size=2\)"),
        ((-1, 2), {}, "rank=-1 must lie in"),
        ((None, None), {"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one'"),
        ((None, None), {"RANK": "2", "WORLD_SIZE": "2"}, "rank=2 must lie in"),
    ],
)
def test_ranks_that_cannot_be_are_refused(
    given: tuple[int | None, int | None], environment: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=message):
        resolve_rank(*given)


# Real ranks over uneven data -----------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys
import torch
from accelerate import PartialState
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from robostream import StreamingLeRobotDataset, StreamLoader

def open_dataset(**settings):
    return StreamingLeRobotDataset(root=sys.argv[1], return_uint8=True, num_threads=1, buffer_size=30, **settings)

def train(loader, model, epochs, uneven=False):
    seen = []
    for _ in range(epochs):
        rows = []
        def steps():
            for batch in loader:
                model(batch["observation.state"].float()).square().mean().backward()
                rows.extend(batch["index"].tolist())
        if uneven:
            with Join([model]):
                steps()
        else:
            steps()
        seen.append(rows)
    return seen

def main():
    found = {}
    found["environment"] = [open_dataset().rank, open_dataset().world_size]
    if sys.argv[3] == "accelerate":
        PartialState(cpu=True)
    else:
        torch.distributed.init_process_group("gloo")
    del os.environ["RANK"], os.environ["WORLD_SIZE"]
    found["initialised"] = [open_dataset().rank, open_dataset().world_size]
    model = DistributedDataParallel(torch.nn.Linear(6, 1))
    found["even"] = train(StreamLoader(open_dataset(even=True), 4), model, 3)
    found["join"] = train(StreamLoader(open_dataset(), 4), model, 3, uneven=True)
    start, workers = ("fork", 2) if sys.argv[3] == "accelerate" else ("spawn", 1)
    processes = DataLoader(open_dataset(even=True), 4, num_workers=workers, multiprocessing_context=start)
    found["workers"] = train(processes, model, 1)
    stateful = StatefulDataLoader(open_dataset(even=True), 4, num_workers=1)
    found["stateful"] = train(stateful, model, 1)
    with open(f"{sys.argv[2]}/{found['initialised'][0]}.json", "w") as file:
        json.dump(found, file)
    torch.distributed.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("kind", ["torch.distributed", "accelerate"])
def test_three_ranks_end_their_epochs_together(tmp_path: Path, kind: str) -> None:
    total = 50  # not a multiple of ranks, workers or batches
    root = write(tmp_path / "dataset", [13, 20, 17], cameras=1)
    (tmp_path / "script.py").write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=3"]
    words = [*launcher, str(tmp_path / "script.py"), str(root), str(tmp_path), kind]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    for rank in range(3):
        assert found[rank]["environment"] == found[rank]["initialised"] == [rank, 3]
    worked = ("workers", 6 if kind == "accelerate" else 3)
    for name, count in (("even", 3), worked, ("stateful", 3)):
        for epoch in range(len(found[0][name])):
            parts = [found[rank][name][epoch] for rank in range(3)]
            assert [len(part) for part in parts] == [count // 3 * (total // count)] * 3, name
            assert len({row for part in parts for row in part}) == total // count * count, name
    for epoch in range(3):
        parts = [found[rank]["join"][epoch] for rank in range(3)]
        assert sorted(len(part) for part in parts) == [16, 17, 17]
        assert sorted(row for part in parts for row in part) == list(range(total))


# States of whole jobs ------------------------------------------------------------------------------------------------


STREAMS = 12


@st.composite
def elastic_plans(draw: st.DrawFn) -> Plan:
    clip = draw(st.integers(1, 12))
    settings = PlanSettings(
        seed=draw(st.integers(0, 99)),
        shuffle=draw(st.booleans()),
        num_streams=STREAMS,
        clip_frames=clip,
        unit_frames=clip * draw(st.integers(1, 4)),
        clip_window=draw(st.integers(0, 300)),
        sample_window=draw(st.integers(0, 60)),
        even=draw(st.booleans()),
    )
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=12).filter(lambda found: sum(found) >= STREAMS))
    return Plan(np.array(lengths, np.int64), settings)


def consumers(plan: Plan, count: int, epoch: int, consumed: dict[int, int]) -> list[ConsumerOrder]:
    shares = [range(index, STREAMS, count) for index in range(count)]
    return [ConsumerOrder(plan, share, epoch, [consumed[stream] for stream in share]) for share in shares]


def take(order: ConsumerOrder, count: int) -> list[tuple[int, int]]:
    """(stream, place) of the next samples of the epoch."""
    taken: list[tuple[int, int]] = []
    for run in order.samples():
        if run.epoch != order.epoch or len(taken) >= count:
            break
        streams = [order.streams[lane] for lane in run.lane.tolist()]
        taken += zip(streams, run.place.tolist(), strict=True)
    return taken[:count]


@given(elastic_plans(), st.integers(0, 3), st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), max_size=4), st.data())
@hypothesis_settings(max_examples=60, deadline=None)
def test_resumed_on_any_numbers_of_consumers_every_sample_comes_once(
    plan: Plan, epoch: int, counts: list[int], data: st.DataObject
) -> None:
    order = plan.epoch(epoch)
    lengths = {stream: order.stream_length(stream) for stream in range(STREAMS)}
    consumed = dict.fromkeys(range(STREAMS), 0)
    seen: list[tuple[int, int]] = []
    for count in counts:
        left = [sum(lengths[s] - consumed[s] for s in range(index, STREAMS, count)) for index in range(count)]
        number = data.draw(st.integers(0, min(left)), label=f"samples of each of {count} consumers")
        for consumer in consumers(plan, count, epoch, consumed):
            seen += take(consumer, number)
        consumed = {number: sum(1 for stream, _ in seen if stream == number) for number in range(STREAMS)}
    for consumer in consumers(plan, data.draw(st.sampled_from([1, 2, 3, 4, 6, 12])), epoch, consumed):
        seen += take(consumer, plan.total)
    assert len(set(seen)) == len(seen)
    assert set(seen) == {(stream, place) for stream, length in lengths.items() for place in range(length)}


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_every_step_has_the_same_samples_on_any_number_of_ranks(tmp_path: Path, world: int) -> None:
    """Also when it is resumed on another number, and whatever becomes of the global random numbers."""
    root = write(tmp_path, [21, 30, 13, 40, 24], cameras=0)
    one = StreamLoader(stream(root, num_streams=8, rank=0, world_size=1, repeat=True), 16)
    wanted = [sorted(batch["index"].tolist()) for batch, _ in zip(one, range(20), strict=False)]
    one.close()

    def run(ranks: int, steps: int, state: dict[str, Any] | None) -> tuple[list[list[int]], dict[str, Any]]:
        parts, states = [], []
        for rank in range(ranks):
            dataset = stream(root, num_streams=8, rank=rank, world_size=ranks, repeat=True)
            with StreamLoader(dataset, 16 // ranks) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                batches = iter(loader)
                parts.append([])
                for _ in range(steps):
                    if rank == 1:
                        np.random.seed(steps)  # noqa: NPY002
                        torch.manual_seed(steps)
                    parts[-1].append(next(batches)["index"].tolist())
                states.append(json.loads(json.dumps(loader.state_dict())))
                batches.close()  # type: ignore[attr-defined]
        merged = merge_states(states)
        return [sorted(row for part in step for row in part) for step in zip(*parts, strict=True)], merged

    first, state = run(world, 5, None)  # an epoch has 8 steps
    again, state = run(8 // world, 6, state)
    last, _ = run(world, 9, state)
    assert first + again + last == wanted


def test_states_that_do_not_belong_together_are_refused() -> None:
    state = {"epoch": 1, "consumed": {"0": 3}, "fingerprint": {"seed": 1}, "turn": 0}
    with pytest.raises(StateError, match="no states"):
        merge_states([])
    for key, value in (("epoch", 2), ("fingerprint", {"seed": 2}), ("turn", 1)):
        with pytest.raises(StateError, match=f"not of one step of one job: {key} is"):
            merge_states([state, {**state, key: value}])
    merged = merge_states([state, {**state, "consumed": {"1": 4}}])
    assert merged == {**state, "consumed": {"0": 3, "1": 4}}
