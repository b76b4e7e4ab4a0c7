"""`delta_timestamps` in seconds → offsets in frames, and the rows and padding they mean within an episode."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Real
from typing import SupportsFloat

import numpy as np
import numpy.typing as npt

from robostream.errors import WindowError

_MAX_FRAMES = 2**31  # far beyond any episode; keeps row arithmetic within int64


@dataclass(frozen=True, eq=False)
class Window:
    """The steps around a sample's frame that one key is read at.

    key: the feature. offsets: int64[T], in frames, in the order asked for; negative is the past.
    """

    key: str
    offsets: npt.NDArray[np.int64]


def resolve_windows(
    delta_timestamps: Mapping[str, Sequence[float]] | None,
    keys: Collection[str],
    fps: Fraction | float,
    tolerance_s: float,
) -> dict[str, Window]:
    """Turn offsets in seconds into offsets in frames.

    keys: the features that exist. An offset must lie within `tolerance_s` seconds of a multiple of 1/fps.
    Raises `WindowError` for an unknown key, an empty list, and an offset that is no number or off the grid.
    """
    windows = {}
    for key, offsets in (delta_timestamps or {}).items():
        if key not in keys:
            raise WindowError(f"delta_timestamps: unknown key {key!r}; known are {', '.join(sorted(keys))}")
        windows[key] = Window(key, _frame_offsets(key, offsets, fps, tolerance_s))
    return windows


def window_rows(
    anchors: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The rows that a window reads, for each of n anchor rows of one episode of `length` rows.

    anchors: int64[n], rows within the episode. offsets: int64[T]. Returns rows int64[n, T], clamped to
    [0, length), so that steps outside repeat the first or last row, and is_pad bool[n, T], true there.
    """
    wanted = anchors[:, None] + offsets[None, :]
    rows = np.clip(wanted, 0, length - 1)
    return rows, rows != wanted


def reach(windows: Iterable[Window]) -> tuple[int, int]:
    """How many frames the windows reach (back, forward) from the anchor: both ≥ 0, (0, 0) without windows."""
    offsets = [window.offsets for window in windows]
    back = max((-int(o.min()) for o in offsets), default=0)
    forward = max((int(o.max()) for o in offsets), default=0)
    return max(back, 0), max(forward, 0)


def _frame_offsets(
    key: str, offsets: Sequence[float], fps: Fraction | float, tolerance_s: float
) -> npt.NDArray[np.int64]:
    try:
        steps = list(offsets)
    except TypeError:
        raise WindowError(f"delta_timestamps[{key!r}] must be a list of seconds, not {offsets!r}") from None
    if not steps:
        raise WindowError(f"delta_timestamps[{key!r}] is empty; leave the key out to get the frame alone")
    return np.array([_frame_offset(key, step, float(fps), tolerance_s) for step in steps], dtype=np.int64)


def _frame_offset(key: str, offset: SupportsFloat, fps: float, tolerance_s: float) -> int:
    seconds = float(offset) if isinstance(offset, Real) else math.nan
    if not math.isfinite(seconds) or abs(seconds) * fps > _MAX_FRAMES:
        raise WindowError(f"delta_timestamps[{key!r}]: {offset!r} is not an offset in seconds")
    frames = round(seconds * fps)
    if not abs(seconds - frames / fps) <= tolerance_s:
        raise WindowError(
            f"delta_timestamps[{key!r}]: the offset {seconds} s is not a multiple of 1/fps at {fps:g} fps "
            f"within tolerance_s={tolerance_s}; the nearest is {frames / fps} s ({frames} frames)"
        )
    return frames
