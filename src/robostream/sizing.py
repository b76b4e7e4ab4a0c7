"""How long clips are, how far things are shuffled, and what memory that takes: settled once, when a dataset is opened.

All of it follows from metadata, the first file of each camera and the settings, so it is the same on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robostream.errors import SettingError
from robostream.fetch import Camera
from robostream.mp4 import SampleTable
from robostream.windows import Window
from robostream.windows import reach as window_reach

MIN_CLIP = 32  # frames; shorter clips cost more for each than they gain in mixing
_LONG_CLIP = 64  # frames; longer clips hardly cost less for each
_MIXED = 16  # clips that the decoded window is to mix, at least, where that makes none shorter than MIN_CLIP
_REACH_FACTOR = 4  # clips are this many times as long as their windows reach, so that few frames are decoded twice
_UNIT_FRAMES = 4096  # longer episodes are cut into several fetch units
_CODED_WINDOW_BYTES = 512 << 20  # the windowed shuffle of clips reaches over this much coded video


@dataclass(frozen=True)
class Sizes:
    """clip_frames, unit_frames, clip_window: as in the plan; clip_window is for the whole rank, in frames."""

    clip_frames: int
    unit_frames: int
    clip_window: int


def settle(
    cameras: Sequence[Camera],
    tables: Mapping[str, SampleTable],
    *,
    buffer_size: int,
    clip_frames: int | None,
) -> Sizes:
    """Settle the plan's sizes.

    Args:
        cameras: what is decoded. tables: the sample table of each video camera's first file.
        buffer_size: the decoded window in frames. clip_frames: length of clips that the user asked for.
    """
    if clip_frames is not None and clip_frames < 1:
        raise SettingError(f"clip_frames={clip_frames} must be at least 1")
    clip = clip_frames or _clip_frames(cameras, tables, buffer_size)
    unit = clip * max(1, _UNIT_FRAMES // clip)
    coded = sum(float(np.mean(table.size)) for table in tables.values()) if tables else 4096.0
    window = int(_CODED_WINDOW_BYTES / max(coded, 64.0))
    return Sizes(clip, unit, window)


def _clip_frames(cameras: Sequence[Camera], tables: Mapping[str, SampleTable], buffer_size: int) -> int:
    spacing = max((keyframe_spacing(table) for table in tables.values()), default=1)
    usual = max(MIN_CLIP, min(_LONG_CLIP, buffer_size // _MIXED))
    wanted = max(usual, _REACH_FACTOR * max((reach(camera) for camera in cameras), default=0))
    # Long clips leave little to mix, so at least four fit in the decoded window, unless a GOP is longer.
    wanted = min(wanted, max(MIN_CLIP, buffer_size // 4))
    gops = max(wanted // spacing, math.ceil(MIN_CLIP / spacing))
    return gops * spacing


def keyframe_spacing(table: SampleTable) -> int:
    """The usual number of frames from one keyframe to the next; 1 if every frame is one."""
    keyframes = np.flatnonzero(table.keyframe)
    if len(keyframes) < 2:
        return len(table.keyframe)
    return int(np.percentile(np.diff(keyframes), 90, method="lower"))


def reach(camera: Camera) -> int:
    """Frames that a camera's window reaches beyond the anchor, both ways together."""
    return 0 if camera.offsets is None else sum(window_reach([Window(camera.key, camera.offsets)]))


@dataclass(frozen=True)
class Room:
    """Pictures of one camera that a consumer holds: budget is what it keeps to, capacity what it can never exceed."""

    budget: int
    capacity: int


def longest_clip(clip_frames: int) -> int:
    """Frames of the longest clip that the plan makes, which leaves no short rests."""
    return clip_frames + clip_frames // 2 + 1


def room(
    camera: Camera, *, clip_frames: int, window: int, batch: int, lanes: int, ahead: int, spare: int, kept: int
) -> Room:
    """Memory of one camera, in pictures.

    Args:
        clip_frames: of the plan; a clip is at most one and a half times as long.
        window: the decoded window of each lane, in frames. lanes: streams of the consumer.
        batch: samples of a batch, which are held until it is whole; of how many lanes they come is not known.
        ahead: clips that may be held beyond the window. spare: those that may be decoded beyond it.
        kept: pictures to keep for the next epoch.
    """
    longest = longest_clip(clip_frames)
    extra = reach(camera)
    # A sample leaves at most `window` places after its clip came, so clips of window + 2 clips of places are live.
    places = lanes * (window + 2 * longest) + batch
    clips = math.ceil(places / max(1, clip_frames // 2)) + 3 * lanes
    shown = max(lanes * window, batch)
    budget = shown + math.ceil(shown / clip_frames) * extra + spare * (longest + extra)
    capacity = places + (clips + ahead) * extra + ahead * longest + budget
    return Room(max(budget, kept), capacity + kept)
