"""What the benchmark asks a loader for."""

from __future__ import annotations

from enum import Enum

from robostream.metadata import DatasetMetadata


class Mode(str, Enum):
    """single: one frame of all cameras. sarm: and 8 action steps, 0 … 7 s. sarm_images: and 8 steps, −7 … 0 s, of all
    cameras, as a reward model asks for."""

    single = "single"
    sarm = "sarm"
    sarm_images = "sarm_images"


STEPS = 8


def delta_timestamps(mode: Mode, meta: DatasetMetadata) -> dict[str, list[float]] | None:
    """The windows of a mode, in seconds by key."""
    if mode is Mode.single:
        return None
    windows = {"action": [float(step) for step in range(STEPS)]}
    if mode is Mode.sarm_images:
        past = [float(step - STEPS + 1) for step in range(STEPS)]
        windows |= dict.fromkeys(meta.camera_keys, past)
    return windows
