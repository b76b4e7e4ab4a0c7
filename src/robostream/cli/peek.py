"""`robostream peek`: what a dataset holds, and what some of its samples look like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from robostream.cli.common import (
    Backend,
    BackendOption,
    CamerasOption,
    FeaturesOption,
    Timestamps,
    TimestampsOption,
    chosen_root,
    console,
    facts,
    heading,
    table,
)
from robostream.cli.look import check_sheet, open_dataset, schema_table, write_sheet
from robostream.dataset import StreamingLeRobotDataset
from robostream.errors import SettingError
from robostream.mp4 import SampleTable


def peek(
    root: Annotated[Path | None, typer.Argument(help="Folder of the dataset.", show_default=False)] = None,
    root_option: Annotated[Path | None, typer.Option("--root", help="The same.", show_default=False)] = None,
    cameras: CamerasOption = None,
    features: FeaturesOption = None,
    timestamps: TimestampsOption = Timestamps.by_clock,
    index: Annotated[int | None, typer.Option(help="The one row of the dataset to show.", show_default=False)] = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows to show, spread over the dataset.")] = 6,
    window: Annotated[int, typer.Option(min=1, help="Steps of the state's and action's windows.")] = 8,
    video_backend: BackendOption = Backend.pyav,
    out: Annotated[Path, typer.Option(help="Where to write the contact sheet, a PNG.")] = Path("peek.png"),
) -> None:
    """Show what a dataset holds, and write a contact sheet of some of its samples."""
    check_sheet(out)
    folder = chosen_root(root, root_option)
    dataset = open_dataset(
        folder,
        window,
        cameras=cameras,
        features=features,
        timestamps=timestamps.value,
        video_backend=video_backend.value,
    )
    target = console()
    heading(target, f"Dataset in {folder}")
    target.print(_summary(dataset))
    if dataset.meta.camera_keys:
        heading(target, "\nCameras")
        target.print(_cameras(dataset))
    heading(target, "Features")
    target.print(_features(dataset))
    places = _places(dataset.num_frames, index, rows)
    samples = [dataset[place] for place in places]
    heading(target, f"Sample {places[0]}")
    target.print(schema_table(samples[0]))
    width, height = write_sheet(dataset, samples, out, folder.resolve().name)
    target.print(f"Contact sheet of {len(samples)} samples, {width}×{height}: {out}", soft_wrap=True)


def _places(total: int, index: int | None, count: int) -> list[int]:
    """Which samples to show: one, or some spread evenly, with the first and the last among them."""
    if index is None:
        return [int(place) for place in np.linspace(0, total - 1, min(count, total)).round()]
    if not 0 <= index < total:
        raise SettingError(f"--index {index} is outside of the dataset's {total:,} rows")
    return [index]


def _summary(dataset: StreamingLeRobotDataset) -> Table:
    meta, lengths = dataset.meta, dataset.blueprint.lengths
    seconds = dataset.num_frames / float(meta.info.fps)
    rows = facts()
    rows.add_row("format", f"LeRobot {meta.info.codebase_version}")
    rows.add_row("robot", meta.robot_type or "not said")
    rows.add_row("fps", f"{meta.fps:g}")
    rows.add_row("episodes", f"{dataset.num_episodes:,} of {lengths.min():,} to {lengths.max():,} frames")
    rows.add_row("frames", f"{dataset.num_frames:,} ({_duration(seconds)})")
    rows.add_row("tasks", f"{len(meta.tasks)}")
    rows.add_row("cameras", f"{len(meta.camera_keys)}")
    return rows


def _cameras(dataset: StreamingLeRobotDataset) -> Table:
    rows = table(
        "camera",
        "size",
        "codec",
        "keyframe every",
        "B-frames",
        "files",
        right=("keyframe every", "files"),
    )
    for camera in dataset.blueprint.cameras:
        height, width, _ = camera.shape
        found = dataset.blueprint.tables.get(camera.key)
        if found is None:
            rows.add_row(camera.key, f"{width}×{height}", "images in Parquet", "", "", "")
            continue
        files = dataset.meta.episodes.videos[camera.key].files
        rows.add_row(
            camera.key,
            f"{width}×{height}",
            found.codec,
            _keyframe_spacing(found),
            "yes" if _has_bframes(found) else "no",
            f"{len(files):,}",
        )
    return rows


def _keyframe_spacing(found: SampleTable) -> str:
    """Frames from keyframe to keyframe in a camera's first file: the usual number, or the range."""
    spacing = np.diff(np.flatnonzero(found.keyframe))
    if len(spacing) == 0:
        return f"{len(found.keyframe)} (only one)"
    usual = int(np.median(spacing))
    # A file of joined episodes has some shorter runs at the joins.
    return f"{usual}" if spacing.max() == usual else f"{usual} (up to {spacing.max()})"


def _has_bframes(found: SampleTable) -> bool:
    """Whether frames are shown in another order than they are decoded in."""
    return bool((np.diff(found.pts) < 0).any())


def _features(dataset: StreamingLeRobotDataset) -> Table:
    rows = table("feature", "dtype", "shape", "window")
    for key, feature in dataset.features.items():
        window = dataset.blueprint.windows.get(key)
        steps = "" if window is None else _steps(window.offsets.tolist())
        rows.add_row(key, feature.dtype, " × ".join(map(str, feature.shape)), steps)
    return rows


def _steps(offsets: list[int]) -> str:
    """Offsets of a window; a run of neighbours as its ends."""
    first, last = offsets[0], offsets[-1]
    if len(offsets) > 2 and offsets == list(range(first, last + 1)):
        return f"{first} … {last}"
    return ", ".join(map(str, offsets))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:,.0f} minutes"
