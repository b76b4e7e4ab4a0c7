"""Which picture of a video belongs to which row of an episode.

Never `index / fps`, never a rounded float. Where a file presents exactly as many pictures as the episodes stored
in it have rows, the order decides, and the clocks are only checked. Where the counts differ, the clocks decide
within `tolerance_s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

from robostream.errors import PictureMatchError
from robostream.mp4 import SampleTable

Int = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]
Clock = Literal["check", "index"]

MISSING = -1
_RATE_SLACK = 0.005  # share by which a rate may differ that clocks are at odds with
_OTHER_RATE = 0.025  # share by which rates differ that can't be meant to be the same, as 29 and 30 do


@dataclass(frozen=True)
class EpisodeVideo:
    """Where an episode's pictures are: its part of one MP4.

    name: the file, for messages. episode: index of the episode. length: its rows. base: rows of the episodes that
    lie before it in the file. rows_in_file: rows of all episodes in the file. from_timestamp, until: seconds in the
    file at which it and the next episode begin, as the metadata says.
    """

    name: str
    episode: int
    length: int
    base: int
    rows_in_file: int
    from_timestamp: float
    until: float


@dataclass(frozen=True, eq=False)
class Matched:
    """positions: int64 [length], the picture of each row in presentation order, MISSING where there is none.

    drifted: the order decided although the clocks differ by more than the tolerance. problem: why rows are MISSING.
    """

    positions: Int
    drifted: bool = False
    problem: PictureMatchError | None = None


def match_pictures(
    video: EpisodeVideo,
    table: SampleTable,
    times: Float | None,
    fps: Fraction,
    tolerance_s: float,
    clock: Clock,
) -> Matched:
    """Find the picture of every row of an episode.

    Args:
        video: the episode's part of the file.
        table: the file's index.
        times: float64 [length], the rows' timestamps in seconds from the episode's start; None if not stored.
        fps: the dataset's, as declared.
        tolerance_s: how far a picture's time may lie from the row's.
        clock: "check" compares the rows' clock with the video's; "index" takes picture k for row k.

    Raises:
        PictureMatchError: the rows' clock contradicts the video's, or has no value, or the declared fps is another one.
    """
    pictures = len(table.presented)
    if clock == "index" or times is None:
        return _by_index(video, pictures)
    _check_clock(video, table, times, fps)
    wanted = video.from_timestamp + times
    # Clocks stored as float32 are no finer than this.
    slack = tolerance_s + float(np.spacing(np.float32(video.from_timestamp + video.length / fps)))
    if pictures != video.rows_in_file:
        return _by_time(video, table, wanted, slack, fps)
    positions = np.arange(video.base, video.base + video.length)
    found = table.pts[table.presented[positions]] / table.timescale
    if (abs(found - wanted) <= slack).all():
        return Matched(positions)
    _check_rate(video, table, fps, _RATE_SLACK)
    _check_steps(video, found, fps)
    regular = np.arange(video.length) / float(fps)
    if (abs(times - regular) > slack).any():
        raise _clock_error(video, times, regular, found - video.from_timestamp)
    return Matched(positions, drifted=True)


def _by_index(video: EpisodeVideo, pictures: int) -> Matched:
    positions = np.arange(video.base, video.base + video.length)
    if pictures == video.rows_in_file:
        return Matched(positions)
    counts = f"{pictures} pictures for {video.rows_in_file} rows"
    if video.rows_in_file != video.length:
        raise PictureMatchError(
            f"{video.name}: {counts} of several episodes, so the order alone can't tell where episode "
            f'{video.episode} begins. Leave out timestamps="index", or repair the file.'
        )
    first_missing = max(pictures - video.base, 0)
    positions[first_missing:] = MISSING
    if first_missing >= video.length:
        return Matched(positions)
    return Matched(positions, problem=_missing_error(video, counts, first_missing, "there is no such picture"))


def _by_time(video: EpisodeVideo, table: SampleTable, wanted: Float, slack: float, fps: Fraction) -> Matched:
    pts = table.pts[table.presented] / table.timescale
    # Only the episode's own pictures: where it lacks some, the next one's begin at just the times they should have.
    bounds = np.array([video.from_timestamp, video.until]) - 0.5 / float(fps)
    first, stop = np.searchsorted(pts, bounds).tolist()
    counts = f"{len(pts)} pictures for {video.rows_in_file} rows"
    if first == stop:
        missing = np.full(len(wanted), MISSING)
        return Matched(missing, problem=_missing_error(video, counts, 0, "no picture lies within the episode's time"))
    after = first + np.searchsorted(pts[first:stop], wanted).clip(0, stop - first - 1)
    before = np.maximum(after - 1, first)
    nearest = np.where(abs(pts[before] - wanted) <= abs(pts[after] - wanted), before, after)
    far = abs(pts[nearest] - wanted) > slack
    positions = np.where(far, MISSING, nearest)
    if not far.any():
        return Matched(positions)
    k = int(np.argmax(far))
    detail = f"wanted time {wanted[k]:.4f} s, the nearest picture is at {pts[nearest[k]]:.4f} s"
    return Matched(positions, problem=_missing_error(video, counts, k, detail))


def _missing_error(video: EpisodeVideo, counts: str, frame: int, detail: str) -> PictureMatchError:
    return PictureMatchError(
        f"{video.name}: no picture for episode {video.episode}, frame {frame}: {detail}. The file has {counts}. "
        f'Re-encode or repair the file, leave the episode out with episodes=, or pass on_error="skip" to leave '
        f"out the rows without a picture."
    )


def _check_clock(video: EpisodeVideo, table: SampleTable, times: Float, fps: Fraction) -> None:
    """Rows have a clock, and where it agrees with the video's on another rate than the declared one, that is wrong:
    windows would show other rows than they ask for. Real clocks are off by less, or irregular."""
    without = ~np.isfinite(times)
    if without.any():
        k = int(np.argmax(without))
        raise PictureMatchError(
            f"{video.name}: the timestamp of episode {video.episode}, frame {k} is {times[k]}, so there is no telling "
            f'its picture. Repair the rows, leave the episode out with episodes=, or pass timestamps="index" if '
            f"picture k belongs to row k."
        )
    steps = len(times) - 1
    elapsed = float(times[-1] - times[0]) * float(fps)
    if steps > 0 and abs(elapsed / steps - 1) > _OTHER_RATE:
        _check_rate(video, table, fps, _OTHER_RATE)


def _check_rate(video: EpisodeVideo, table: SampleTable, fps: Fraction, slack: float) -> None:
    rate = table.frame_rate
    if rate and abs(float(rate / fps) - 1) > slack:
        raise PictureMatchError(
            f"{video.name}: info.json declares {float(fps):g} fps, but the video has {float(rate):g} fps (found at "
            f'episode {video.episode}). Correct the declared fps, or pass timestamps="index" to take picture k for '
            f"row k."
        )


def _check_steps(video: EpisodeVideo, found: Float, fps: Fraction) -> None:
    """Late pictures are accepted in order only where they follow each other as they should."""
    steps = np.diff(found) * float(fps)
    if (abs(steps - 1) > 0.5).any():
        k = int(np.argmax(abs(steps - 1)))
        raise PictureMatchError(
            f"{video.name}: the times of the pictures of episode {video.episode} are damaged: picture {k} is at "
            f"{found[k]:.4f} s and picture {k + 1} at {found[k + 1]:.4f} s, at {float(fps):g} fps. Re-encode the file, "
            f'leave the episode out with episodes=, or pass timestamps="index" if their order is right.'
        )


def _clock_error(video: EpisodeVideo, times: Float, regular: Float, found: Float) -> PictureMatchError:
    if abs((times - times[0]) - regular).max() <= abs(times - regular).min() / 2:
        what = f"the rows' clock starts at {times[0]:.4f} s instead of 0"
    else:
        step = np.diff(times)
        what = (
            f"the rows' clock is not regular (steps of {step.min():.4f} to {step.max():.4f} s, up to "
            f"{abs(times - regular).max():.4f} s off)"
        )
    k = int(np.argmax(abs(times - found)))
    return PictureMatchError(
        f"{video.name}: {what}, while the video has as many pictures as rows. Episode {video.episode}, frame {k}: "
        f"row at {times[k]:.4f} s, picture {k} at {found[k]:.4f} s. If picture k belongs to row k, pass "
        f'timestamps="index".'
    )
