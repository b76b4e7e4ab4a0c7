"""The benchmark's arithmetic, on clocks and batches whose figures are known beforehand."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from robostream import StreamingLeRobotDataset
from robostream.bench.measure import cache_counters
from robostream.bench.modes import Mode, delta_timestamps
from robostream.bench.options import Impl, LoaderKind, Options
from robostream.bench.stages import bottleneck, seconds_by_stage, use_by_stage
from robostream.bench.window import Window, drain
from robostream.errors import BenchmarkError, SettingError
from robostream.metrics import NAMES, Board, Metrics
from robostream.synth import SynthSettings, write_dataset

CAMERA = "observation.images.cam0"


def clock_of(*seconds: float) -> Callable[[], float]:
    """A clock that says these, one after the other."""
    readings = iter(seconds)
    return lambda: next(readings)


def batch(episodes: list[int] = [0], **more: Any) -> dict[str, Any]:  # noqa: B006
    return {"episode_index": torch.tensor(episodes), **more}


def run(batches: Iterator[dict[str, Any]], **settings: Any) -> Window:
    return drain(batches, **{"batch_size": 10, "before": 0, "count": 100, "cameras": frozenset({CAMERA}), **settings})


def test_throughput_is_wall_clock_from_the_end_of_the_warm_up() -> None:
    # Asked at 100, first at 103; the warm-up ends at 150; batches at 151, 153 and 160.
    clock = clock_of(100, 103, 150, 151, 153, 160)
    window = run(iter([batch()] * 6), before=2, count=3, clock=clock)
    assert window.first_batch_s == 3
    assert window.before == 3
    assert (window.batches, window.samples) == (3, 30)
    assert window.seconds == 10
    assert window.samples_per_s == 3  # 30 samples in 10 s, with all waiting in between


def test_time_that_the_consumer_takes_counts() -> None:
    clock = clock_of(0, 1, 1, 2, 12)
    window = run(iter([batch()] * 3), count=2, clock=clock)
    assert window.samples_per_s == 20 / 11


def test_latency_is_from_batch_to_batch_for_a_sample() -> None:
    window = Window(batch_size=10, times=[0.0, *np.cumsum(np.arange(1, 102)).tolist()])  # 1, 2, … 101 s
    latency = window.latency_ms()
    assert latency["0"] == pytest.approx(100)
    assert latency["50"] == pytest.approx(51 * 100)
    assert latency["95"] == pytest.approx(96 * 100)
    assert latency["99"] == pytest.approx(100 * 100)
    assert latency["100"] == pytest.approx(101 * 100)
    two = Window(batch_size=1, times=[0.0, 1.0, 4.0])
    assert two.latency_ms([50, 95]) == {"50": pytest.approx(2000), "95": pytest.approx(2900)}  # linear in between


def test_counting_stops_at_the_number_of_batches_or_at_the_time() -> None:
    endless = iter(lambda: batch(), None)
    assert run(endless, count=4).batches == 4
    # The window begins at 1; its third batch is there after 5 s.
    window = run(endless, max_seconds=5, clock=clock_of(0, 1, 1, 2, 5, 6, 7))
    assert window.times == [1, 2, 5, 6]


def test_the_window_begins_after_the_warm_up_and_before_what_is_measured() -> None:
    taken: list[str] = []

    def batches() -> Iterator[dict[str, Any]]:
        for k in range(5):
            taken.append(f"batch {k}")
            yield batch()

    run(batches(), before=2, count=1, on_begin=lambda: taken.append("begin"))
    assert taken == ["batch 0", "batch 1", "batch 2", "begin", "batch 3"]


@pytest.mark.parametrize(
    ("available", "message"),
    [(0, "no batch at all"), (2, "ended after 2 batches, in the warm-up"), (4, "ended after the warm-up of 4 batches")],
)
def test_nothing_measured_is_an_error(available: int, message: str) -> None:
    with pytest.raises(BenchmarkError, match=message):
        run(iter([batch()] * available), before=3)


def test_batches_are_looked_at_for_mixing_and_padding() -> None:
    pads = {f"{CAMERA}_is_pad": torch.tensor([[True, False], [True, True]]), "action_is_pad": torch.zeros(2, 4).bool()}
    window = run(iter([batch(), batch([1, 2, 2, 5], **pads), batch([3, 3])]))
    assert window.episodes == Counter({3: 1, 1: 1})
    assert window.episodes_per_batch == 2
    assert window.padded_share(of_cameras=True) == 0.75
    assert window.padded_share(of_cameras=False) == 0
    assert Window(1).padded_share(of_cameras=True) == 0


def test_stages_are_shares_of_their_threads_time() -> None:
    counters = {"fetch_s": 4.0, "decode_s": 30.0, "assemble_s": 5.0, "wait_s": 13.0}
    stages = seconds_by_stage(counters, wall=10, consumers=2)
    assert stages == {"fetch": 4.0, "decode": 30.0, "assemble": 5.0, "wait": 13.0, "hand_over": 2.0}
    use = use_by_stage(stages, wall=10, readers=2, threads=2, consumers=2)
    assert use == {"fetch": 0.1, "decode": 0.75, "assemble": 0.25, "hand_over": 0.1}
    assert bottleneck(use) == "decode"
    idle = seconds_by_stage({}, wall=10, consumers=1)
    assert bottleneck(use_by_stage(idle, 10, 2, 2, 1)) == "hand_over"  # then the consumer is what is slow
    assert bottleneck({}) == ""


def test_counters_of_workers_are_summed(tmp_path: Path) -> None:
    board = Board()
    for row, (hits, misses) in enumerate([(6, 2), (1, 7), (0, 0)]):
        worker = Metrics(board._sums[row])
        worker.add("pool_hits", hits)
        worker.add("pool_misses", misses)
        worker.add("decode_s", 0.5)
    counters = board.snapshot()
    assert counters == {"pool_hits": 7, "pool_misses": 9, "decode_s": 1.5}
    cache = cache_counters(counters, size=40)
    assert (cache.hits, cache.misses, cache.evictions, cache.hit_rate, cache.size) == (7, 9, 0, 7 / 16, 40)
    assert cache_counters({}, 0).hit_rate == 0
    with pytest.raises(KeyError):
        Metrics().add("no such counter")
    assert len(set(NAMES)) == len(NAMES)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "dataset"
    write_dataset(
        folder, SynthSettings(episodes=[40, 30, 20, 30], cameras=2, width=64, height=64, fps=10, codec="h264", gop=4)
    )
    return folder


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_counters_come_from_worker_processes(root: Path, start: str) -> None:
    if start not in torch.multiprocessing.get_all_start_methods():
        pytest.skip(f"this system has no {start}")
    dataset = StreamingLeRobotDataset(root=root, delta_timestamps={CAMERA: [-0.1, 0.0]}, buffer_size=40)
    assert "samples" not in dataset.metrics()
    loader = DataLoader(dataset, 10, num_workers=2, multiprocessing_context=start)
    assert sum(len(batch["index"]) for batch in loader) == 120
    counters = dataset.metrics()
    assert counters["samples"] == 120
    # Each picture of the second camera is shown once, of the first one twice: by its own row and by the next.
    # Workers go on to the next epoch before they end, so there may be more.
    assert counters["pool_hits"] + counters["pool_misses"] >= 120 + 2 * 120
    assert counters["pool_misses"] >= counters["frames_decoded"] >= 2 * 120
    assert counters["pool_hits"] >= 100
    assert counters["bytes_read"] >= counters["bytes_needed"] > 0
    for _ in loader:  # workers of the next epoch go on counting
        pass
    assert dataset.metrics()["samples"] == 240


def test_evictions_count_kept_pictures_that_had_to_go(root: Path) -> None:
    room = 60 * 2 * 64 * 64 * 3  # of 120 pictures of each camera
    for memory, evicted in ((room, True), (room * 4, False), (None, False)):
        dataset = StreamingLeRobotDataset(root=root, memory_bytes=memory, buffer_size=20, clip_frames=8, num_threads=1)
        for _ in range(3):
            for _ in dataset:
                pass
        counters = dataset.metrics()
        dataset.close()
        assert (counters.get("pool_evictions", 0) > 0) == evicted
        assert counters.get("pool_hits", 0) == counters.get("frames_reused", 0)  # without windows


def test_modes_ask_for_their_windows(root: Path) -> None:
    meta = StreamingLeRobotDataset(root=root).meta
    assert delta_timestamps(Mode.single, meta) is None
    assert delta_timestamps(Mode.sarm, meta) == {"action": [0, 1, 2, 3, 4, 5, 6, 7]}
    past = [-7, -6, -5, -4, -3, -2, -1, 0]
    windows = delta_timestamps(Mode.sarm_images, meta)
    assert windows == {"action": [0, 1, 2, 3, 4, 5, 6, 7], CAMERA: past, "observation.images.cam1": past}


def test_windows_are_on_frames_where_a_second_is_not(tmp_path: Path) -> None:
    ntsc = SynthSettings(episodes=[10], cameras=1, width=64, height=64, fps=Fraction(30000, 1001), codec="h264")
    write_dataset(tmp_path / "ntsc", ntsc)
    dataset = StreamingLeRobotDataset(
        root=tmp_path / "ntsc", delta_timestamps=lambda meta: delta_timestamps(Mode.sarm, meta)
    )
    assert dataset.blueprint.windows["action"].offsets.tolist() == [0, 30, 60, 90, 120, 150, 180, 210]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_batches": 0}, "nothing would be measured"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"num_workers": -1}, "num_workers=-1 must not be negative"),
        ({"device": "gpu"}, "is none that PyTorch knows"),
        pytest.param(
            {"device": "cuda"},
            "PyTorch finds no GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_options_that_cannot_work_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Options(**setting)


def test_threads_are_shared_out_among_workers() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert Options(num_workers=8).worker_processes == 0
    assert Options(num_workers=8).decode_threads == cores
    assert Options(num_workers=8, loader=LoaderKind.torch).worker_processes == 8
    assert Options(num_workers=10**6, loader=LoaderKind.torch).decode_threads == 1
    assert Options(num_workers=3, impl=Impl.lerobot).consumers == 3
    assert Options(num_workers=0, loader=LoaderKind.torch, threads=5).decode_threads == 5
