"""Whether what an index marks as keyframes can be decoded without what comes before."""

from __future__ import annotations

import numpy as np

from robostream.decode import PyavDecoder
from robostream.diagnose.report import TRANSCODE, Finding, error
from robostream.diagnose.target import Target
from robostream.errors import DecodeError
from robostream.mp4 import SampleTable
from robostream.video import Int, fetch_clip

_TRIED = 4


def judge_keyframes(target: Target, table: SampleTable) -> Finding | None:
    """Decode some keyframes alone and once more after the frames before them; None if both ways give the same.

    Raises DataFileError if the file can't be read.
    """
    frames = np.flatnonzero(table.keyframe)
    frames = frames[frames > 0]
    positions = table.position[frames]
    for place in np.linspace(0, len(positions) - 1, min(_TRIED, len(positions))).round().astype(int).tolist():
        position = int(positions[place])
        if position <= 0 or table.description[frames[place]] != table.description[table.presented[position - 1]]:
            continue
        led = _decode(target, table, np.array([position - 1, position]))
        if led is None:  # neither way works: another finding says so
            continue
        alone = _decode(target, table, np.array([position]))
        if alone is None or not np.array_equal(alone[-1], led[-1]):
            return error(
                "false-keyframes",
                f"{target.name}: frame {int(frames[place])} is marked as a keyframe, but can't be decoded without the "
                "frames before it",
                f"Pictures after it would be wrong. Re-encode with {TRANSCODE}, from a copy whose index is right "
                "(`ffmpeg -i IN.mp4 -c copy OUT.mp4` marks the keyframes anew).",
            )
    return None


def _decode(target: Target, table: SampleTable, wanted: Int) -> np.ndarray | None:
    """The pictures at positions `wanted`, uint8 [K, H, W, 3]; None if they don't come out."""
    out = np.zeros((len(wanted), table.height, table.width, 3), np.uint8)
    try:
        PyavDecoder().decode(fetch_clip(target.source, target.path, table, wanted), list(out))
    except DecodeError:
        return None
    return out
