"""Clocks of rows and videos that drift, contradict each other or follow a wall clock: which picture is a row's."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from cases import (
    CAM0,
    CAM1,
    STATE,
    Reference,
    change_info,
    check_all,
    check_pairing,
    codes,
    places,
    stream,
    video_path,
    write,
)

from robostream import StreamingLeRobotDataset
from robostream.errors import PictureMatchError
from robostream.pictures import EpisodeVideo, match_pictures

Float32 = npt.NDArray[np.float32]

# Long joined files -----------------------------------------------------------------------------------------------

JOINED = [288] * 50
DRIFTED = 49  # all but the first


@pytest.fixture(scope="module")
def float32_sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fifty episodes in one video, their starts written as a running float32 sum."""
    settings = {"fps": 30, "cameras": 1, "episodes_per_video_file": 50, "float32_sums": True}
    return write(tmp_path_factory.mktemp("sums"), JOINED, **settings)


@pytest.fixture(scope="module")
def late_joins(float32_sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with joins that are a little long, so that the last episode is nearly a frame late."""
    root = tmp_path_factory.mktemp("late")
    shutil.copytree(float32_sums, root, dirs_exist_ok=True)
    with av.open(str(video_path(float32_sums))) as source, av.open(str(video_path(root)), "w") as target:
        video = source.streams.video[0]
        stream = target.add_stream_from_template(video)
        stream.time_base = video.time_base
        for number, packet in enumerate(packet for packet in source.demux(video) if packet.size):
            assert packet.pts is not None
            assert packet.dts is not None
            assert video.time_base is not None
            delay = round(Fraction(99, 49 * 100 * 30) * (number // 288) / video.time_base)
            packet.pts += delay
            packet.dts += delay
            packet.stream = stream
            target.mux(packet)
    return root


def test_starts_summed_in_float32_are_exact(float32_sums: Path) -> None:
    table = pq.read_table(float32_sums / "meta/episodes/chunk-000/file-000.parquet")
    starts = table[f"videos/{CAM0}/from_timestamp"].to_numpy()
    assert 1e-5 < abs(starts - np.arange(50) * 9.6).max() < 1e-3
    dataset = stream(float32_sums)
    assert sorted(check_pairing(sample, [CAM0]) for sample in dataset) == places(JOINED)


def test_joins_that_drift_nearly_a_frame_are_exact_counted_and_warned_of_once(
    late_joins: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = stream(late_joins)
    with caplog.at_level(logging.WARNING, logger="robostream"):
        assert sorted(check_pairing(sample, [CAM0]) for sample in dataset) == places(JOINED)
        assert sum(1 for _ in dataset) == len(places(JOINED))
    assert dataset.metrics()["episodes_drifted"] == DRIFTED  # each counts once
    assert [record.name for record in caplog.records] == ["robostream"]
    message = caplog.records[0].getMessage()
    assert "file-000.mp4" in message
    assert "drifts" in message
    assert "metrics()" in message


def test_windows_are_exact_where_joins_drift(late_joins: Path) -> None:
    offsets = [-0.1, 0.0, 0.1]
    dataset = stream(late_joins, episodes=[1, 49], delta_timestamps={CAM0: offsets, STATE: offsets})
    seen = []
    for sample in dataset:
        seen.append((int(sample["episode_index"]), int(sample["frame_index"])))
        shown = [min(max(seen[-1][1] + step, 0), 287) for step in (-3, 0, 3)]
        assert codes(sample[CAM0]) == [(0, seen[-1][0], frame) for frame in shown]
        assert sample[STATE][:, -1].tolist() == shown
    assert sorted(seen) == places(JOINED, [1, 49])


# Frame rates -----------------------------------------------------------------------------------------------------


def test_a_wrong_declared_rate_is_reported_with_both_at_the_first_touch(tmp_path: Path) -> None:
    root = write(tmp_path, [40, 40], fps=30, declared_fps=29)
    dataset = stream(root)
    with pytest.raises(PictureMatchError, match=r"29 fps.*30 fps") as caught:
        next(iter(dataset))
    assert "file-000.mp4" in str(caught.value)
    assert "info.json" in str(caught.value)
    with pytest.raises(PictureMatchError, match=r"29 fps.*30 fps"):
        dataset[50]
    by_index = stream(root, timestamps="index")
    assert sorted(check_pairing(sample) for sample in by_index) == places([40, 40])


@pytest.mark.parametrize("declared", [29, 15, 60])
def test_a_wrong_declared_rate_is_reported_where_rows_and_pictures_agree(tmp_path: Path, declared: int) -> None:
    root = write(tmp_path, [40, 3], fps=30)
    change_info(root, fps=declared)
    with pytest.raises(PictureMatchError, match=rf"declares {declared} fps.*30 fps"):
        next(iter(stream(root)))
    with pytest.raises(PictureMatchError, match=rf"declares {declared} fps.*30 fps"):
        stream(root)[41]


def test_a_clock_that_is_a_little_fast_is_no_other_rate(tmp_path: Path) -> None:
    root = write(tmp_path, [40, 30], fps=30)
    change_info(root, fps=29.5)
    assert sorted(check_pairing(sample) for sample in stream(root)) == places([40, 30])


@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_a_broadcast_rate_is_exact(tmp_path: Path, codec: str) -> None:
    root = write(tmp_path, [300, 100], fps=Fraction(30000, 1001), codec=codec, cameras=1)
    offsets = [-1001 * 20 / 30000, 0.0, 1001 / 30000]
    windows = {CAM0: offsets, STATE: offsets}
    dataset = stream(root, delta_timestamps=windows)
    assert dataset.meta.info.fps == Fraction(30000, 1001)
    assert len(check_all(dataset, Reference(root), windows)) == 400
    assert "episodes_drifted" not in dataset.metrics()


def test_a_rounded_broadcast_rate_is_exact(tmp_path: Path) -> None:
    root = write(tmp_path, [300], fps=Fraction(30000, 1001), cameras=1)
    change_info(root, fps=29.97)
    assert sorted(check_pairing(sample, [CAM0]) for sample in stream(root)) == places([300])


# Rows with another clock -----------------------------------------------------------------------------------------


def wall_clock(episode: int, length: int) -> Float32:
    """Steps of 49 to 352 ms around 100 ms, up to about two seconds off."""
    rng = np.random.default_rng(episode)
    steps = rng.uniform(0.049, 0.1, length)
    steps[rng.permutation(length)[: length // 8]] = 0.352
    steps[:2] = 0.049, 0.352
    return np.cumsum(np.concatenate([[0.0], steps[:-1]])).astype(np.float32)


def late_clock(episode: int, length: int) -> Float32:
    return ((np.arange(length) + 1) / 10).astype(np.float32)


LENGTHS = [60, 45]
CLOCKS: dict[str, tuple[Any, list[str]]] = {
    "wall": (wall_clock, ["not regular", "0.0490 to 0.3520 s"]),
    "late": (late_clock, ["starts at 0.1000 s instead of 0"]),
}


@pytest.mark.parametrize(("clock", "words"), CLOCKS.values(), ids=CLOCKS.keys())
@pytest.mark.parametrize("per_file", [1, 2])
def test_another_clock_is_an_error_that_names_the_way_out(
    tmp_path: Path, clock: Any, words: list[str], per_file: int
) -> None:
    root = write(tmp_path, LENGTHS, timestamps=clock, episodes_per_video_file=per_file)
    looks: list[Callable[[StreamingLeRobotDataset], Any]] = [lambda d: next(iter(d)), lambda d: d[70]]
    for look in looks:
        with pytest.raises(PictureMatchError) as caught:
            look(stream(root))
        message = str(caught.value)
        for word in [*words, 'timestamps="index"', ".mp4", "as many pictures as rows"]:
            assert word in message
    assert [check_pairing(sample) for sample in stream(root, timestamps="index", shuffle=False)] == places(LENGTHS)


@pytest.mark.parametrize("clock", [wall_clock, late_clock])
def test_windows_by_index_take_the_pictures_of_the_windows_rows(tmp_path: Path, clock: Any) -> None:
    root = write(tmp_path, LENGTHS, timestamps=clock)
    windows = {CAM0: [-0.5, 0.0, 0.3], CAM1: [-6.0, 6.0], STATE: [-0.1, 0.1]}
    dataset = stream(root, timestamps="index", delta_timestamps=windows)
    assert sorted(check_all(dataset, Reference(root), windows)) == list(range(sum(LENGTHS)))


def test_one_episode_with_another_clock_does_not_stop_the_others(tmp_path: Path) -> None:
    def mixed(episode: int, length: int) -> Float32:
        return wall_clock(episode, length) if episode == 1 else (np.arange(length) / 10).astype(np.float32)

    root = write(tmp_path, [30, 30, 30], timestamps=mixed)
    assert sorted(check_pairing(s) for s in stream(root, episodes=[0, 2])) == places([30] * 3, [0, 2])
    with pytest.raises(PictureMatchError, match="Episode 1"):
        list(stream(root))
    skipping = stream(root, on_error="skip")
    assert sorted(check_pairing(s) for s in skipping) == places([30] * 3, [0, 2])
    skipping.close()
    assert skipping.metrics()["samples_skipped"] == 30


def test_clocks_within_the_tolerance_are_no_matter(tmp_path: Path) -> None:
    def jitter(episode: int, length: int) -> Float32:
        return (np.arange(length) / 10 + np.random.default_rng(0).uniform(-9e-5, 9e-5, length)).astype(np.float32)

    root = write(tmp_path, [50], timestamps=jitter)
    dataset = stream(root)
    assert sorted(check_pairing(sample) for sample in dataset) == places([50])
    assert "episodes_drifted" not in dataset.metrics()
    with pytest.raises(PictureMatchError, match="not regular"):
        next(iter(stream(root, tolerance_s=1e-5)))


def test_a_wide_tolerance_holds_a_wall_clock(tmp_path: Path) -> None:
    root = write(tmp_path, [60], timestamps=wall_clock)
    assert sorted(check_pairing(sample) for sample in stream(root, tolerance_s=10.0)) == places([60])


def test_pictures_whose_times_jump_are_refused(tmp_path: Path) -> None:
    """As many pictures as rows, but some with the time of another: their order is in doubt."""
    video = EpisodeVideo("video.mp4", episode=1, length=4, base=1, rows_in_file=5, from_timestamp=0.1, until=0.5)
    pts = np.array([0, 1, 1024, 1536, 2560])
    table = SimpleNamespace(pts=pts, presented=np.arange(5), timescale=5120, frame_rate=Fraction(10))
    with pytest.raises(PictureMatchError, match=r"damaged: picture 2 is at 0\.3000 s and picture 3 at 0\.5000 s"):
        match_pictures(video, table, np.arange(4) / 10, Fraction(10), 1e-4, "check")  # type: ignore[arg-type]


@pytest.mark.parametrize("rows_in_file", [4, 9])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_clock_without_values_is_refused(rows_in_file: int, value: float) -> None:
    video = EpisodeVideo("video.mp4", episode=7, length=4, base=0, rows_in_file=rows_in_file, from_timestamp=0, until=9)
    table = SimpleNamespace(pts=np.arange(4), presented=np.arange(4), timescale=10, frame_rate=Fraction(10))
    times = np.array([0.0, 0.1, value, 0.3])
    with pytest.raises(PictureMatchError, match=rf"video\.mp4.*episode 7, frame 2 is {value}.*timestamps=\"index\""):
        match_pictures(video, table, times, Fraction(10), 1e-4, "check")  # type: ignore[arg-type]


def test_by_index_no_clock_is_needed() -> None:
    video = EpisodeVideo("video.mp4", episode=7, length=4, base=0, rows_in_file=4, from_timestamp=0, until=9)
    table = SimpleNamespace(pts=np.arange(4), presented=np.arange(4), timescale=10, frame_rate=Fraction(10))
    times = np.array([0.0, 0.1, np.nan, np.inf])
    matched = match_pictures(video, table, times, Fraction(10), 1e-4, "index")  # type: ignore[arg-type]
    assert matched.positions.tolist() == [0, 1, 2, 3]


def test_rows_without_a_clock_are_left_out_on_demand(tmp_path: Path) -> None:
    def broken(episode: int, length: int) -> Float32:
        return np.where(episode == 1, np.nan, np.arange(length) / 10).astype(np.float32)

    root = write(tmp_path, [30, 20, 10], timestamps=broken)
    with pytest.raises(PictureMatchError, match="episode 1, frame 0 is nan"):
        list(stream(root))
    assert sorted(check_pairing(s) for s in stream(root, on_error="skip")) == places([30, 20, 10], [0, 2])
