"""Every sample's pictures are its row's, wherever files, episodes and windows begin and end."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from cases import (
    ACTION,
    CAM0,
    CAM1,
    STATE,
    Reference,
    check_all,
    check_pairing,
    codes,
    places,
    stream,
    video_path,
    write,
)

from robostream.errors import IterationEndedError, SelectionError, WindowError
from robostream.source import LocalSource


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes of different lengths, two a video file, three a data file."""
    root = tmp_path_factory.mktemp("six")
    return write(root, SIX, episodes_per_video_file=2, episodes_per_data_file=3)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("long"), [300, 300], fps=30)


@cache
def reference(root: Path) -> Reference:
    return Reference(root)


SIX = [12, 7, 15, 9, 11, 14]


# Files -----------------------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Any] = {
    "two episodes a file": 2,
    "cameras start new files at different episodes": {CAM0: [1, 3], CAM1: [2, 2]},
    "one camera in one file, the other in four": {CAM0: 4, CAM1: 1},
}


@pytest.mark.parametrize(("chunks_size", "shuffle"), [(1, True), (1000, True), (1000, False)])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_each_camera_is_found_by_its_own_files(tmp_path: Path, layout: Any, chunks_size: int, shuffle: bool) -> None:
    root = write(tmp_path, [10] * 4, episodes_per_video_file=layout, chunks_size=chunks_size, episodes_per_data_file=3)
    dataset = stream(root, shuffle=shuffle)
    seen = [check_pairing(sample) for sample in dataset]
    assert sorted(seen) == places([10] * 4)
    assert [check_pairing(dataset[i]) for i in range(40)] == places([10] * 4)


def test_an_index_is_an_integer(tmp_path: Path) -> None:
    dataset = stream(write(tmp_path, [10]))
    for index in (np.int32(7), np.uint8(7), np.int64(-3)):
        assert check_pairing(dataset[index]) == (0, 7)
    wrong: list[Any] = [1.5, "a", slice(0, 2), None, [1]]
    for index in wrong:
        with pytest.raises(TypeError, match="must be an integer, not"):
            dataset[index]


def test_of_two_iterations_at_once_the_older_says_why_it_ends(tmp_path: Path) -> None:
    dataset = stream(write(tmp_path, [400], cameras=1), buffer_size=20, clip_frames=5)
    with pytest.raises(IterationEndedError, match=r"newer one of the same dataset.*open the dataset twice"):
        list(zip(dataset, dataset, strict=False))
    assert len(list(dataset)) == 400
    dataset.close()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_windows_stop_at_the_ends_of_episodes_inside_a_file(tmp_path: Path, layout: Any) -> None:
    root = write(tmp_path, [10] * 4, episodes_per_video_file=layout)
    offsets = [-0.3, -0.1, 0.0, 0.2]
    windows = {CAM0: offsets, CAM1: offsets, STATE: offsets}
    assert sorted(check_all(stream(root, delta_timestamps=windows), Reference(root), windows)) == list(range(40))


# Windows ---------------------------------------------------------------------------------------------------------

LONG_WINDOWS: dict[str, Any] = {
    "three and a half seconds both ways": {STATE: [-3.5, 3.5], ACTION: [-3.5, 0.0, 3.5], CAM0: [-3.5, 3.5]},
    "dense over more than a hundred steps": {ACTION: [k / 30 for k in range(-20, 105)], CAM1: [0.0]},
    "sparse, unordered, repeated": {STATE: [1.0, -2.0, 0.0, 0.0], CAM1: [0.5, -0.5, -0.5]},
    "longer than the episode": {STATE: [-11.0, 0.0, 12.0], CAM0: [-20.0, 10.0], CAM1: [15.0]},
}


@pytest.mark.parametrize("windows", LONG_WINDOWS.values(), ids=LONG_WINDOWS.keys())
def test_long_windows_equal_the_slow_reader_for_every_frame(long: Path, windows: Any) -> None:
    dataset = stream(long, delta_timestamps=windows, buffer_size=100)
    seen = check_all(dataset, reference(long), windows)
    assert sorted(seen) == list(range(600))
    assert seen != sorted(seen)
    in_order = stream(long, delta_timestamps=windows, shuffle=False, episodes=[1])
    assert check_all(in_order, reference(long), windows) == list(range(300, 600))


def test_offsets_off_the_grid_name_key_offset_and_fps(long: Path) -> None:
    with pytest.raises(WindowError, match=rf"{STATE}.*0\.05 .*30 fps"):
        stream(long, delta_timestamps={STATE: [0.05]})


# Selected episodes -----------------------------------------------------------------------------------------------


class Watched(LocalSource):
    """A local folder that remembers which files' contents were read, and which ranges of them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.ranges: list[tuple[str, int, int]] = []

    def read_ranges(self, path: str, starts: Any, lengths: Any) -> list[bytes]:
        self.ranges += [(path, start, length) for start, length in zip(starts, lengths, strict=True)]
        return super().read_ranges(path, starts, lengths)

    def open(self, path: str) -> Any:
        self.ranges.append((path, -1, -1))
        return super().open(path)


@pytest.mark.parametrize("shuffle", [False, True])
def test_only_the_selected_episodes_come_in_data_order(six: Path, shuffle: bool) -> None:
    dataset = stream(six, episodes=[4, 1], shuffle=shuffle)
    assert (dataset.num_episodes, dataset.num_frames, len(dataset)) == (2, SIX[1] + SIX[4], SIX[1] + SIX[4])
    seen = [check_pairing(sample) for sample in dataset]
    assert sorted(seen) == places(SIX, [1, 4])
    assert (seen == sorted(seen)) != shuffle
    assert [check_pairing(dataset[i]) for i in range(len(seen))] == places(SIX, [1, 4])
    with pytest.raises(IndexError, match="18"):
        dataset[18]


def test_only_the_selected_episodes_files_are_read(six: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(six)
    monkeypatch.setattr("robostream.source.roots._source", lambda root, access: watched)
    dataset = stream(six, episodes=[4, 1])
    assert len(list(dataset)) == SIX[1] + SIX[4]
    data = {path for path, _, _ in watched.ranges if path.startswith(("data/", "videos/"))}
    assert data == {
        *(f"data/chunk-000/file-00{file}.parquet" for file in (0, 1)),
        *(f"videos/{camera}/chunk-000/file-00{file}.mp4" for camera in (CAM0, CAM1) for file in (0, 2)),
    }


def coded_bytes(path: Path, first: int, count: int) -> tuple[int, int]:
    """Where `count` frames of a file without reordering lie, from the one numbered `first` on."""
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size][first : first + count]
    assert packets[0].pos is not None
    assert packets[-1].pos is not None
    return packets[0].pos, packets[-1].pos + packets[-1].size


def test_only_the_selected_episodes_bytes_are_read(six: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(six)
    monkeypatch.setattr("robostream.source.roots._source", lambda root, access: watched)
    assert len(list(stream(six, episodes=[4, 1]))) == SIX[1] + SIX[4]
    for camera, number in itertools.product((CAM0, CAM1), (0, 2)):
        path = video_path(six, camera, number)
        first_frame = coded_bytes(path, 0, 1)[0]
        allowed = coded_bytes(path, SIX[0], SIX[1]) if number == 0 else coded_bytes(path, 0, SIX[4])
        ranges = {(at, at + n) for name, at, n in watched.ranges if six / name == path and at >= first_frame}
        assert min(start for start, _ in ranges) == allowed[0]
        assert max(stop for _, stop in ranges) == allowed[1]


@pytest.mark.parametrize(
    ("episodes", "words"),
    [
        ([], r"episodes=\[\].*0…5"),
        ([1, 1], r"\[1\].*more than once"),
        ([-1], r"\[-1\].*0…5"),
        ([2, 99], r"\[99\].*0…5"),
        ([0.5], r"\[0.5\].*integers"),
        (["1"], r"\['1'\].*integers"),
        ([True], r"\[True\].*integers"),
    ],
)
def test_bad_selections_are_rejected_by_name(six: Path, episodes: list[Any], words: str) -> None:
    with pytest.raises(SelectionError, match=words):
        stream(six, episodes=episodes)


@pytest.mark.parametrize("offsets", [[0.0], [-0.1, 0.0, 0.1]], ids=["one step", "three steps"])
@pytest.mark.parametrize("episodes", [[1], [0, 2, 4]], ids=str)
def test_windows_of_selected_episodes_are_theirs(six: Path, episodes: list[int], offsets: list[float]) -> None:
    windows = dict.fromkeys([STATE, ACTION, CAM0, CAM1], offsets)
    dataset = stream(six, episodes=episodes, delta_timestamps=windows)
    seen = check_all(dataset, reference(six), windows)
    assert len(seen) == len(set(seen)) == sum(SIX[e] for e in episodes)
    padded = {
        (int(sample["episode_index"]), int(sample["frame_index"]))
        for sample in stream(six, episodes=episodes, delta_timestamps=windows)
        if sample[f"{CAM0}_is_pad"].any()
    }
    ends = {(e, frame) for e in episodes for frame in (0, SIX[e] - 1)}
    assert padded == (ends if len(offsets) > 1 else set())


def test_pictures_of_a_window_are_of_the_samples_own_episode(six: Path) -> None:
    offsets = [-1.0, -0.2, 0.0, 0.3, 2.0]
    for sample in stream(six, episodes=[0, 2, 4], delta_timestamps={CAM1: offsets}):
        episode, frame = int(sample["episode_index"]), int(sample["frame_index"])
        shown = [min(max(frame + round(offset * 10), 0), SIX[episode] - 1) for offset in offsets]
        assert codes(sample[CAM1]) == [(1, episode, at) for at in shown]
