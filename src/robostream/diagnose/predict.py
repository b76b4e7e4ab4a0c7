"""What the loader will make of a dataset on this machine, from what one core decodes."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from robostream.bench.modes import STEPS, Mode, delta_timestamps
from robostream.diagnose.target import Target
from robostream.diagnose.timing import Speed
from robostream.fetch import Camera
from robostream.metadata import DatasetMetadata
from robostream.mp4 import SampleTable
from robostream.sizing import reach, settle
from robostream.video import Int
from robostream.windows import Window, resolve_windows

EFFICIENCY = 0.75
"""The part of bare decoding that the whole loader reaches with a thread on each core; measured: 0.69 to 0.80."""

_COPY_BYTES_PER_S = 3e9  # pictures gathered into batches in a second; measured: 3 to 10 GB/s
_BUFFER = 2000  # buffer_size of the prediction, that of the benchmark


@dataclass(frozen=True)
class Prediction:
    """What the loader gives with a decoding thread on each core.

    samples_per_s: in the mode. bound: what limits it, "decoding" or "copying". cores: that this process may use.
    frames_per_sample: pictures decoded for each sample, in pictures of the size of the file that was measured; what
    windows share is decoded once. picture_bytes: decoded, of all cameras of one frame.
    """

    mode: str
    cores: int
    cameras: int
    frames_per_sample: float
    samples_per_s: float
    bound: str
    picture_bytes: int


def predict(target: Target, table: SampleTable, speed: Speed, mode: Mode) -> Prediction:
    """Predict the loader's rate. Cameras that were not measured are taken to cost the same for each pixel."""
    cores = usable_cores()
    cameras = _cameras(target, table, mode)
    clip = settle(cameras, {camera.key: table for camera in cameras}, buffer_size=_BUFFER, clip_frames=None).clip_frames
    clip = min(clip, target.length or len(table.presented))
    pixels = table.width * table.height * 3
    frames = sum((clip + reach(camera)) / clip * camera.frame_bytes / pixels for camera in cameras)
    decoding = EFFICIENCY * cores * speed.sequential / frames
    copying = _COPY_BYTES_PER_S / sum(camera.steps * camera.frame_bytes for camera in cameras)
    return Prediction(
        mode.value,
        cores,
        len(cameras),
        frames,
        min(decoding, copying),
        "decoding" if decoding <= copying else "copying",
        sum(camera.frame_bytes for camera in cameras),
    )


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cameras(target: Target, table: SampleTable, mode: Mode) -> list[Camera]:
    """The cameras as the loader would read them; of a file alone, one."""
    own = (table.height, table.width, 3)
    meta = target.meta
    if meta is None:
        step = round(table.frame_rate)
        offsets = np.arange(1 - STEPS, 1) * step if mode is Mode.sarm_images and step else None
        return [Camera("camera", True, own, offsets)]
    wanted = {key: steps for key, steps in (delta_timestamps(mode, meta) or {}).items() if key in meta.features}
    windows = resolve_windows(wanted, meta.features, meta.info.fps, 1 / float(meta.info.fps))
    keys = [key for key in meta.video_keys if key not in meta.depth_keys]
    return [
        Camera(key, True, own if key == target.camera else _shape(meta, key, own), _steps(windows, key)) for key in keys
    ]


def _steps(windows: dict[str, Window], key: str) -> Int | None:
    return windows[key].offsets if key in windows else None


def _shape(meta: DatasetMetadata, key: str, otherwise: tuple[int, int, int]) -> tuple[int, int, int]:
    """(height, width, 3) of a camera as declared, which may be with its channels first."""
    shape = meta.shapes[key]
    if len(shape) != 3:
        return otherwise
    return (shape[0], shape[1], 3) if shape[2] in (1, 3) else (shape[1], shape[2], 3)
