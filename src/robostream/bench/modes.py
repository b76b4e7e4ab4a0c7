"""What the benchmark asks a loader for."""

from __future__ import annotations

from enum import Enum

from robostream.errors import BenchmarkError
from robostream.metadata import DatasetMetadata


class Mode(str, Enum):
    """single: one frame of all cameras. sarm: and 8 action steps, 0 … 7 s. sarm_images: and 8 steps, −7 … 0 s, of all
    cameras, as a reward model asks for."""

    single = "single"
    sarm = "sarm"
    sarm_images = "sarm_images"


STEPS = 8


def delta_timestamps(mode: Mode, meta: DatasetMetadata) -> dict[str, list[float]] | None:
    """The windows of a mode, in seconds by key. Raises BenchmarkError if the dataset lacks what the mode is about."""
    if mode is Mode.single:
        return None
    if "action" not in meta.features:
        raise BenchmarkError(f"mode {mode.value!r} asks for windows of 'action', which the dataset does not have")
    windows = {"action": _seconds(range(STEPS), meta)}
    if mode is Mode.sarm_images:
        windows |= dict.fromkeys(meta.camera_keys, _seconds(range(1 - STEPS, 1), meta))
    return windows


def _seconds(seconds: range, meta: DatasetMetadata) -> list[float]:
    """Whole seconds, moved to the nearest frame: at 30000/1001 fps there is none at 1 s."""
    fps = meta.info.fps
    return [float(round(second * fps) / fps) for second in seconds]


TARGETS = {Mode.single: 120.0, Mode.sarm: 320.0}
"""Samples/s of a node that training asks for at least."""
