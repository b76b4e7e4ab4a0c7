"""`robostream bench`: how fast a dataset loads, and how fast it could."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robostream.bench.measure import measure
from robostream.bench.modes import Mode
from robostream.bench.options import DecodeDevice, Impl, LoaderKind, Options
from robostream.bench.result import BenchmarkResult
from robostream.bench.stages import ADVICE
from robostream.cli.common import Backend, console, facts, size_text

_GIVEN = "The dataset"
_LOAD = "What is loaded"
_HOW = "How it is loaded"
_RUN = "The run"


def bench(
    repo_id: Annotated[
        str | None, typer.Option("--repo_id", help="Name of the dataset; with --root a label.", rich_help_panel=_GIVEN)
    ] = None,
    root: Annotated[
        str | None, typer.Option("--root", help="Folder or URL of the dataset.", rich_help_panel=_GIVEN)
    ] = None,
    data_files_root: Annotated[
        str | None, typer.Option("--data_files_root", help="URL that holds the data.", rich_help_panel=_GIVEN)
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            "--source", metavar="LABEL", help="Label of where the data is; only a name.", rich_help_panel=_GIVEN
        ),
    ] = "local",
    mode: Annotated[Mode, typer.Option("--mode", help="What a sample is.", rich_help_panel=_LOAD)] = Mode.single,
    batch_size: Annotated[int, typer.Option("--batch_size", help="Samples in a batch.", rich_help_panel=_LOAD)] = 64,
    buffer_size: Annotated[
        int, typer.Option("--buffer_size", help="Shuffle window in frames.", rich_help_panel=_LOAD)
    ] = 2000,
    return_uint8: Annotated[
        bool,
        typer.Option(
            "--return_uint8/--no_return_uint8", help="Pictures as uint8, or as float32.", rich_help_panel=_LOAD
        ),
    ] = True,
    impl: Annotated[
        Impl, typer.Option("--impl", help="What is measured; lerobot's classes need lerobot.", rich_help_panel=_HOW)
    ] = Impl.robostream,
    loader: Annotated[
        LoaderKind,
        typer.Option("--loader", help="Threads, or a DataLoader with --num_workers.", rich_help_panel=_HOW),
    ] = LoaderKind.stream,
    num_workers: Annotated[
        int,
        typer.Option(
            "--num_workers",
            help="Worker processes of a DataLoader; not used by the stream loader.",
            rich_help_panel=_HOW,
        ),
    ] = 8,
    threads: Annotated[
        int,
        typer.Option("--threads", help="Decoding threads of each process; 0: share the cores.", rich_help_panel=_HOW),
    ] = 0,
    memory_bytes: Annotated[
        int, typer.Option("--memory_bytes", help="Keep decoded pictures within this.", rich_help_panel=_HOW)
    ] = 0,
    video_decoder_cache_size: Annotated[
        int | None,
        typer.Option(
            "--video_decoder_cache_size", help="Taken for lerobot's sake: nothing is sought.", rich_help_panel=_HOW
        ),
    ] = None,
    video_decode_device: Annotated[
        DecodeDevice, typer.Option("--video_decode_device", help="Where videos are decoded.", rich_help_panel=_HOW)
    ] = DecodeDevice.cpu,
    video_backend: Annotated[
        Backend, typer.Option("--video_backend", help="What decodes.", rich_help_panel=_HOW)
    ] = Backend.pyav,
    device: Annotated[str, typer.Option("--device", help="Where batches go.", rich_help_panel=_RUN)] = "cpu",
    num_batches: Annotated[int, typer.Option("--num_batches", help="Batches to measure.", rich_help_panel=_RUN)] = 200,
    warmup_batches: Annotated[
        int,
        typer.Option(
            "--warmup_batches", help="Batches before that, besides those that fill the window.", rich_help_panel=_RUN
        ),
    ] = 5,
    max_seconds: Annotated[
        float, typer.Option("--max_seconds", help="Measure no longer than this; 0: no limit.", rich_help_panel=_RUN)
    ] = 0.0,
    ceiling_seconds: Annotated[
        float, typer.Option("--ceiling_seconds", help="Time for bare decoding; 0: leave it out.", rich_help_panel=_RUN)
    ] = 5.0,
    check_rows: Annotated[
        bool, typer.Option("--check_rows", help="Count the rows of an epoch, too, undecoded.", rich_help_panel=_RUN)
    ] = False,
    out_dir: Annotated[
        Path, typer.Option("--out_dir", help="Folder for the result, as JSON and CSV.", rich_help_panel=_RUN)
    ] = Path("bench-out"),
) -> None:
    """Measure loading (no model): read, decode, window, shuffle, batch, and move to the device."""
    result = measure(
        Options(
            repo_id=repo_id,
            root=root,
            data_files_root=data_files_root,
            mode=mode,
            source=source,
            batch_size=batch_size,
            num_workers=num_workers,
            buffer_size=buffer_size,
            video_decoder_cache_size=video_decoder_cache_size,
            video_decode_device=video_decode_device,
            num_batches=num_batches,
            warmup_batches=warmup_batches,
            device=device,
            impl=impl,
            loader=loader,
            threads=threads,
            memory_bytes=memory_bytes,
            video_backend=video_backend.value,
            return_uint8=return_uint8,
            max_seconds=max_seconds,
            ceiling_seconds=ceiling_seconds,
            check_rows=check_rows,
        )
    )
    path = result.write(out_dir)
    _show(result)
    console().print(f"\nWritten: {path} and .csv", soft_wrap=True)


def _show(result: BenchmarkResult) -> None:
    rows = facts()
    for name, value in _lines(result).items():
        if value:
            rows.add_row(name, value)
    console().print(rows)


def _lines(result: BenchmarkResult) -> dict[str, str]:
    ceiling, cache = result.ceiling_camera_frames_per_s, result.video_decoder_cache
    making = f"{result.threads} decoding threads" if result.loader == "stream" else f"{result.num_workers} workers"
    use = "  ".join(f"{name} {share:.0%}" for name, share in result.stage_use.items())
    quantiles = (result.p50_sample_latency_ms, result.p95_sample_latency_ms, result.p99_sample_latency_ms)
    return {
        "run": f"{result.impl}, {result.mode}, {result.loader} loader, {making}, batches of {result.batch_size}",
        "videos": result.video,
        "samples/s": f"{result.samples_per_s:,.0f} ({result.frames_measured:,} in {result.wallclock_s:.2f} s)",
        "camera frames/s": f"{result.camera_frames_shown_per_s:,.0f} shown, padding left out"
        + (f"; {result.camera_frames_decoded_per_s:,.0f} decoded" if result.camera_frames_decoded_per_s else ""),
        "decode ceiling": f"{ceiling:,.0f} camera frames/s" if ceiling else "",
        "of the ceiling": f"{result.percent_of_ceiling:.1f} %" if result.percent_of_ceiling else "",
        "for CPU time": _cpu_line(result),
        "first batch": f"{result.first_batch_latency_s:.2f} s, after {result.open_s:.2f} s for opening",
        "ms for a sample": "p50 {:.2f}, p95 {:.2f}, p99 {:.2f}".format(*quantiles),
        "episodes in a batch": f"{result.episodes_per_batch:.1f}",
        "padded window steps": f"{result.padded_share:.1%}",
        "pool": f"{cache.hits:,} pictures shown again, {cache.misses:,} decoded, hit rate {cache.hit_rate:.1%}"
        if cache.size
        else "",
        "memory": _memory_line(result),
        "busy": use,
        "bottleneck": f"{result.bottleneck}: {ADVICE[result.bottleneck]}" if result.bottleneck else "",
        "rows of an epoch": f"{result.rows_delivered:,} of {result.rows_expected:,}"
        if result.rows_delivered is not None
        else "",
    }


def _cpu_line(result: BenchmarkResult) -> str:
    ours, bare = result.camera_frames_per_cpu_s, result.ceiling_camera_frames_per_cpu_s
    if ours is None or bare is None:
        return ""
    return f"{ours:,.0f} camera frames in a CPU second, bare {bare:,.0f}: {100 * ours / bare:.1f} %"


def _memory_line(result: BenchmarkResult) -> str:
    if result.peak_rss_bytes is None or result.baseline_rss_bytes is None:
        return ""
    peak = f"{size_text(result.peak_rss_bytes)} at the peak, {size_text(result.baseline_rss_bytes)} before opening"
    bound = result.memory_bound_bytes
    return peak + (f", bound of the rest {size_text(bound)}" if bound else "")
