"""Datasets whose files lack pictures, rows or columns, are cut off, corrupt or surrounded by foreign files."""

from __future__ import annotations

import gc
import json
import logging
import shutil
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import (
    ACTION,
    CAM0,
    CAM1,
    STATE,
    change_info,
    check_pairing,
    data_path,
    indices,
    load,
    places,
    read_info,
    rewrite,
    set_column,
    stream,
    video_path,
    write,
)

from robostream.errors import (
    DataFileError,
    DecodeError,
    MetadataError,
    PictureMatchError,
    RobostreamError,
    UnsupportedVersionError,
)
from robostream.parquet import read_footer, read_group
from robostream.source import LocalSource


def refusal(root: Path, kind: type[RobostreamError], **settings: Any) -> str:
    """The message with which reading the dataset ends, the same for iterating and for looking at every frame."""
    before = set(threading.enumerate())
    dataset = stream(root, **settings)
    with pytest.raises(kind) as caught:
        list(dataset)
    assert set(threading.enumerate()) <= before
    with pytest.raises(kind):
        [dataset[i] for i in range(dataset.num_frames)]
    return str(caught.value)


def skipped(root: Path, **settings: Any) -> tuple[list[tuple[int, int]], int]:
    """The rows that come with on_error="skip", each checked, and how many were left out."""
    dataset = stream(root, on_error="skip", **settings)
    seen = (
        [check_pairing(sample) for sample in dataset]
        if "delta_timestamps" not in settings
        else [(int(sample["episode_index"]), int(sample["frame_index"])) for sample in dataset]
    )
    assert len(set(seen)) == len(seen)
    count = int(dataset.metrics().get("samples_skipped", 0))
    dataset.close()
    return sorted(seen), count


# Pictures that are missing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("pictures", [39, 5])
def test_missing_pictures_name_episode_rows_and_pictures(tmp_path: Path, pictures: int, version: str) -> None:
    root = write(tmp_path, [40], video_frames=lambda episode, length: pictures, version=version)
    for settings in ({}, {"timestamps": "index"}):
        message = refusal(root, PictureMatchError, **settings)
        for words in ("episode 0", f"frame {pictures}", f"{pictures} pictures", "40 rows", ".mp4", 'on_error="skip"'):
            assert words in message
        assert skipped(root, **settings) == ([(0, frame) for frame in range(pictures)], 40 - pictures)


@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"buffer_size": 7, "clip_frames": 6}])
def test_pictures_missing_inside_a_file_shift_no_other_episode(tmp_path: Path, settings: dict[str, Any]) -> None:
    counts = [40, 33, 40, 1]
    root = write(tmp_path, [40] * 4, video_frames=lambda episode, length: counts[episode])
    message = refusal(root, PictureMatchError)
    assert "114 pictures for 160 rows" in message
    wanted = [(e, frame) for e in range(4) for frame in range(counts[e])]
    assert skipped(root, **settings) == (wanted, 160 - 114)
    sound = [check_pairing(sample) for sample in stream(root, episodes=[0, 2])]
    assert sorted(sound) == places([40] * 4, [0, 2])
    with pytest.raises(PictureMatchError, match="episode 1, frame 33"):
        list(stream(root, episodes=[1]))


def test_too_many_pictures_are_no_matter(tmp_path: Path) -> None:
    root = write(tmp_path, [20, 20], video_frames=lambda episode, length: length + 3)
    assert sorted(check_pairing(sample) for sample in stream(root)) == places([20, 20])


def test_pictures_missing_by_order_alone_can_be_told_in_one_episode_only(tmp_path: Path) -> None:
    root = write(tmp_path, [20, 20], video_frames=lambda episode, length: length - 1)
    message = refusal(root, PictureMatchError, timestamps="index")
    assert "38 pictures for 40 rows of several episodes" in message


@pytest.mark.parametrize("offsets", [[-0.2, 0.0], [0.0, 0.3], [-0.5, 0.5], [0.0]])
def test_samples_whose_windows_reach_missing_pictures_are_left_out(tmp_path: Path, offsets: list[float]) -> None:
    root = write(tmp_path, [40, 12], video_frames=lambda episode, length: 30 if episode == 0 else length)
    dataset = stream(root, on_error="skip", delta_timestamps={CAM1: offsets})
    wanted = []
    for episode, frame in places([40, 12]):
        last = [40, 12][episode] - 1
        shown = [frame, *(min(max(frame + round(10 * offset), 0), last) for offset in offsets)]
        if episode == 1 or max(shown) < 30:
            wanted.append((episode, frame))
    assert skipped(root, delta_timestamps={CAM1: offsets}) == (wanted, 52 - len(wanted))
    for sample in dataset:
        assert sample[STATE][-1] == sample["frame_index"]


def test_what_is_left_out_is_logged_once_and_counted_in_each_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = write(tmp_path, [40, 40], video_frames=lambda episode, length: 38 if episode == 0 else length, cameras=1)
    dataset = stream(root, on_error="skip", clip_frames=4, buffer_size=8)
    with caplog.at_level(logging.WARNING, logger="robostream"):
        for epoch in range(1, 4):
            assert len(indices(dataset)) == 78
            assert dataset.metrics()["samples_skipped"] == 2 * epoch
    assert len(caplog.records) == 1
    assert "episode 0, frame 38" in caplog.records[0].getMessage()


def test_workers_leave_out_the_same(tmp_path: Path) -> None:
    root = write(tmp_path, [40, 20], video_frames=lambda episode, length: length - 4)
    seen = [check_pairing(sample) for sample in load(stream(root, on_error="skip"), 2)]
    assert sorted(seen) == [place for place in places([40, 20]) if place[1] < [36, 16][place[0]]]


# Corrupt bytes ---------------------------------------------------------------------------------------------------


def spoil(path: Path, frames: Sequence[int]) -> None:
    """Overwrite the coded bytes of some pictures of a video."""
    with av.open(str(path)) as container:
        packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    data = bytearray(path.read_bytes())
    for frame in frames:
        at, size = packets[frame]
        data[at : at + size] = bytes(255 for _ in range(size))
    path.write_bytes(data)


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_a_corrupt_clip_is_named_or_left_out(tmp_path: Path, codec: str, version: str) -> None:
    root = write(tmp_path, [20, 20, 20], codec=codec, version=version)
    path = video_path(root, CAM1) if version == "v3.0" else root / f"videos/chunk-000/{CAM1}/episode_000001.mp4"
    spoil(path, range(20, 40) if version == "v3.0" else range(20))
    message = refusal(root, DecodeError)
    assert "episode 1" in message
    assert path.name in message
    assert CAM1 in message
    assert skipped(root) == (places([20] * 3, [0, 2]), 20)
    without = stream(root, cameras=[CAM0])
    assert sorted(check_pairing(sample, [CAM0]) for sample in without) == places([20] * 3)


def test_one_corrupt_picture_shows_nothing_wrong(tmp_path: Path) -> None:
    root = write(tmp_path, [40], gop=10)
    spoil(video_path(root), [20])
    seen, count = skipped(root, clip_frames=10)
    assert count == 40 - len(seen)
    assert {(0, frame) for frame in (*range(20), *range(30, 40))} <= set(seen)
    assert not {(0, frame) for frame in range(20, 30)} & set(seen)


def test_an_error_in_a_worker_reaches_the_consumer(tmp_path: Path) -> None:
    root = write(tmp_path, [20, 20])
    spoil(video_path(root), range(20, 40))
    with pytest.raises(DecodeError, match="episode 1"):
        list(load(stream(root), 1))


# Columns ---------------------------------------------------------------------------------------------------------


def test_undeclared_columns_are_dropped(tmp_path: Path) -> None:
    root = write(tmp_path, [12, 9])
    ragged = pa.array([list(range(k % 5)) for k in range(21)])
    set_column(data_path(root), "notes", ragged)
    keys = set()
    for sample in stream(root):
        check_pairing(sample)
        keys |= set(sample)
    assert keys == {*read_info(root)["features"], "task"}


@pytest.mark.parametrize("column", [STATE, "index", "task_index"])
def test_a_declared_column_that_is_missing_is_named(tmp_path: Path, column: str) -> None:
    root = write(tmp_path, [12, 9])
    rewrite(data_path(root), lambda table: table.drop_columns([column]))
    message = refusal(root, DataFileError)
    assert str(data_path(root)) in message
    assert f"column {column!r} is declared in info.json but missing" in message
    if column == STATE:
        samples = list(stream(root, features=[ACTION]))
        assert len(samples) == 21
        assert STATE not in samples[0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([[1.0] * 5] * 21), r"holds .* × 5 a row, info.json declares float32 \(6,\)"),
        (pa.array(["x"] * 21), "holds string"),
        (pa.array([[1.0] * 6] * 20 + [None]), "has 1 empty values"),
        (pa.array([[1.0] * 5 + [None]] * 21), "has 21 empty values"),
    ],
)
def test_a_column_of_another_kind_is_named(tmp_path: Path, values: pa.Array, words: str) -> None:
    root = write(tmp_path, [12, 9])
    set_column(data_path(root), STATE, values)
    with pytest.raises(DataFileError, match=rf"file-000.parquet: column '{STATE}' {words}"):
        list(stream(root))


@pytest.mark.parametrize("lost", [slice(5, 6), slice(0, 12), slice(12, 21)])
def test_missing_rows_are_named(tmp_path: Path, lost: slice) -> None:
    root = write(tmp_path, [12, 9])
    keep = [k for k in range(21) if k not in range(21)[lost]]
    rewrite(data_path(root), lambda table: table.take(keep))
    message = refusal(root, DataFileError)
    episode = 0 if (lost.start or 0) < 12 else 1
    assert str(data_path(root)) in message
    assert f"of episode {episode}" in message
    assert skipped(root)[0] == places([12, 9], [1 - episode])


def test_rows_in_another_order_are_put_right(tmp_path: Path) -> None:
    root = write(tmp_path, [12, 9])
    order = [20 - k for k in range(21)]
    rewrite(data_path(root), lambda table: table.take(order))
    assert [check_pairing(sample) for sample in stream(root, shuffle=False)] == places([12, 9])


# Files -----------------------------------------------------------------------------------------------------------


def test_a_missing_video_is_named_at_the_first_touch(tmp_path: Path) -> None:
    root = write(tmp_path, [12, 9, 7], episodes_per_video_file=1)
    video_path(root, CAM1, 2).unlink()
    message = refusal(root, DataFileError)
    assert f"{video_path(root, CAM1, 2)}: no such file" in message
    assert skipped(root) == (places([12, 9]), 7)
    assert sorted(check_pairing(s) for s in stream(root, episodes=[0, 1])) == places([12, 9])
    without = stream(root, cameras=[CAM0])
    assert sorted(check_pairing(sample, [CAM0]) for sample in without) == places([12, 9, 7])


def test_a_missing_first_video_is_named_when_opening(tmp_path: Path) -> None:
    root = write(tmp_path, [12, 9])
    video_path(root, CAM1).unlink()
    with pytest.raises(MetadataError, match=rf"{CAM1}.*{video_path(root, CAM1)}.*cameras=\['{CAM0}'\]"):
        stream(root)


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.9])
def test_a_truncated_table_is_named(tmp_path: Path, kept: float) -> None:
    root = write(tmp_path, [12, 9, 7], episodes_per_data_file=2)
    data = data_path(root, 1).read_bytes()
    data_path(root, 1).write_bytes(data[: int(kept * len(data)) if kept < 1 else int(kept)])
    message = refusal(root, DataFileError)
    assert str(data_path(root, 1)) in message
    assert "not a readable Parquet file" in message
    assert skipped(root) == (places([12, 9]), 7)


def spoil_name(path: Path, old: bytes, new: bytes) -> None:
    """Change a name throughout a Parquet file's footer to one as long."""
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert old in data[begin:]
    path.write_bytes(data[:begin] + data[begin:].replace(old, new))


def test_a_footer_that_would_end_the_process_is_named(tmp_path: Path) -> None:
    """pyarrow throws past Python where it is asked for such an entry of a footer, which ends the process."""
    root = write(tmp_path, [12, 9, 7], episodes_per_data_file=2)
    path = data_path(root, 1)
    sound = path.read_bytes()
    begin = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
    code = f"""if True:
        import sys
        from robostream import StreamingLeRobotDataset
        from robostream.errors import RobostreamError
        sound = open({str(path)!r}, "rb").read()
        found = set()
        for at in range({begin}, len(sound) - 8, 7):
            data = bytearray(sound)
            data[at] ^= 2
            open({str(path)!r}, "wb").write(data)
            try:
                StreamingLeRobotDataset(root={str(root)!r}, num_threads=1, cameras=[])[25]
            except RobostreamError as error:
                found.add(str(error))
        assert len(found) > 10, found
        assert all({str(path)!r} in message for message in found), found
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_reading_a_table_keeps_nobody_alive(tmp_path: Path) -> None:
    root = write(tmp_path, [12])
    path = str(data_path(root, 0).relative_to(root))

    class Caller:
        pass

    def read() -> weakref.ref[Caller]:
        caller = Caller()
        source = LocalSource(root)
        read_group(source, path, read_footer(source, path), 0, ["index"])
        return weakref.ref(caller)

    called = read()
    gc.collect()
    assert called() is None


def test_names_in_a_table_that_are_no_text_are_named(tmp_path: Path) -> None:
    root = write(tmp_path, [12])
    spoil_name(data_path(root, 0), b"frame_index", b"frame\xffindex")
    assert str(data_path(root, 0)) in refusal(root, DataFileError)
    root = write(tmp_path / "other", [12])
    episodes = root / "meta/episodes/chunk-000/file-000.parquet"
    spoil_name(episodes, b"length", b"len\xffth")
    with pytest.raises(MetadataError, match=str(episodes)):
        stream(root)


@pytest.mark.parametrize("faststart", [True, False])
@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.97])
def test_a_truncated_video_is_named(tmp_path: Path, kept: float, faststart: bool) -> None:
    root = write(tmp_path, [12, 9, 7], episodes_per_video_file=2, faststart=faststart)
    path = video_path(root, CAM0, 1)
    data = path.read_bytes()
    path.write_bytes(data[: int(kept * len(data)) if kept < 1 else int(kept)])
    assert str(path) in refusal(root, DataFileError)
    assert skipped(root) == (places([12, 9]), 7)


def test_of_a_video_with_its_index_at_the_end_only_the_tail_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path, [900, 900], faststart=False, cameras=1, texture="heavy", crf=5)
    size = video_path(root).stat().st_size
    read, count = LocalSource.read_ranges, [0]

    def counting(self: LocalSource, path: str, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        count[0] += sum(lengths)
        return read(self, path, starts, lengths)

    monkeypatch.setattr(LocalSource, "read_ranges", counting)
    dataset = stream(root)
    index_bytes = count[0]
    assert 0 < index_bytes < size / 10
    assert check_pairing(dataset[1000], [CAM0]) == (1, 100)
    assert count[0] < size / 5
    assert [check_pairing(s, [CAM0]) for s in stream(root, episodes=[1], shuffle=False)] == places([900, 900], [1])


# Versions, foreign files, networks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "way_out"),
    [
        ("v1.6", "convert_dataset_v1_to_v2.py"),
        ("2.3.0", "convert_dataset_v21_to_v30.py"),
        ("v4.0", "update robostream"),
    ],
)
def test_other_versions_are_refused_in_one_line(tmp_path: Path, version: str, way_out: str) -> None:
    root = write(tmp_path, [3])
    change_info(root, codebase_version=version)
    with pytest.raises(UnsupportedVersionError) as caught:
        stream(root)
    message = str(caught.value)
    assert "\n" not in message
    for words in (repr(version), "v3.0, v2.1, v2.0", way_out):
        assert words in message


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_all_supported_versions_stream_the_same(tmp_path: Path, version: str) -> None:
    root = write(tmp_path, [12, 9, 7], version=version)
    dataset = stream(root, shuffle=False)
    assert [check_pairing(sample) for sample in dataset] == places([12, 9, 7])
    assert [sample["task"] for sample in dataset] == [
        task
        for task, length in zip(
            ("put the gripper on the target", "follow the target", "touch the red disc"), [12, 9, 7], strict=True
        )
        for _ in range(length)
    ]


def test_foreign_files_are_never_counted_in(tmp_path: Path) -> None:
    root = write(tmp_path, [12, 9, 7], episodes_per_data_file=2, episodes_per_video_file=2)
    plain = [check_pairing(sample) for sample in stream(root)]
    (root / "data/chunk-001").mkdir()
    pq.write_table(pa.table({"other": [1, 2]}), root / "data/chunk-001/file-000.parquet")
    shutil.copy(data_path(root, 0), root / "data/chunk-000/file-002.parquet")
    shutil.copy(video_path(root, CAM0, 0), video_path(root, CAM0, 2))
    (video_path(root, CAM1, 7)).write_bytes(b"no video")
    episodes = root / "meta/episodes/chunk-000/file-000.parquet"
    shutil.copy(episodes, root / "meta/episodes/file-000.parquet")
    shutil.copy(episodes, root / "meta/episodes.parquet")
    dataset = stream(root)
    assert (dataset.num_episodes, dataset.num_frames) == (3, 28)
    assert [check_pairing(sample) for sample in dataset] == plain
    shutil.copy(episodes, episodes.with_name("file-001.parquet"))
    with pytest.raises(MetadataError, match=r"episode_index 0 comes twice") as caught:
        stream(root)
    assert "file-000.parquet" in str(caught.value)
    assert "file-001.parquet" in str(caught.value)


def test_episodes_at_the_wrong_data_file_are_named(tmp_path: Path) -> None:
    root = write(tmp_path, [12, 9, 7], episodes_per_data_file=2)
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pd.read_parquet(path)
    table["data/file_index"] = [0, 1, 1]
    table.to_parquet(path)
    message = refusal(root, DataFileError)
    assert f"{data_path(root, 1)}: has no rows of episode 1" in message


def test_a_local_root_makes_no_network_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, [12, 9])
    made: list[str] = []

    def refuse(*arguments: object, **_: object) -> None:
        made.append(repr(arguments))
        raise OSError("network call")

    for name in ("connect", "connect_ex", "sendto", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    dataset = stream(root, repo_id="lerobot/pusht", delta_timestamps={ACTION: [0.0, 0.1]})
    assert len(indices(dataset)) == 21
    assert int(dataset[3]["index"]) == 3
    assert json.dumps(dataset.meta.robot_type) == '"synthetic"'
    assert made == []


def test_reading_a_local_root_imports_no_client(tmp_path: Path) -> None:
    root = write(tmp_path, [3])
    script = (
        "import sys; from robostream import StreamingLeRobotDataset\n"
        f"assert len(list(StreamingLeRobotDataset(root={str(root)!r}))) == 3\n"
        "print([m for m in ('huggingface_hub', 'fsspec.implementations.http', 'requests') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_repeating_what_cannot_be_read_at_all_ends(tmp_path: Path) -> None:
    root = write(tmp_path, [12, 9])
    for path in root.glob("data/**/*.parquet"):
        path.unlink()
    with pytest.raises(DataFileError, match="a whole epoch had no sample that can be read"):
        next(iter(stream(root, on_error="skip", repeat=True)))


@pytest.mark.parametrize("damage", ["missing", "cut off"])
@pytest.mark.parametrize("camera", [CAM0, CAM1])
def test_a_cameras_first_video_is_skipped_like_any_other(tmp_path: Path, damage: str, camera: str) -> None:
    root = write(tmp_path, [10, 12, 14], episodes_per_video_file=1)
    path = video_path(root, camera, 0)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    dataset = stream(root, on_error="skip")
    assert sorted(indices(dataset)) == list(range(10, 36))
    assert dataset.metrics()["samples_skipped"] == 10
    for number in (1, 2):
        video_path(root, camera, number).unlink()
    with pytest.raises((DataFileError, MetadataError), match="file-000"):
        list(stream(root, on_error="skip"))
