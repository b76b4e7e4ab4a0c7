"""`robostream synth`: writes a dataset to try things on."""

from __future__ import annotations

import shutil
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from robostream.cli.common import console, facts, heading
from robostream.errors import SettingError
from robostream.synth import SynthSettings, write_dataset


class CodecName(str, Enum):
    """Video codecs that can be written."""

    av1 = "av1"
    h264 = "h264"
    hevc = "hevc"


class VersionName(str, Enum):
    """Format versions that can be written."""

    v30 = "v3.0"
    v21 = "v2.1"
    v20 = "v2.0"


class TextureName(str, Enum):
    """How hard the pictures are to decode."""

    light = "light"
    heavy = "heavy"


def synth(
    out: Annotated[Path, typer.Argument(help="Folder to write the dataset to.", show_default=False)],
    codec: Annotated[CodecName, typer.Option(help="Video codec.")] = CodecName.av1,
    gop: Annotated[int, typer.Option(min=1, help="Frames from keyframe to keyframe.")] = 2,
    width: Annotated[int, typer.Option(min=1)] = 256,
    height: Annotated[int, typer.Option(min=1)] = 256,
    fps: Annotated[int, typer.Option(min=1)] = 20,
    cameras: Annotated[int, typer.Option(min=1, help="How many cameras.")] = 3,
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes.")] = 12,
    min_length: Annotated[int, typer.Option(min=1, help="Frames of the shortest episode.")] = 100,
    max_length: Annotated[int, typer.Option(min=1, help="Frames of the longest episode.")] = 200,
    episodes_per_file: Annotated[int, typer.Option(min=1, help="Episodes in each MP4 and Parquet file (v3.0).")] = 4,
    episodes_per_data_file: Annotated[
        int, typer.Option(min=0, help="Episodes in each Parquet file; 0: as in each MP4.")
    ] = 0,
    bframes: Annotated[int, typer.Option(min=0, help="B-frames between references (h264 and hevc).")] = 0,
    texture: Annotated[TextureName, typer.Option(help="'heavy' takes longer to decode.")] = TextureName.light,
    version: Annotated[VersionName, typer.Option(help="LeRobot format version.")] = VersionName.v30,
    seed: Annotated[int, typer.Option(min=0, help="Of the scenes and lengths.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Delete what is in the folder.")] = False,
) -> None:
    """Write a LeRobot dataset of moving scenes, each frame marked with a barcode of its place."""
    if max_length < min_length:
        raise SettingError(f"--max-length {max_length} is below --min-length {min_length}")
    try:
        settings = SynthSettings(
            episodes=episodes,
            min_length=min_length,
            max_length=max_length,
            cameras=cameras,
            width=width,
            height=height,
            fps=fps,
            texture=texture.value,
            seed=seed,
            codec=codec.value,
            gop=gop,
            bframes=bframes,
            version=version.value,
            episodes_per_video_file=episodes_per_file,
            episodes_per_data_file=episodes_per_data_file or episodes_per_file,
        )
    except ValueError as error:
        raise SettingError(str(error)) from error
    make_room(out, force)
    write_with_progress(out, settings)
    print_summary(out, settings)


def make_room(out: Path, force: bool) -> None:
    """See that a folder is free to write to. Raises SettingError if it is not, and not forced."""
    if out.exists() and not out.is_dir():
        raise SettingError(f"{out} is a file, not a folder")
    if not out.exists() or not any(out.iterdir()):
        return
    if not force:
        raise SettingError(f"{out} is not empty; pass --force to delete what is in it")
    if not (out / "meta" / "info.json").is_file():
        raise SettingError(f"{out} holds something else than a dataset; --force deletes datasets only")
    shutil.rmtree(out)


def write_with_progress(out: Path, settings: SynthSettings) -> None:
    """Write the dataset under a bar; without a terminal, quietly."""
    target = console()
    columns = (TextColumn("encoding"), BarColumn(), MofNCompleteColumn(), TextColumn("clips"), TimeElapsedColumn())
    with Progress(*columns, console=target, transient=True, disable=not target.is_terminal) as progress:
        task = progress.add_task("", total=len(settings.lengths) * len(settings.camera_keys))
        write_dataset(out, settings, lambda done, total: progress.update(task, completed=done, total=total))


def print_summary(out: Path, settings: SynthSettings) -> None:
    """What was written."""
    files = [path for path in out.rglob("*") if path.is_file()]
    rows = facts()
    rows.add_row("episodes", f"{len(settings.lengths)}")
    rows.add_row("frames", f"{sum(settings.lengths):,} rows × {len(settings.camera_keys)} cameras")
    rows.add_row("pictures", f"{settings.width}×{settings.height}, {settings.codec}, a keyframe every {settings.gop}")
    rows.add_row("format", f"LeRobot {settings.version}, {settings.fps} fps")
    rows.add_row("files", f"{len(files)}")
    rows.add_row("bytes", f"{sum(path.stat().st_size for path in files):,}")
    target = console()
    heading(target, f"Dataset in {out}")
    target.print(rows)
