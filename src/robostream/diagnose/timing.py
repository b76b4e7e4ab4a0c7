"""How fast one core decodes a file: in order, at random, and keyframes alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from robostream.decode import VideoDecoder
from robostream.decode_direct import make_decoder
from robostream.diagnose.target import Target
from robostream.mp4 import SampleTable
from robostream.sizing import MIN_CLIP, keyframe_spacing
from robostream.video import CodedClip, Int, fetch_clip

_CODED_BYTES = 64 << 20  # held at once
_PIXEL_BYTES = 256 << 20
_MIN_CALLS = 2


@dataclass(frozen=True)
class Speed:
    """Pictures decoded to RGB in a second of one core's time. keyframe_ms: milliseconds for a keyframe alone."""

    sequential: float
    random: float
    keyframe_ms: float

    @property
    def random_costs(self) -> float:
        """How many times as long a picture takes at random."""
        return self.sequential / self.random


def measure_speed(target: Target, table: SampleTable, seconds: float) -> Speed:
    """Decode parts of a file for about `seconds` seconds. Reading is not timed.

    Raises DecodeError if a picture can't be decoded, DataFileError if it can't be read.
    """
    rng = np.random.default_rng(0)
    decoder = make_decoder()
    length = _clip_length(table)
    starts = np.arange(0, max(1, len(table.presented) - length + 1), length)
    clips = ((start + np.arange(min(length, len(table.presented) - start))) for start in rng.permutation(starts))
    sequential = _rate(decoder, _fetched(target, table, clips), seconds / 3)
    anywhere = (rng.integers(0, len(table.presented), 1) for _ in range(10_000))
    random = _rate(decoder, _fetched(target, table, anywhere), seconds / 3)
    keyframes = table.position[np.flatnonzero(table.keyframe)]
    keyframes = keyframes[keyframes >= 0]
    if len(keyframes) == 0:
        return Speed(sequential, random, 1e3 / random)
    only = (rng.choice(keyframes, 1) for _ in range(10_000))
    return Speed(sequential, random, 1e3 / _rate(decoder, _fetched(target, table, only), seconds / 3))


def _clip_length(table: SampleTable) -> int:
    """Pictures of a clip as the loader cuts it: whole groups of pictures."""
    spacing = keyframe_spacing(table)
    length = -(-MIN_CLIP // spacing) * spacing
    return max(1, min(length, len(table.presented), _PIXEL_BYTES // max(1, table.width * table.height * 3)))


def _fetched(target: Target, table: SampleTable, wanted: Iterator[Int]) -> Iterator[CodedClip]:
    """Clips to decode; those that were read once come again, so that a slow store is not asked without end."""
    held: list[CodedClip] = []
    size = 0
    for positions in wanted:
        clip = fetch_clip(target.source, target.path, table, positions)
        held.append(clip)
        size += clip.bytes_read
        yield clip
        if size >= _CODED_BYTES:
            break
    while True:
        yield from held


def _rate(decoder: VideoDecoder, clips: Iterator[CodedClip], seconds: float) -> float:
    """Pictures decoded in a second of this thread's CPU time."""
    out: np.ndarray | None = None
    spent, pictures = 0.0, 0
    end = time.perf_counter() + seconds
    for calls, clip in enumerate(clips):
        if out is None or len(out) < len(clip.wanted):
            out = np.zeros((len(clip.wanted), clip.table.height, clip.table.width, 3), np.uint8)
        pixels = list(out[: len(clip.wanted)])
        if calls == 0:
            decoder.decode(clip, pixels)  # opens the decoder and touches the memory
        begin = time.thread_time()
        decoder.decode(clip, pixels)
        spent += time.thread_time() - begin
        pictures += len(clip.wanted)
        if calls + 1 >= _MIN_CALLS and time.perf_counter() >= end and spent > 0:
            break
    return pictures / spent
