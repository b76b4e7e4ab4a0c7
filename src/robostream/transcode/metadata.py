"""Everything of a dataset but its videos: copied, and `info.json` brought up to date."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from robostream.metadata.files import read_json
from robostream.metadata.info import INFO_PATH
from robostream.source import Source
from robostream.transcode.settings import PIXEL_FORMAT, TranscodeSettings

_ENCODER_KEYS = ("video.fast_decode", "video.video_backend", "video.extra_options")  # of the encoder that was used


def copy_files(source: Source, out: Path, paths: Iterable[str]) -> None:
    """Copy files of a dataset that are not there yet; each gets its name when it is whole."""
    for path in paths:
        target = out / path
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        part = part_of(target)
        with source.open(path) as read, part.open("wb") as written:
            shutil.copyfileobj(read, written, 1 << 20)
        os.replace(part, target)


def part_of(target: Path) -> Path:
    """Where a file is written until it is whole."""
    return target.with_name(target.name + ".part")


def other_files(source: Source, data_files: Iterable[str]) -> list[str]:
    """The files to copy: rows, and all metadata except info.json."""
    meta = [path for path in source.list("meta") or [] if path != INFO_PATH]
    cards = [name for name in ("README.md", "LICENSE") if source.exists(name)]
    return [*data_files, *meta, *cards]


def write_info(
    source: Source, out: Path, settings: TranscodeSettings, sizes: dict[str, tuple[int, int]], cameras: Sequence[str]
) -> None:
    """Write info.json for the new videos. sizes: (width, height) of each camera that was re-encoded. cameras: all that
    are kept."""
    info = read_json(source, INFO_PATH)
    info["features"] = {
        key: feature
        for key, feature in info["features"].items()
        if feature["dtype"] not in ("video", "image") or key in cameras
    }
    for key, (width, height) in sizes.items():
        _update(info["features"][key], settings, width, height)
    target = out / INFO_PATH
    target.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(target)
    part.write_text(json.dumps(info, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(part, target)


def _update(feature: dict[str, Any], settings: TranscodeSettings, width: int, height: int) -> None:
    shape = feature["shape"]
    if len(shape) == 3:
        channels_first = shape[0] in (1, 3) and shape[2] not in (1, 3)
        feature["shape"] = [shape[0], height, width] if channels_first else [height, width, shape[2]]
    video = feature.setdefault("info" if feature.get("info") or not feature.get("video_info") else "video_info", {})
    for key in _ENCODER_KEYS:
        video.pop(key, None)
    video |= {
        "video.height": height,
        "video.width": width,
        "video.codec": settings.codec,
        "video.pix_fmt": PIXEL_FORMAT,
        "video.channels": 3,
        "has_audio": False,
        "video.g": settings.gop,
        "video.crf": settings.quality,
        "video.preset": settings.speed,
    }
