"""delta_timestamps → offsets, clamped rows and padding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robostream.errors import WindowError
from robostream.windows import Window, reach, resolve_windows, window_rows

KEYS = ["action", "observation.state"]


def _offsets(seconds: list[float], fps: Fraction | float, tolerance_s: float = 1e-4) -> list[int]:
    offsets = resolve_windows({"action": seconds}, KEYS, fps, tolerance_s)["action"].offsets
    return [int(offset) for offset in offsets]


def test_offsets_become_frames_in_the_order_asked() -> None:
    assert _offsets([-0.06666666666666667, 0.0, 1 / 30, 20 / 30, -0.1], 30) == [-2, 0, 1, 20, -3]
    assert _offsets([0, 1], 30) == [0, 30]
    assert _offsets([np.float32(0.5)], 10) == [5]


def test_a_broadcast_rate_keeps_its_grid_over_long_offsets() -> None:
    rate = Fraction(30000, 1001)
    assert _offsets([k * 1001 / 30000 for k in (-3000, -1, 7, 30000)], rate) == [-3000, -1, 7, 30000]


def test_the_tolerance_is_in_seconds() -> None:
    assert _offsets([0.10009], 10) == [1]
    with pytest.raises(WindowError):
        _offsets([0.10011], 10)
    assert _offsets([0.1049], 10, tolerance_s=0.005) == [1]
    assert _offsets([0.7, -0.3], 10, tolerance_s=0.0) == [7, -3]


def test_no_windows() -> None:
    assert resolve_windows(None, KEYS, 30, 1e-4) == {}
    assert resolve_windows({}, KEYS, 30, 1e-4) == {}


def test_an_offset_off_the_grid_names_key_offset_fps_and_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'action'.*0\.05 s.*30 fps.*nearest is 0\.06666\d* s \(2 frames\)"):
        _offsets([0.0, 0.05], 30)


def test_an_unknown_key_is_named_with_the_known_ones() -> None:
    with pytest.raises(WindowError, match=r"'actions'.*action, observation\.state"):
        resolve_windows({"actions": [0.0]}, KEYS, 30, 1e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "0.1", None, 1e300])
def test_what_is_no_offset_is_named(bad: object) -> None:
    with pytest.raises(WindowError, match=r"'action'\].*is not an offset in seconds"):
        resolve_windows({"action": [bad]}, KEYS, 30, 1e-4)  # type: ignore[list-item]


def test_empty_lists_and_bare_numbers_are_refused() -> None:
    with pytest.raises(WindowError, match=r"'action'.*empty"):
        _offsets([], 30)
    with pytest.raises(WindowError, match=r"'action'.*list of seconds, not 0\.1"):
        resolve_windows({"action": 0.1}, KEYS, 30, 1e-4)  # type: ignore[dict-item]


def test_steps_outside_repeat_the_boundary_and_are_marked() -> None:
    rows, is_pad = window_rows(np.array([0, 2, 4]), np.array([-3, 0, 1]), 5)
    assert rows.dtype == np.int64
    assert rows.tolist() == [[0, 0, 1], [0, 2, 3], [1, 4, 4]]
    assert is_pad.tolist() == [[True, False, False], [True, False, False], [False, False, True]]


@given(
    length=st.integers(1, 40),
    anchor=st.integers(0, 39),
    offsets=st.lists(st.integers(-60, 60), min_size=1, max_size=8),
)
def test_rows_stay_in_the_episode(length: int, anchor: int, offsets: list[int]) -> None:
    anchor %= length
    rows, is_pad = window_rows(np.array([anchor]), np.array(offsets), length)
    for row, pad, offset in zip(rows[0], is_pad[0], offsets, strict=True):
        assert row == min(max(anchor + offset, 0), length - 1)
        assert pad == (not 0 <= anchor + offset < length)


def test_reach_counts_frames_back_and_forward() -> None:
    def window(*offsets: int) -> Window:
        return Window("action", np.array(offsets))

    assert reach([]) == (0, 0)
    assert reach([window(3, 5)]) == (0, 5)
    assert reach([window(-4)]) == (4, 0)
    assert reach([window(-4, 0), window(2, -7)]) == (7, 2)
