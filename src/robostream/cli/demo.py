"""`robostream demo`: streams one epoch of a dataset and says how fast, how exact, and in how much memory."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from robostream import machine
from robostream.assemble import Batch, Sample, split
from robostream.bench.ceiling import measure_ceiling
from robostream.cli.common import (
    Backend,
    BackendOption,
    CamerasOption,
    FeaturesOption,
    OnError,
    Timestamps,
    TimestampsOption,
    console,
    facts,
    heading,
    print_error,
    size_text,
)
from robostream.cli.look import open_dataset, schema_table, write_sheet
from robostream.cli.synth import write_with_progress
from robostream.dataset import StreamingLeRobotDataset
from robostream.errors import RobostreamError, SettingError
from robostream.loader import StreamLoader
from robostream.synth import SynthSettings

DATASET = SynthSettings(
    episodes=12,
    min_length=100,
    max_length=200,
    cameras=("observation.images.top", "observation.images.side", "observation.images.wrist"),
    width=256,
    height=256,
    fps=20,
    codec="av1",
    gop=2,
    episodes_per_video_file=4,
    episodes_per_data_file=4,
)
"""What is streamed if no dataset is given."""

_MADE_BY = "made_by_robostream_demo.json"
_SHEET_ROWS = 7
_WARM = 10.0  # seconds; in a shorter run the start weighs
_SHORT = ", with the start, which weighs in so short a run: `robostream bench` measures without it"
_LOOKED_AT = 16  # batches among which the one to show is chosen


@dataclass
class Limits:
    """When to stop before the end of the epoch."""

    seconds: float | None
    batches: int | None

    def reached(self, seconds: float, batches: int) -> bool:
        return (self.seconds is not None and seconds >= self.seconds) or (
            self.batches is not None and batches >= self.batches
        )


@dataclass
class Run:
    """What one epoch of `expected` samples came to. rows: int64, the index columns of its batches."""

    expected: int
    rows: list[npt.NDArray[np.int64]] = field(default_factory=list)
    samples: int = 0
    batches: int = 0
    seconds: float = 0.0
    first_batch: float = 0.0
    stopped_early: bool = False
    before: int | None = None
    peak: int | None = None
    shown: list[Sample] = field(default_factory=list)

    @property
    def different(self) -> int:
        """How many different rows came."""
        return len(np.unique(np.concatenate(self.rows))) if self.rows else 0


def demo(
    root: Annotated[
        Path | None, typer.Option(help="Folder of a dataset. [default: a small one is made]", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the contact sheet and the dataset that is made.")] = Path(
        "demo-out"
    ),
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this time.", show_default=False)] = None,
    batches: Annotated[int | None, typer.Option(min=1, help="Stop after so many.", show_default=False)] = None,
    cameras: CamerasOption = None,
    features: FeaturesOption = None,
    timestamps: TimestampsOption = Timestamps.by_clock,
    on_error: Annotated[OnError, typer.Option(help="What to do with samples that can't be read.")] = OnError.stop,
    buffer_size: Annotated[int, typer.Option(min=1, help="Shuffle window, in frames.")] = 1000,
    window: Annotated[int, typer.Option(min=1, help="Steps of the state's and action's windows.")] = 8,
    seed: Annotated[int, typer.Option(help="Of the order.")] = 42,
    threads: Annotated[int, typer.Option(min=0, help="Decoding threads; 0 for one a core.")] = 0,
    video_backend: BackendOption = Backend.pyav,
    ceiling_seconds: Annotated[
        float, typer.Option(min=0, help="How long to measure bare decoding, to compare with; 0 for not at all.")
    ] = 3.0,
) -> None:
    """Stream one epoch of a dataset, shuffled and with windows, and say what came out."""
    target = console()
    name = root.resolve().name if root else "Synthetic dataset"
    threads = threads or machine.cores()
    dataset = open_dataset(
        root or demo_dataset(out / "dataset", DATASET),
        window,
        cameras=cameras,
        features=features,
        timestamps=timestamps.value,
        on_error=on_error.value,
        buffer_size=buffer_size,
        seed=seed,
        num_threads=threads,
        video_backend=video_backend.value,
    )
    _announce(target, dataset, batch_size, threads)
    with StreamLoader(dataset, batch_size) as loader:
        run = stream(loader, Limits(seconds, batches), target)
        bound, metrics = loader.memory_bound, loader.metrics()
    if not run.shown:
        raise SettingError("nothing came before the run was stopped; give it more --seconds")
    heading(target, "A sample")
    target.print(schema_table(run.shown[0]))
    ceiling = measure(dataset, threads, ceiling_seconds)
    _print_results(target, dataset, run, metrics, bound, ceiling)
    title = f"{name}, {len(run.shown)} samples of a shuffled batch"
    width, height = write_sheet(dataset, run.shown, out / "contact_sheet.png", title)
    target.print(f"\nContact sheet, {width}×{height}: {out / 'contact_sheet.png'}", soft_wrap=True)
    problem = check_rows(run, metrics)
    if problem:
        print_error(RobostreamError(problem))
        raise typer.Exit(1)


def demo_dataset(folder: Path, settings: SynthSettings) -> Path:
    """A dataset of these settings in the folder: the one that is there, or a new one."""
    wanted = json.loads(json.dumps(asdict(settings), default=str))
    if folder.exists():
        try:
            found = json.loads((folder / _MADE_BY).read_text())
        except (OSError, ValueError):
            raise SettingError(f"{folder} was not made by this command; pass another folder with --out") from None
        if found == wanted:
            return folder
        shutil.rmtree(folder)
    console().print(f"Making a dataset in {folder}", soft_wrap=True)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    write_with_progress(partial, settings)
    (partial / _MADE_BY).write_text(json.dumps(wanted, indent=1))
    partial.rename(folder)
    return folder


def stream(loader: StreamLoader, limits: Limits, target: Console) -> Run:
    """One epoch, or what the limits leave of it."""
    run = Run(len(loader.dataset))
    best = (False, False, 0)
    machine.reset_peak()
    run.before = machine.resident()
    start = time.perf_counter()
    for batch in _with_progress(iter(loader), run.expected, target):
        run.seconds = time.perf_counter() - start
        run.first_batch = run.first_batch or run.seconds
        run.rows.append(batch["index"].numpy())
        run.samples += len(batch["index"])
        run.batches += 1
        if run.batches <= _LOOKED_AT and (variety := _variety(batch)) > best:
            run.shown, best = choose(batch), variety
        if limits.reached(run.seconds, run.batches) and run.samples < run.expected:
            run.stopped_early = True
            break
    run.peak = machine.peak()
    return run


def _with_progress(batches: Iterator[Batch], total: int, target: Console) -> Iterator[Batch]:
    """The same batches, with a live line on a terminal."""
    speed = TextColumn("{task.speed:,.0f} samples/s" if target.is_terminal else "")
    columns = (TextColumn("streaming"), BarColumn(), MofNCompleteColumn(), speed, TimeElapsedColumn())
    with Progress(*columns, console=target, transient=True, disable=not target.is_terminal) as progress:
        task = progress.add_task("", total=total)
        for batch in batches:
            yield batch
            progress.advance(task, len(batch["index"]))


def choose(batch: Batch) -> list[Sample]:
    """Samples of a batch to show, in the dataset's order: one or two with padding, and many episodes."""
    samples = sorted(split(batch), key=_padding, reverse=True)
    chosen = [sample for sample in samples[:2] if any(_padding(sample))]
    rest = sorted(samples[len(chosen) :], key=_padding)
    while rest and len(chosen) < _SHEET_ROWS:
        used = [int(s["episode_index"]) for s in chosen]
        chosen.append(rest.pop(int(np.argmin([used.count(int(s["episode_index"])) for s in rest]))))
    chosen.sort(key=lambda s: int(s["index"]))
    return [{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in s.items()} for s in chosen]


def _padding(sample: Sample) -> tuple[int, int]:
    """How many steps of pictures, and of everything, are padding."""
    pads = {key: int(sample[f"{key}_is_pad"].sum()) for key in sample if f"{key}_is_pad" in sample}
    return sum(count for key, count in pads.items() if sample[key].ndim >= 3), sum(pads.values())


def _variety(batch: Batch) -> tuple[bool, bool, int]:
    """How good a batch is to show: whether pictures are padded, whether anything is, and how many episodes."""
    pads = {key: bool(batch[f"{key}_is_pad"].any()) for key in batch if f"{key}_is_pad" in batch}
    pictures = any(padded for key, padded in pads.items() if batch[key].ndim >= 4)
    return pictures, any(pads.values()), len(batch["episode_index"].unique())


def measure(dataset: StreamingLeRobotDataset, threads: int, seconds: float) -> float | None:
    """Camera frames/s of bare decoding, or None if it is not to be measured or there is no video."""
    if not seconds or not dataset.meta.video_keys:
        return None
    return measure_ceiling(dataset, threads, seconds).frames_per_s


def check_rows(run: Run, metrics: dict[str, float]) -> str:
    """What is wrong with the rows that came, or ""."""
    if run.different < run.samples:
        return f"{run.samples - run.different:,} samples came more than once"
    missing = run.expected - run.samples - int(metrics.get("samples_skipped", 0))
    if missing > 0 and not run.stopped_early:
        return f"{missing:,} rows never came"
    return ""


def _announce(target: Console, dataset: StreamingLeRobotDataset, batch_size: int, threads: int) -> None:
    cameras = len(dataset.meta.camera_keys)
    target.print(
        f"Streaming {dataset.num_frames:,} frames of {dataset.num_episodes} episodes, {cameras} "
        f"camera{'s' * (cameras != 1)}, in batches of {batch_size} with {threads} thread{'s' * (threads != 1)}\n",
        soft_wrap=True,
    )


def _print_results(
    target: Console,
    dataset: StreamingLeRobotDataset,
    run: Run,
    metrics: dict[str, float],
    bound: int,
    ceiling: float | None,
) -> None:
    cameras = len(dataset.meta.camera_keys)
    rate = run.samples / run.seconds
    rows = facts()
    rows.add_row("time", f"{run.seconds:.2f} s for {run.batches:,} batches; the first after {run.first_batch:.2f} s")
    rows.add_row("samples/s", f"{rate:,.0f}")
    rows.add_row("camera frames/s", f"{rate * cameras:,.0f} ({cameras} × samples/s; steps of windows not counted)")
    if ceiling:
        rows.add_row("decode ceiling", f"{ceiling:,.0f} camera frames/s when nothing but decoding is done")
        rows.add_row("of the ceiling", f"{100 * rate * cameras / ceiling:.0f} %{_SHORT if run.seconds < _WARM else ''}")
    rows.add_row("decoded", f"{metrics.get('frames_decoded', 0):,} frames, {_per_shown(run, metrics, cameras)}")
    rows.add_row("read", size_text(metrics.get("bytes_read", 0)))
    rows.add_row("memory", _memory_text(run, bound))
    rows.add_row("rows delivered", _rows_text(run))
    rows.add_row("clock drift", f"{metrics.get('episodes_drifted', 0):,} episodes")
    rows.add_row("skipped", f"{metrics.get('samples_skipped', 0):,} samples")
    heading(target, "Results")
    target.print(rows)


def _per_shown(run: Run, metrics: dict[str, float], cameras: int) -> str:
    shown = max(1, run.samples * cameras)
    return f"{metrics.get('frames_decoded', 0) / shown:.2f} for each row and camera"


def _memory_text(run: Run, bound: int) -> str:
    if run.peak is None or run.before is None:
        return f"at most {size_text(bound)} for the stream, as planned; this system doesn't tell what was used"
    return (
        f"{size_text(run.peak)} at the peak: {size_text(max(0, run.peak - run.before))} more than before streaming, "
        f"of at most {size_text(bound)} planned"
    )


def _rows_text(run: Run) -> str:
    count = f"{run.samples:,} of {run.expected:,}"
    if run.different < run.samples:
        return f"{count}, of them {run.different:,} different ones"
    if run.stopped_early:
        return f"{count} (stopped early), none twice"
    return f"{count}, each exactly once" if run.samples == run.expected else f"{count}, none twice"
