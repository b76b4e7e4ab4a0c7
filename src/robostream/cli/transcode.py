"""`robostream transcode`: a copy of a dataset with its videos re-encoded."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from robostream.cli.common import CamerasOption, console, error_console, facts, heading, size_text
from robostream.transcode import Summary, TranscodeSettings
from robostream.transcode import transcode as run


class CodecName(str, Enum):
    """Video codecs that can be written."""

    h264 = "h264"
    hevc = "hevc"
    av1 = "av1"


def transcode(
    src: Annotated[Path, typer.Argument(help="Folder of the dataset.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="Folder for the new one; of a run that was ended, to go on.")],
    codec: Annotated[CodecName, typer.Option(help="Video codec.")] = CodecName.h264,
    gop: Annotated[int, typer.Option(min=1, help="Frames from keyframe to keyframe.")] = 16,
    width: Annotated[
        int | None, typer.Option(help="Of the pictures. [default: as they are]", show_default=False)
    ] = None,
    height: Annotated[int | None, typer.Option(help="The same.", show_default=False)] = None,
    crf: Annotated[
        int | None,
        typer.Option(help="Quality, lower is better. [default: h264 20, hevc 22, av1 28]", show_default=False),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="The encoder's. [default: h264 and hevc fast, av1 10]", show_default=False)
    ] = None,
    cameras: CamerasOption = None,
    threads: Annotated[int, typer.Option(min=0, help="Files at once; 0 for one a core.")] = 0,
    min_psnr: Annotated[
        float, typer.Option("--min-psnr", help="How close each picture must be to its source, in dB.")
    ] = TranscodeSettings.min_psnr,
) -> None:
    """Re-encode a dataset's videos into a dataset beside it. Each file is checked picture by picture.

    Ended runs go on when the same command is given again.
    """
    settings = TranscodeSettings(codec.value, gop, width, height, crf, preset, min_psnr)
    target = console()
    columns = (
        TextColumn("encoding and checking"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=target, transient=True, disable=not target.is_terminal) as bar:
            task = bar.add_task("", total=None)
            summary = run(
                src,
                out,
                settings,
                cameras=cameras,
                threads=threads or None,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
    except KeyboardInterrupt:
        error_console().print(Text("stopped; give the same command again to go on", style="yellow"), soft_wrap=True)
        raise typer.Exit(130) from None
    heading(target, f"Dataset in {out}")
    rows = facts()
    for name, value in _lines(summary, settings).items():
        rows.add_row(name, value)
    target.print(rows)


def _lines(summary: Summary, settings: TranscodeSettings) -> dict[str, str]:
    kept = f", {summary.kept} of them by an earlier run" if summary.kept else ""
    copied = f"; {summary.copied} of depth cameras copied as they are" if summary.copied else ""
    return {
        "videos": f"{summary.files} files{kept}{copied}",
        "coded as": f"{settings.codec}, a keyframe every {settings.gop} frames, crf {settings.quality}, "
        f"preset {settings.speed}",
        "checked": f"{summary.pictures:,} pictures, each at its time and like its own source",
        "PSNR": f"{summary.mean_psnr:.1f} dB on average, {summary.min_psnr:.1f} dB at least",
        "size": f"{size_text(summary.bytes_before)} before, {size_text(summary.bytes_after)} now",
    }
