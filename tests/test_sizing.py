"""The sizes that are settled when a dataset is opened."""

from __future__ import annotations

import numpy as np
import pytest

from robostream.errors import SettingError
from robostream.fetch import Camera
from robostream.sizing import settle


def clip_frames(buffer_size: int, reach: int = 0, asked: int | None = None) -> int:
    offsets = np.arange(-reach, 1) if reach else None
    camera = Camera("observation.images.front", True, (8, 8, 3), offsets)
    return settle([camera], {}, buffer_size=buffer_size, clip_frames=asked).clip_frames


@pytest.mark.parametrize(("buffer_size", "expected"), [(1, 32), (512, 32), (800, 50), (1000, 62), (9000, 64)])
def test_a_clip_is_a_sixteenth_of_the_decoded_window_within_bounds(buffer_size: int, expected: int) -> None:
    assert clip_frames(buffer_size) == expected


@pytest.mark.parametrize(("buffer_size", "reach", "expected"), [(1000, 10, 62), (1000, 30, 120), (1000, 80, 250)])
def test_long_windows_make_clips_longer_up_to_a_quarter_of_the_decoded_window(
    buffer_size: int, reach: int, expected: int
) -> None:
    assert clip_frames(buffer_size, reach) == expected


def test_a_length_that_was_asked_for_holds() -> None:
    assert clip_frames(1000, 30, asked=7) == 7
    with pytest.raises(SettingError, match="clip_frames=0"):
        clip_frames(1000, asked=0)
