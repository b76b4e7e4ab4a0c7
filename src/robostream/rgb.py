"""Frames of PyAV → RGB pictures, as PyAV's `VideoReformatter` makes them."""

from __future__ import annotations

import inspect
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import VideoReformatter

Pixels = npt.NDArray[np.uint8]

# PyAV converts with as many threads as there are cores unless told otherwise, which is slower under our threads.
REFORMAT: dict[str, Any] = {"format": "rgb24"}
if "threads" in str(inspect.getdoc(VideoReformatter.reformat)):
    REFORMAT["threads"] = 1


def to_rgb(reformatter: VideoReformatter, frame: av.VideoFrame, out: Pixels) -> None:
    """Write a frame to `out`, uint8 [H, W, 3], contiguous, of the frame's size."""
    height, width = out.shape[:2]
    plane = reformatter.reformat(frame, **REFORMAT).planes[0]
    lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)  # type: ignore[call-overload]
    out.reshape(height, width * 3)[:] = lines[:height, : width * 3]
