"""The synthetic datasets: every picture is where the metadata says, and the numbers follow their rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from robostream.synth import (
    Scene,
    SynthSettings,
    barcode_value,
    draw_barcode,
    episode_motion,
    read_barcode,
    split_barcode,
    write_dataset,
)
from robostream.synth.scene import GAIN
from robostream.synth.video import ENCODERS

LENGTHS = (13, 9, 17)
CAM0, CAM1 = "observation.images.cam0", "observation.images.cam1"


def small(**changes: Any) -> SynthSettings:
    base: dict[str, Any] = {"episodes": LENGTHS, "width": 96, "height": 64, "cameras": 1}
    settings = SynthSettings(**(base | changes))
    try:
        av.codec.Codec(ENCODERS[settings.codec], "w")
    except av.codec.codec.UnknownCodecError:
        pytest.skip(f"this PyAV has no {ENCODERS[settings.codec]}")
    return settings


def frames(path: Path) -> Iterator[tuple[Fraction, tuple[int, int, int]]]:
    """(presentation time in seconds, barcode) of each picture, in presentation order."""
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            assert frame.pts is not None
            assert frame.time_base is not None
            yield frame.pts * frame.time_base, split_barcode(read_barcode(frame.to_ndarray(format="rgb24")))


def video(root: Path, camera: str = CAM0, file: int = 0) -> Path:
    return root / f"videos/{camera}/chunk-000/file-{file:03d}.mp4"


def episode_table(root: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    return rows


def info(root: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((root / "meta/info.json").read_text())
    return loaded


@pytest.mark.parametrize("width", [24, 47, 64, 128, 131])
def test_barcode_survives(width: int) -> None:
    image = np.full((32, width, 3), 128, np.uint8)
    for parts in [(0, 0, 0), (1, 256, 2048), (7, 511, 4095), (2, 5, 77)]:
        draw_barcode(image, barcode_value(*parts))
        assert split_barcode(read_barcode(image)) == parts
    assert (image[16:] == 128).all()
    assert (image[:, 24 * (width // 24) :] == 128).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"codec": "av1", "fps": 20},
        {"codec": "av1", "pix_fmt": "yuv420p10le", "texture": "heavy"},
        {"codec": "h264", "gop": 250, "bframes": 3},
        {"codec": "h264", "pix_fmt": "yuv444p", "fps": Fraction(30000, 1001), "faststart": False},
        {"codec": "hevc", "gop": 8, "bframes": 2},
        {"codec": "hevc", "pix_fmt": "yuv420p10le", "fps": Fraction(25, 2), "width": 64},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())).replace("/", ":"),
)
def test_every_frame_is_at_its_time(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = small(episodes_per_video_file=(2, 1), **changes)
    write_dataset(tmp_path, settings)
    for file, episodes in enumerate([(0, 1), (2,)]):
        expected = [(0, episode, frame) for episode in episodes for frame in range(LENGTHS[episode])]
        times, codes = zip(*frames(video(tmp_path, file=file)), strict=True)
        assert list(codes) == expected
        assert list(times) == [number / Fraction(settings.fps) for number in range(len(expected))]
    with av.open(str(video(tmp_path))) as container:
        assert container.streams.video[0].codec_context.pix_fmt == settings.pix_fmt


def test_joins_are_keyframes_and_b_frames_are_reordered(tmp_path: Path) -> None:
    write_dataset(tmp_path, small(codec="h264", gop=250, bframes=3, fps=30))
    with av.open(str(video(tmp_path))) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        ticks = round(Fraction(1, 30) / Fraction(stream.time_base or 0))
        keyframes = [packet.pts // ticks for packet in packets if packet.is_keyframe]
    assert keyframes == [0, *accumulate(LENGTHS[:-1])]
    assert any(packet.pts != packet.dts for packet in packets)
    decode_times = [packet.dts for packet in packets if packet.dts is not None]
    assert decode_times == sorted(set(decode_times))


def test_metadata_leads_to_every_row_and_picture(tmp_path: Path) -> None:
    settings = small(
        cameras=2,
        episodes_per_video_file={CAM0: (1, 2), CAM1: 2},
        episodes_per_data_file=2,
        chunks_size=1,
        tasks=("one", "two"),
    )
    calls: list[tuple[int, int]] = []
    write_dataset(tmp_path, settings, lambda done, total: calls.append((done, total)))
    assert calls == [(done, 6) for done in range(1, 7)]
    meta = info(tmp_path)
    assert (meta["total_episodes"], meta["total_frames"], meta["total_tasks"]) == (3, sum(LENGTHS), 2)
    tasks = pq.read_table(tmp_path / "meta/tasks.parquet")
    assert tasks.to_pylist() == [{"task_index": 0, "task": "one"}, {"task_index": 1, "task": "two"}]
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["task"]
    for episode in episode_table(tmp_path):
        number, length = episode["episode_index"], episode["length"]
        place = {part: episode[f"data/{part}"] for part in ("chunk_index", "file_index")}
        rows = pq.read_table(tmp_path / meta["data_path"].format(**place)).to_pylist()
        rows = [row for row in rows if row["episode_index"] == number]
        assert [row["frame_index"] for row in rows] == list(range(length))
        first, last = episode["dataset_from_index"], episode["dataset_to_index"]
        assert [row["index"] for row in rows] == list(range(first, last))
        assert episode["tasks"] == [("one", "two")[rows[0]["task_index"]]]
        for camera, key in enumerate((CAM0, CAM1)):
            place = {part: episode[f"videos/{key}/{part}"] for part in ("chunk_index", "file_index")}
            held = dict(frames(tmp_path / meta["video_path"].format(video_key=key, **place)))
            start = episode[f"videos/{key}/from_timestamp"]
            times = np.array(list(held), dtype=float)
            for row in rows:
                nearest = np.abs(times - start - row["timestamp"]).argmin()
                assert abs(times[nearest] - start - row["timestamp"]) < 1e-5
                assert list(held.values())[nearest] == (camera, number, row["frame_index"])


def test_row_groups(tmp_path: Path) -> None:
    for one_each, groups in [(True, 3), (False, 1)]:
        write_dataset(tmp_path, small(cameras=0, one_row_group_per_episode=one_each))
        file = pq.ParquetFile(tmp_path / "data/chunk-000/file-000.parquet")
        assert file.metadata.num_row_groups == groups
        assert "huggingface" in {key.decode() for key in file.schema_arrow.metadata}
    assert info(tmp_path)["video_path"] is None


def test_action_brings_the_gripper_to_the_target() -> None:
    settings = SynthSettings(episodes=[60], fps=20, state_dim=7, action_dim=5)
    motion = episode_motion(settings, 0)
    np.testing.assert_allclose(motion.action[:, :2], GAIN * (motion.target - motion.gripper), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(motion.state[:, :2], motion.gripper, rtol=1e-6)
    np.testing.assert_allclose(motion.state[1:, :2], motion.state[:-1, :2] + motion.action[:-1, :2] / 20, atol=1e-6)
    np.testing.assert_array_equal(motion.state[1:, 2:4], motion.action[:-1, :2])
    assert motion.state.shape == (60, 7)
    assert motion.action.shape == (60, 5)
    assert motion.gripper.min() > 0
    assert motion.gripper.max() < 1


def test_the_target_is_in_the_picture() -> None:
    """The red disc is found where the camera sees the target."""
    settings = SynthSettings(episodes=[2] * 12, width=256, height=256)
    seen, real = [], []
    for episode in range(12):
        motion = episode_motion(settings, episode)
        if np.linalg.norm(motion.gripper[0] - motion.target[0]) > 0.25:  # not hidden by the gripper
            image = Scene(settings, motion, 0, episode).picture(0).astype(int)
            red = (image[..., 0] > 200) & (image[..., 1] < 60) & (image[..., 2] < 60)
            seen.append(np.argwhere(red).mean(axis=0)[::-1])
            real.append(motion.target[0])
    slope = (1 - 2 * 0.16) * np.array([256, 240])
    np.testing.assert_allclose(np.diff(seen, axis=0), np.diff(real, axis=0) * slope, atol=1.0)
    assert len(seen) > 4


def test_coded_numbers(tmp_path: Path) -> None:
    write_dataset(tmp_path, small(cameras=0, coded=True))
    for row in pq.read_table(tmp_path / "data/chunk-000/file-000.parquet").to_pylist():
        assert row["observation.state"][-2:] == row["action"][-2:] == [row["episode_index"], row["frame_index"]]


def test_stats(tmp_path: Path) -> None:
    write_dataset(tmp_path, small())
    stats = json.loads((tmp_path / "meta/stats.json").read_text())
    rows = pq.read_table(tmp_path / "data/chunk-000/file-000.parquet").to_pylist()
    actions = np.array([row["action"] for row in rows])
    np.testing.assert_allclose(stats["action"]["mean"], actions.mean(axis=0))
    np.testing.assert_allclose(stats["action"]["std"], actions.std(axis=0))
    assert stats["action"]["count"] == [sum(LENGTHS)]
    for name in ("min", "max", "mean", "std", "q01", "q50", "q99"):
        values = np.array(stats[CAM0][name])
        assert values.shape == (3, 1, 1)
        assert values.min() >= 0
        assert values.max() <= 1
        assert np.array(episode_table(tmp_path)[1][f"stats/{CAM0}/{name}"]).shape == (3, 1, 1)


@pytest.mark.parametrize("version", ["v2.1", "v2.0"])
def test_version_2(tmp_path: Path, version: Any) -> None:
    write_dataset(tmp_path, small(version=version))
    meta = info(tmp_path)
    assert (meta["codebase_version"], meta["total_videos"], meta["total_chunks"]) == (version, 3, 1)
    lines = [json.loads(line) for line in (tmp_path / "meta/episodes.jsonl").read_text().splitlines()]
    assert [line["length"] for line in lines] == list(LENGTHS)
    for episode, length in enumerate(LENGTHS):
        place = {"episode_chunk": 0, "episode_index": episode}
        assert pq.read_metadata(tmp_path / meta["data_path"].format(**place)).num_rows == length
        held = list(frames(tmp_path / meta["video_path"].format(video_key=CAM0, **place)))
        assert [code for _, code in held] == [(0, episode, frame) for frame in range(length)]
    by_episode = (tmp_path / "meta/episodes_stats.jsonl").exists()
    assert by_episode == (version == "v2.1")
    assert (tmp_path / "meta/stats.json").exists() != by_episode


@pytest.mark.parametrize("faststart", [True, False])
def test_moov_is_before_or_after_the_pictures(tmp_path: Path, faststart: bool) -> None:
    write_dataset(tmp_path, small(faststart=faststart))
    data = video(tmp_path).read_bytes()
    assert (data.index(b"moov") < data.index(b"mdat")) == faststart


def test_same_settings_write_the_same_files(tmp_path: Path) -> None:
    for name in "ab":
        write_dataset(tmp_path / name, small(texture="heavy"))
    files = [path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert len(files) == 6
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files)


def test_missing_pictures(tmp_path: Path) -> None:
    write_dataset(tmp_path, small(video_frames=lambda episode, length: 5 if episode == 1 else length))
    codes = [code for _, code in frames(video(tmp_path))]
    assert [sum(episode == number for _, episode, _ in codes) for number in range(3)] == [13, 5, 17]
    episodes = episode_table(tmp_path)
    assert [episode["length"] for episode in episodes] == list(LENGTHS)
    assert episodes[2][f"videos/{CAM0}/from_timestamp"] == pytest.approx(18 / 30)


def test_stretched_joins(tmp_path: Path) -> None:
    write_dataset(tmp_path, small(join_stretch=Fraction(1, 4), codec="h264", bframes=2, gop=10, float32_sums=True))
    times, codes = zip(*frames(video(tmp_path)), strict=True)
    assert len(codes) == sum(LENGTHS)
    for number, (time, (_, episode, _)) in enumerate(zip(times, codes, strict=True)):
        assert time == (number + Fraction(episode, 4)) / 30
    running = np.float32(0)
    for episode in episode_table(tmp_path):
        assert episode[f"videos/{CAM0}/from_timestamp"] == running
        running += np.float32(episode["length"] / 30)


def test_rows_on_another_clock(tmp_path: Path) -> None:
    write_dataset(tmp_path / "fps", small(fps=30, declared_fps=10))
    assert info(tmp_path / "fps")["fps"] == 10
    assert info(tmp_path / "fps")["features"][CAM0]["info"]["video.fps"] == 30
    rows = pq.read_table(tmp_path / "fps/data/chunk-000/file-000.parquet")
    assert rows["timestamp"][3].as_py() == np.float32(0.3)
    late = small(cameras=0, timestamps=lambda episode, length: np.arange(length, dtype=np.float32) + episode)
    write_dataset(tmp_path / "late", late)
    rows = pq.read_table(tmp_path / "late/data/chunk-000/file-000.parquet")
    assert rows["timestamp"][LENGTHS[0]].as_py() == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 20},
        {"width": 65},
        {"pix_fmt": "yuv444p"},
        {"bframes": 2},
        {"coded": True, "state_dim": 3},
        {"join_stretch": Fraction(3, 2)},
    ],
    ids=str,
)
def test_impossible_settings(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        SynthSettings(**changes)
