"""`robostream bench`: how fast a dataset loads, and how fast it could."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from robostream.bench.measure import Result, measure
from robostream.bench.modes import Mode, delta_timestamps
from robostream.cli.common import console, facts, size_text
from robostream.dataset import StreamingLeRobotDataset


def bench(
    root: Annotated[Path, typer.Option(help="Folder of the dataset.")],
    mode: Annotated[Mode, typer.Option(help="What is asked for.")] = Mode.single,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Samples in a batch.")] = 64,
    buffer_size: Annotated[int, typer.Option("--buffer_size", help="Shuffle window in frames.")] = 2000,
    num_batches: Annotated[int, typer.Option("--num_batches", help="Batches to measure.")] = 200,
    warmup_batches: Annotated[
        int, typer.Option("--warmup_batches", help="Batches before that, after the window has filled.")
    ] = 5,
    threads: Annotated[int, typer.Option(help="Decoding threads; 0: one for each core.")] = 0,
    memory_bytes: Annotated[int, typer.Option("--memory_bytes", help="Keep decoded pictures within this.")] = 0,
    ceiling_seconds: Annotated[float, typer.Option("--ceiling_seconds", help="Time for bare decoding.")] = 5.0,
    out: Annotated[Path | None, typer.Option(help="Write the figures there, as JSON.")] = None,
) -> None:
    """Measure loading (no model) against bare decoding, in one run with the same threads."""
    threads = threads or os.cpu_count() or 1
    meta = StreamingLeRobotDataset(root=root).meta
    dataset = StreamingLeRobotDataset(
        root=root,
        delta_timestamps=delta_timestamps(mode, meta),
        return_uint8=True,
        buffer_size=buffer_size,
        memory_bytes=memory_bytes or None,
        num_threads=threads,
        repeat=True,
    )
    result = measure(
        dataset,
        batch_size=batch_size,
        num_batches=num_batches,
        warmup_batches=warmup_batches,
        threads=threads,
        ceiling_seconds=ceiling_seconds,
    )
    _show(result, mode, threads)
    if out is not None:
        out.write_text(json.dumps(result.to_json(), indent=2) + "\n")


def _show(result: Result, mode: Mode, threads: int) -> None:
    shown = {
        "mode": f"{mode.value}, {threads} threads",
        "samples/s": f"{result.samples_per_s:,.0f}",
        "camera frames/s": f"{result.camera_frames_per_s:,.0f} decoded",
        "decode ceiling": f"{result.ceiling_frames_per_s:,.0f} camera frames/s",
        "of the ceiling": f"{result.percent_of_ceiling:.1f} %",
        "for CPU time": f"{result.camera_frames_per_cpu_s:,.0f} camera frames a CPU second, bare "
        f"{result.ceiling_frames_per_cpu_s:,.0f}",
        "first batch": f"{result.first_batch_s:.2f} s",
        "batch p50/p95/p99": f"{result.p50_ms:.1f} / {result.p95_ms:.1f} / {result.p99_ms:.1f} ms",
        "episodes in a batch": f"{result.episodes_per_batch:.1f}",
        "padded window steps": f"{100 * result.padded:.1f} %",
        "peak memory": f"{size_text(result.peak_rss_bytes)}, bound {size_text(result.memory_bound_bytes)}",
    }
    rows = facts()
    for name, value in shown.items():
        rows.add_row(name, value)
    console().print(rows)
