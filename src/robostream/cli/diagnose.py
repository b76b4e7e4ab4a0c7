"""`robostream diagnose`: why a video does not decode, or not fast, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from robostream.bench.modes import Mode
from robostream.cli.common import console, facts, heading, size_text, table
from robostream.diagnose import Diagnosis, Severity, find_target
from robostream.diagnose import diagnose as look
from robostream.errors import SettingError

_STYLES = {Severity.note: "cyan", Severity.warning: "yellow", Severity.error: "bold red"}


def diagnose(
    file: Annotated[
        str | None, typer.Argument(help="A video file, or with a dataset its path in it.", show_default=False)
    ] = None,
    repo_id: Annotated[str | None, typer.Option("--repo_id", "--repo-id", help="Dataset on the Hub.")] = None,
    root: Annotated[Path | None, typer.Option(help="Folder of a dataset.")] = None,
    data_files_root: Annotated[
        str | None, typer.Option("--data_files_root", "--data-files-root", help="URL of the folder with its files.")
    ] = None,
    camera: Annotated[str | None, typer.Option(help="Whose video. [default: the first]", show_default=False)] = None,
    episode: Annotated[
        int | None, typer.Option(help="Of which episode. [default: the first]", show_default=False)
    ] = None,
    file_option: Annotated[str | None, typer.Option("--file", help="The same as FILE.", show_default=False)] = None,
    video_decode_device: Annotated[
        str,
        typer.Option("--video_decode_device", "--video-decode-device", help="Where to decode: cpu, cuda or cuda:N."),
    ] = "cpu",
    mode: Annotated[Mode, typer.Option(help="What the prediction is for.")] = Mode.single,
    seconds: Annotated[float, typer.Option(min=0, help="How long to time decoding; 0 for not at all.")] = 6.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Look at one video the way the loader does, without loading anything. Exit code 1 if it can't be read as asked."""
    if file and file_option:
        raise SettingError("give the file once: FILE or --file FILE")
    if not (video_decode_device == "cpu" or video_decode_device.startswith("cuda")):
        raise SettingError(f"--video_decode_device {video_decode_device}: cpu, cuda or cuda:N")
    target = find_target(
        repo_id=repo_id,
        root=root,
        data_files_root=data_files_root,
        camera=camera,
        episode=episode,
        file=file or file_option,
    )
    out = console()
    with out.status("", spinner="dots") if out.is_terminal and not as_json else _Quiet() as status:
        found = look(target, device=video_decode_device, mode=mode, seconds=seconds, said=status.update)
    if as_json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        _show(out, found)
    if found.failed:
        raise typer.Exit(1)


class _Quiet:
    """Stands in for rich's status line where there is no terminal."""

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, step: str) -> None:
        pass


def _show(out: Console, found: Diagnosis) -> None:
    _show_facts(out, "Versions", found.versions)
    _show_facts(out, "\nFile", _file(found))
    if found.index is not None:
        _show_facts(out, "\nIndex", _index(found))
    if found.attempts:
        heading(out, "\nOne picture")
        rows = table("backend", "device", "ms", "", right=("ms",))
        for attempt in found.attempts:
            ms = "failed" if attempt.ms is None else f"{attempt.ms:.1f}"
            rows.add_row(attempt.backend, attempt.device, ms, Text(attempt.said))
        out.print(rows)
    if found.speed is not None and found.prediction is not None:
        _show_facts(out, "Speed of one core", _speed(found))
        _show_facts(out, "\nPrediction", _prediction(found))
    _show_findings(out, found)


def _show_facts(out: Console, title: str, values: dict[str, str]) -> None:
    heading(out, title)
    rows = facts()
    for name, value in values.items():
        rows.add_row(name, Text(value))
    out.print(rows)


def _file(found: Diagnosis) -> dict[str, str]:
    shown = {"file": found.file}
    if found.camera is not None:
        shown["of"] = f"{found.camera}, episode {found.episode}"
    if found.size is not None:
        shown["size"] = size_text(found.size)
    if found.first_bytes is not None:
        begins = "an MP4's" if "ftyp" in found.first_bytes else "not an MP4's"
        shown["first bytes"] = f"{found.first_bytes}  ({begins})"
    shown["GPU"] = "none" if found.gpu is None else f"{found.gpu.name}, {found.gpu.decoders or 'unknown'} decoders"
    return shown


def _index(found: Diagnosis) -> dict[str, str]:
    index = found.index
    assert index is not None
    return {
        "coded as": str(found.coded) if found.coded is not None else index.codec,
        "pictures": f"{index.pictures:,} of {index.width}×{index.height}, {index.bytes_of_picture:,} bytes each",
        "fps": f"{index.fps:g}",
        "keyframes": f"{index.keyframes:,}, one every {index.spacing} frames",
        "B-frames": "yes" if index.bframes else "no",
        "first picture": f"at {index.first_pts:g} s",
        "index": f"at the file's {index.moov}, {size_text(index.bytes_read)} read for it",
    }


def _speed(found: Diagnosis) -> dict[str, str]:
    speed = found.speed
    assert speed is not None
    return {
        "in order": f"{speed.sequential:,.0f} pictures/s to RGB",
        "at random": f"{speed.random:,.0f} pictures/s, {speed.random_costs:.1f} times as long for each",
        "a keyframe": f"{speed.keyframe_ms:.2f} ms",
    }


def _prediction(found: Diagnosis) -> dict[str, str]:
    prediction = found.prediction
    assert prediction is not None
    shown = {
        "samples/s": f"about {prediction.samples_per_s:,.0f}, mode {prediction.mode}, limited by {prediction.bound}",
        "with": f"{prediction.cores} cores, {prediction.cameras} cameras, {prediction.frames_per_sample:.2f} pictures "
        "decoded for a sample",
    }
    for number, sentence in enumerate(found.advice):
        shown["to raise it" if number == 0 else " " * number] = sentence
    return shown


def _show_findings(out: Console, found: Diagnosis) -> None:
    heading(out, "\nFindings" if found.findings else "\nFindings: none, the file is fine")
    order = {Severity.error: 0, Severity.warning: 1, Severity.note: 2}
    for finding in sorted(found.findings, key=lambda one: order[one.severity]):
        line = Text(f"{finding.severity.value} ({finding.kind}): ", style=_STYLES[finding.severity])
        out.print(line.append(finding.what, style="default"), soft_wrap=True)
        out.print(Text(f"  → {finding.do}"), soft_wrap=True)
