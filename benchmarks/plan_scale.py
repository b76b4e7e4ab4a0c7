"""How the plan scales: start, memory, jumps and throughput for a million episodes. Reads no data.

python benchmarks/plan_scale.py --episodes 1000000 --frames 300 --streams 64
"""

from __future__ import annotations

import argparse
import itertools
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from robostream.consumer import ConsumerOrder
from robostream.plan import Plan, PlanSettings

_JUMPS = 10
_FIRST = 64  # samples that count as the first ones: a batch


@dataclass(frozen=True)
class Measured:
    """Seconds, MiB and samples/s of one plan. before_mib: of the process, with its imports, before the plan."""

    streams: int
    start_s: float
    jump_s: list[float]
    samples_per_s: float
    clips_per_s: float
    before_mib: float
    peak_mib: float


def peak_mib() -> float:
    """Peak resident memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def lengths_of(episodes: int, mean: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """int64 [episodes]: lengths around a mean, as recordings have."""
    spread = np.random.default_rng(0).integers(-mean // 2, mean // 2 + 1, episodes)
    return np.maximum(1, mean + spread)


def first_batch(plan: Plan, consumed: Sequence[int]) -> float:
    """Seconds until a consumer of the first streams knows its first batch and the clips to decode for it."""
    began = time.perf_counter()
    order = ConsumerOrder(plan, range(len(consumed)), 0, consumed)
    found = 0
    for run in order.samples():
        found += len(run.place)
        if found >= _FIRST:
            break
    list(itertools.islice(order.clips(), _FIRST))
    return time.perf_counter() - began


def samples_per_s(plan: Plan, lanes: int, seconds: float) -> float:
    began, count = time.perf_counter(), 0
    for run in ConsumerOrder(plan, range(lanes), 0, [0] * lanes).samples():
        count += len(run.place)
        if time.perf_counter() - began > seconds:
            break
    return count / (time.perf_counter() - began)


def clips_per_s(plan: Plan, lanes: int, seconds: float) -> float:
    began, count = time.perf_counter(), 0
    for _ in ConsumerOrder(plan, range(lanes), 0, [0] * lanes).clips():
        count += 1
        if time.perf_counter() - began > seconds:
            break
    return count / (time.perf_counter() - began)


def measure(episodes: int, frames: int, streams: int, lanes: int, seconds: float) -> Measured:
    """lanes: streams of the one consumer that is measured."""
    lengths = lengths_of(episodes, frames)
    before = peak_mib()
    settings = PlanSettings(
        seed=0,
        shuffle=True,
        num_streams=streams,
        clip_frames=32,
        unit_frames=4096,
        clip_window=180_000,  # 512 MiB of coded video at 3 kB a frame
        sample_window=2048,
    )
    began = time.perf_counter()
    plan = Plan(lengths, settings)
    built = time.perf_counter() - began
    start = built + first_batch(plan, [0] * lanes)
    shortest = plan.total // streams
    positions = np.random.default_rng(1).integers(0, shortest, _JUMPS).tolist()
    jumps = [first_batch(plan, [position] * lanes) for position in positions]
    rate, clips = samples_per_s(plan, lanes, seconds), clips_per_s(plan, lanes, seconds)
    return Measured(streams, start, jumps, rate, clips, before, peak_mib())


def table_of(measured: Measured, episodes: int, total: int, lanes: int) -> Table:
    table = Table(title=f"{episodes:,} episodes, {total:,} frames, {measured.streams} streams, {lanes} of them here")
    table.add_column("measured")
    table.add_column("value", justify="right")
    table.add_column("target", justify="right")
    table.add_row("start: plan, first batch, its clips", f"{measured.start_s:.2f} s", "< 5 s")
    table.add_row(f"jump to a random position, slowest of {_JUMPS}", f"{max(measured.jump_s):.2f} s", "< 1 s")
    table.add_row("the same, median", f"{float(np.median(measured.jump_s)):.2f} s", "")
    table.add_row("peak resident memory", f"{measured.peak_mib:,.0f} MiB", "< 1,024 MiB")
    table.add_row("  of which before the plan", f"{measured.before_mib:,.0f} MiB", "")
    table.add_row("samples ordered", f"{measured.samples_per_s:,.0f} /s", "")
    table.add_row("clips ordered", f"{measured.clips_per_s:,.0f} /s", "")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--frames", type=int, default=300, help="mean length of an episode")
    parser.add_argument("--streams", type=int, default=64, help="num_streams: ranks × workers of the whole job")
    parser.add_argument("--lanes", type=int, default=1, help="streams that the measured consumer takes")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to measure each rate")
    options = parser.parse_args()
    measured = measure(options.episodes, options.frames, options.streams, options.lanes, options.seconds)
    total = int(lengths_of(options.episodes, options.frames).sum())
    Console().print(table_of(measured, options.episodes, total, options.lanes))


if __name__ == "__main__":
    main()
