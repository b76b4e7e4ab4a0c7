"""The sizes that are settled when a dataset is opened."""

from __future__ import annotations

import numpy as np
import pytest

from robostream.errors import SettingError
from robostream.fetch import Camera
from robostream.mp4 import SampleTable
from robostream.sizing import settle


def coded(gop: int) -> SampleTable:
    """The sample table of 1,000 frames, of which every `gop`-th is a keyframe."""
    time = np.arange(1000)
    return SampleTable(
        codec="av1",
        width=8,
        height=8,
        extradata=(b"",),
        colour=(b"",),
        timescale=1000,
        offset=time * 500,
        size=np.full(1000, 500),
        dts=time,
        pts=time,
        keyframe=time % gop == 0,
        description=np.zeros(1000, np.int16),
        presented=time,
        duration=1000,
        moov_at_head=True,
        bytes_read=0,
    )


def clip_frames(buffer_size: int, reach: int = 0, asked: int | None = None, gop: int = 1) -> int:
    offsets = np.arange(-reach, 1) if reach else None
    camera = Camera("observation.images.front", True, (8, 8, 3), offsets)
    return settle([camera], {camera.key: coded(gop)}, buffer_size=buffer_size, clip_frames=asked).clip_frames


@pytest.mark.parametrize(("buffer_size", "expected"), [(1, 32), (512, 32), (800, 50), (1000, 62), (9000, 64)])
def test_a_clip_is_a_sixteenth_of_the_decoded_window_within_bounds(buffer_size: int, expected: int) -> None:
    assert clip_frames(buffer_size) == expected


@pytest.mark.parametrize(("buffer_size", "reach", "expected"), [(1000, 10, 62), (1000, 30, 120), (1000, 80, 250)])
def test_long_windows_make_clips_longer_up_to_a_quarter_of_the_decoded_window(
    buffer_size: int, reach: int, expected: int
) -> None:
    assert clip_frames(buffer_size, reach) == expected


@pytest.mark.parametrize(("buffer_size", "gop", "expected"), [(1000, 2, 62), (1000, 30, 60), (1000, 50, 50)])
def test_a_clip_is_whole_gops(buffer_size: int, gop: int, expected: int) -> None:
    assert clip_frames(buffer_size, gop=gop) == expected


@pytest.mark.parametrize(("buffer_size", "gop", "expected"), [(250, 30, 60), (1000, 250, 250), (250, 20, 40)])
def test_no_clip_is_shorter_than_its_minimum_to_fit_gops(buffer_size: int, gop: int, expected: int) -> None:
    assert clip_frames(buffer_size, gop=gop) == expected


def test_a_length_that_was_asked_for_holds() -> None:
    assert clip_frames(1000, 30, asked=7) == 7
    with pytest.raises(SettingError, match="clip_frames=0"):
        clip_frames(1000, asked=0)
