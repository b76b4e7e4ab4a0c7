"""Re-encoded datasets stream the same rows and pictures, ended runs go on, and the checks catch what is wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from mp4_files import pictures as drawn
from typer.testing import CliRunner

from robostream import StreamingLeRobotDataset
from robostream.cli import app
from robostream.errors import DecodeError, SelectionError, SettingError
from robostream.index import VideoIndex
from robostream.mp4 import SampleTable
from robostream.source import LocalSource
from robostream.synth import SynthSettings, read_barcode, split_barcode, write_dataset
from robostream.transcode import TranscodeSettings, transcode
from robostream.transcode.check import check_index, check_pictures
from robostream.transcode.encode import encode_file
from robostream.transcode.journal import NAME
from robostream.transcode.reader import read_pictures

GOLDEN = Path(__file__).parent / "golden"
SOURCE = SynthSettings(
    episodes=[14, 9, 11],
    cameras=2,
    width=64,
    height=64,
    fps=10,
    codec="h264",
    gop=30,
    bframes=2,
    episodes_per_video_file=2,
    episodes_per_data_file=2,
)
FAST = {"h264": "ultrafast", "hevc": "ultrafast", "av1": "12"}


@pytest.fixture(scope="module")
def src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("transcode") / "src"
    write_dataset(root, SOURCE)
    return root


def settings(codec: str = "h264", **options: object) -> TranscodeSettings:
    return TranscodeSettings(codec, preset=FAST[codec], **options)  # type: ignore[arg-type]


def table_of(root: Path, path: str) -> SampleTable:
    return VideoIndex(LocalSource(root)).table(path)


def assert_same_samples(root: Path, out: Path, tolerance: float) -> None:
    """Every row equal; every picture within `tolerance` levels on average, and with the barcode of its row."""
    before, after = (StreamingLeRobotDataset(root=folder, return_uint8=True, shuffle=False) for folder in (root, out))
    assert len(before) == len(after)
    rows = 0
    for ours, theirs in zip(after, before, strict=True):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            if key in before.meta.camera_keys:
                difference = (ours[key].float() - value.float()).abs().mean().item()
                assert difference <= tolerance, key
                picture = ours[key].permute(1, 2, 0).numpy()
                assert split_barcode(read_barcode(picture))[1:] == (
                    int(ours["episode_index"]),
                    int(ours["frame_index"]),
                )
            elif isinstance(value, torch.Tensor):
                assert torch.equal(ours[key], value), key
            else:
                assert ours[key] == value
        rows += 1
    assert rows == before.num_frames


@pytest.mark.parametrize(("codec", "gop"), [("h264", 5), ("hevc", 8), ("av1", 16)])
def test_the_new_dataset_streams_the_same(src: Path, tmp_path: Path, codec: str, gop: int) -> None:
    summary = transcode(src, tmp_path / "out", settings(codec, gop=gop, crf=10), threads=2)
    assert (summary.files, summary.kept, summary.copied) == (4, 0, 0)
    assert summary.pictures == 2 * sum(SOURCE.lengths)
    assert summary.min_psnr >= 24
    assert_same_samples(src, tmp_path / "out", tolerance=8)
    video = json.loads((tmp_path / "out/meta/info.json").read_text())["features"]["observation.images.cam0"]["info"]
    expected = {"video.codec": codec, "video.g": gop, "video.height": 64, "video.width": 64, "video.pix_fmt": "yuv420p"}
    assert expected.items() <= video.items()
    assert video["video.fps"] == 10
    first = "videos/observation.images.cam0/chunk-000/file-000.mp4"
    made, was = table_of(tmp_path / "out", first), table_of(src, first)
    assert made.codec == codec
    assert (np.diff(made.pts) > 0).all()  # no B-frames, though the source has them
    assert (np.diff(was.pts) < 0).any()
    assert made.moov_at_head
    keyframes = np.flatnonzero(made.keyframe)
    assert np.diff(keyframes, append=23).max() <= gop
    if codec != "av1":
        assert 14 in keyframes  # where the second episode begins


@pytest.mark.parametrize("version", ["v2.1", "v2.0"])
def test_older_versions_keep_their_layout(tmp_path: Path, version: str) -> None:
    made = SynthSettings(episodes=[8, 6], cameras=1, width=64, height=64, fps=10, version=version)  # type: ignore[arg-type]
    write_dataset(tmp_path / "src", made)
    transcode(tmp_path / "src", tmp_path / "out", settings(), threads=1)

    def files(root: Path) -> list[str]:
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != NAME)

    assert files(tmp_path / "out") == files(tmp_path / "src")
    assert json.loads((tmp_path / "out/meta/info.json").read_text())["codebase_version"] == version
    assert_same_samples(tmp_path / "src", tmp_path / "out", tolerance=8)


def test_other_sizes(src: Path, tmp_path: Path) -> None:
    transcode(src, tmp_path / "out", settings(width=32), threads=1)
    feature = json.loads((tmp_path / "out/meta/info.json").read_text())["features"]["observation.images.cam1"]
    assert feature["shape"] == [32, 32, 3]
    assert feature["info"]["video.width"] == 32
    before, after = (StreamingLeRobotDataset(root=root, return_uint8=True) for root in (src, tmp_path / "out"))
    for index in (0, 13, 14, 33):
        large, small = (dataset[index]["observation.images.cam1"] for dataset in (before, after))
        assert small.shape == (3, 32, 32)
        halved = torch.nn.functional.avg_pool2d(large.float(), 2)
        assert (halved - small.float()).abs().mean() < 8


def test_times_are_kept_exactly(tmp_path: Path) -> None:
    drifting = SynthSettings(
        episodes=[7, 9, 8],
        cameras=1,
        width=64,
        height=64,
        fps=Fraction(30000, 1001),
        join_stretch=Fraction(1, 7),
        codec="h264",
    )
    write_dataset(tmp_path / "src", drifting)
    transcode(tmp_path / "src", tmp_path / "out", settings("hevc"), threads=1)
    path = "videos/observation.images.cam0/chunk-000/file-000.mp4"
    was, made = table_of(tmp_path / "src", path), table_of(tmp_path / "out", path)
    steps = np.diff(was.pts[was.presented])
    assert len(set(steps.tolist())) > 1
    assert [Fraction(int(t), was.timescale) for t in was.pts[was.presented]] == [
        Fraction(int(t), made.timescale) for t in made.pts[made.presented]
    ]


def test_a_late_first_picture_stays_late(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "late.mp4"), "w") as container:
        video = container.add_stream("libx264", rate=30, options={"g": "4", "bf": "0"})
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        for number, picture in enumerate(drawn(12)):
            picture.pts = number + 2
            picture.time_base = Fraction(1, 30)
            container.mux(video.encode(picture))
        container.mux(video.encode(None))
    source, was = LocalSource(tmp_path), table_of(tmp_path, "late.mp4")
    encode(source, "late.mp4", was, tmp_path / "new.mp4", settings(gop=4))
    made = table_of(tmp_path, "new.mp4")
    assert was.pts[0] > 0
    check_index("new.mp4", was, made, "h264", (96, 64), 4)


def encode(source: LocalSource, path: str, table: SampleTable, target: Path, wanted: TranscodeSettings) -> None:
    size = (table.width, table.height)
    encode_file(
        target,
        read_pictures(source, path, table),
        table,
        wanted,
        size=size,
        fps=table.frame_rate,
        keyframes=np.array([0]),
        threads=1,
    )


def test_depth_cameras_are_copied(src: Path, tmp_path: Path) -> None:
    root = tmp_path / "src"
    copy_tree(src, root)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["observation.images.cam1"]["info"]["is_depth_map"] = True
    (root / "meta/info.json").write_text(json.dumps(info))
    summary = transcode(root, tmp_path / "out", settings(), threads=1)
    assert (summary.files, summary.copied) == (2, 2)
    for number in range(2):
        path = f"videos/observation.images.cam1/chunk-000/file-00{number}.mp4"
        assert (tmp_path / "out" / path).read_bytes() == (src / path).read_bytes()
    after = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert after["features"]["observation.images.cam1"] == info["features"]["observation.images.cam1"]


def test_cameras_that_are_not_wanted_are_left_out(src: Path, tmp_path: Path) -> None:
    root, kept = tmp_path / "src", "observation.images.cam0"
    copy_tree(src, root)
    for path in root.glob("videos/observation.images.cam1/*/*.mp4"):
        path.unlink()
    arguments = ["transcode", root, tmp_path / "out", "--preset", "ultrafast"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 1
    assert f"on the command line: --cameras {kept}" in result.stderr
    result = CliRunner().invoke(app, [str(argument) for argument in [*arguments, "--cameras", kept]])
    assert result.exit_code == 0, result.output
    dataset = StreamingLeRobotDataset(root=tmp_path / "out")
    assert dataset.meta.camera_keys == [kept]
    assert len(list(dataset)) == sum(SOURCE.lengths)
    with pytest.raises(SelectionError, match="no cameras in video files"):
        transcode(GOLDEN / "images_png/dataset", tmp_path / "none", settings())


def copy_tree(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / path.relative_to(source)).write_bytes(path.read_bytes())


# Runs that were ended -------------------------------------------------------------------------------------------------


def start(src: Path, out: Path) -> subprocess.Popen[str]:
    """A run in a process of its own, slow enough to be ended in its midst."""
    command = [sys.executable, "-m", "robostream", "transcode", str(src), str(out), "--threads", "1"]
    command += ["--codec", "h264", "--preset", "veryslow", "--gop", "16"]
    # A shell lets what it starts in the background ignore Ctrl-C, and that is inherited.
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture(scope="module")
def long_src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("transcode_long") / "src"
    long = SynthSettings(
        episodes=[16] * 16, cameras=1, width=160, height=160, fps=10, codec="h264", gop=10, episodes_per_video_file=1
    )
    write_dataset(root, long)
    return root


def wait_for_a_file(process: subprocess.Popen[str], out: Path) -> None:
    end = time.monotonic() + 240  # much more than it takes, for machines that are busy
    while time.monotonic() < end and process.poll() is None:
        if (out / NAME).is_file() and len((out / NAME).read_text().splitlines()) > 1:
            return
        time.sleep(0.02)
    process.kill()
    raise AssertionError(f"no file was finished: {process.communicate()}")


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_an_ended_run_goes_on(long_src: Path, tmp_path: Path, ending: signal.Signals) -> None:
    out = tmp_path / "out"
    process = start(long_src, out)
    wait_for_a_file(process, out)
    process.send_signal(ending)
    _, said = process.communicate(timeout=60)
    if ending is signal.SIGINT:
        assert process.returncode == 130, said
        assert "give the same command again to go on" in said
        assert not list(out.rglob("*.part"))
    assert not (out / "meta/info.json").exists()
    finished = [json.loads(line)["file"] for line in (out / NAME).read_text().splitlines()[1:]]
    assert 1 <= len(finished) < 16
    kept = {path: (os.stat(out / path).st_ino, os.stat(out / path).st_mtime_ns) for path in finished}
    summary = transcode(long_src, out, TranscodeSettings(preset="veryslow"), threads=2)
    assert summary.kept == len(finished)
    assert summary.files == 16
    assert kept == {path: (os.stat(out / path).st_ino, os.stat(out / path).st_mtime_ns) for path in finished}
    assert not list(out.rglob("*.part"))
    assert StreamingLeRobotDataset(root=out).num_frames == 16 * 16


def test_a_finished_run_has_nothing_left_to_do(src: Path, tmp_path: Path) -> None:
    transcode(src, tmp_path / "out", settings(), threads=1)
    seen: list[tuple[int, int]] = []
    summary = transcode(src, tmp_path / "out", settings(), threads=1, progress=lambda *at: seen.append(at))
    assert summary.kept == summary.files == 4
    assert seen[-1] == (4 * sum(SOURCE.lengths), 4 * sum(SOURCE.lengths))


def test_files_that_were_damaged_or_lost_since_are_made_anew(src: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    transcode(src, out, settings(), threads=1)
    videos = sorted(out.rglob("*.mp4"))
    videos[0].unlink()
    videos[1].write_bytes(videos[1].read_bytes()[:-10])
    with (out / NAME).open("a") as journal:
        journal.write('{"file": "videos/obs')  # a line that was being written
    assert transcode(src, out, settings(), threads=1).kept == 2
    assert transcode(src, out, settings(), threads=1).kept == 4


# What is refused ------------------------------------------------------------------------------------------------------


def test_folders_that_are_in_use_are_refused(src: Path, tmp_path: Path) -> None:
    before = sorted(src.rglob("*"))
    for out in (src, src / "videos", src.parent, Path(f"{src}/../{src.name}")):
        with pytest.raises(SettingError):
            transcode(src, out, settings())
    (tmp_path / "letters.txt").write_text("precious")
    with pytest.raises(SettingError, match="is not empty and was not made by transcode"):
        transcode(src, tmp_path, settings())
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]
    link = tmp_path / "link"
    link.symlink_to(src)
    with pytest.raises(SettingError, match="is the dataset itself"):
        transcode(src, link, settings())
    assert sorted(src.rglob("*")) == before


def test_a_folder_of_other_settings_or_another_source_is_refused(src: Path, tmp_path: Path) -> None:
    transcode(src, tmp_path / "out", settings(), threads=1)
    with pytest.raises(SettingError, match="was begun with another settings"):
        transcode(src, tmp_path / "out", settings(gop=3))
    copy_tree(src, tmp_path / "src")
    with pytest.raises(SettingError, match="was begun with another source"):
        transcode(tmp_path / "src", tmp_path / "out", settings())


def test_settings_that_cannot_work(src: Path, tmp_path: Path) -> None:
    for options in ({"codec": "vp9"}, {"gop": 0}, {"width": 33}, {"crf": 60}, {"height": 2}):
        with pytest.raises(SettingError):
            TranscodeSettings(**options)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="refuses preset='warp'"):
        transcode(src, tmp_path / "out", TranscodeSettings(preset="warp"), threads=1)
    assert not list((tmp_path / "out").rglob("*.mp4*"))
    with pytest.raises(SettingError, match="width=66 and height=64"):
        TranscodeSettings().size("f", 65, 64)
    assert TranscodeSettings(width=320).size("f", 1280, 800) == (320, 200)
    assert TranscodeSettings(height=100).size("f", 1280, 800) == (160, 100)


# Checks ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moving(src: Path) -> list[np.ndarray]:
    """The pictures of a file, in order."""
    path = "videos/observation.images.cam0/chunk-000/file-000.mp4"
    return list(read_pictures(LocalSource(src), path, table_of(src, path)))


def test_pictures_are_those_of_the_loader(src: Path, moving: list[np.ndarray]) -> None:
    dataset = StreamingLeRobotDataset(root=src, return_uint8=True, episodes=[0, 1])
    assert len(moving) == dataset.num_frames == 23
    for index in range(23):
        expected = dataset[index]["observation.images.cam0"].permute(1, 2, 0).numpy()
        assert np.array_equal(moving[index], expected)


def test_the_check_passes_what_is_the_same(moving: list[np.ndarray]) -> None:
    checked = check_pictures("f", moving, moving, 24)
    assert checked.pictures == checked.told_apart == 23
    assert checked.min_psnr == float("inf")


@pytest.mark.parametrize(("a", "b"), [(0, 1), (7, 8), (21, 22), (5, 12)])
def test_the_check_catches_swapped_pictures(moving: list[np.ndarray], a: int, b: int) -> None:
    swapped = list(moving)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    with pytest.raises(DecodeError, match=f"picture {a} (looks more like picture|is .* dB from)"):
        check_pictures("f", moving, swapped, 24 if b - a > 1 else 12)


def test_the_check_catches_pictures_that_are_one_late(moving: list[np.ndarray]) -> None:
    with pytest.raises(DecodeError, match="picture 1 looks more like picture 0"):
        check_pictures("f", moving, [moving[0], *moving[:-1]], 12)


def test_the_check_catches_a_spoilt_picture(moving: list[np.ndarray]) -> None:
    spoilt = list(moving)
    spoilt[9] = 255 - spoilt[9]
    with pytest.raises(DecodeError, match=r"picture 9 is \d+\.\d dB from its source, less than 24"):
        check_pictures("f", moving, spoilt, 24)


def test_the_check_catches_a_spoilt_part_of_a_picture(moving: list[np.ndarray]) -> None:
    spoilt = [picture.copy() for picture in moving]
    block = spoilt[9][40:48, 40:48]
    block[:] = np.where(block > 127, block - 120, block + 120)
    check_pictures("f", moving, spoilt[:9] + moving[9:], 24)
    with pytest.raises(DecodeError, match="part of picture 9 is not what its source shows"):
        check_pictures("f", moving, spoilt, 24)


def test_a_run_whose_check_fails_leaves_nothing(src: Path, tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match="less than 80; ask for a better quality"):
        transcode(src, tmp_path / "out", settings(min_psnr=80), threads=2)
    assert not list((tmp_path / "out").rglob("*.mp4*"))
    assert transcode(src, tmp_path / "out", settings(min_psnr=20), threads=2).kept == 0  # it goes on with a lower one


def test_the_check_of_the_index(src: Path, tmp_path: Path) -> None:
    path = "videos/observation.images.cam0/chunk-000/file-000.mp4"
    source, was = LocalSource(src), table_of(src, path)
    encode(source, path, was, tmp_path / "new.mp4", settings(gop=6))
    made = table_of(tmp_path, "new.mp4")
    check_index("f", was, made, "h264", (64, 64), 6)
    other = table_of(src, path.replace("file-000", "file-001"))
    for arguments, message in (
        ((was, made, "av1", (64, 64), 6), "h264 of 64×64 instead of av1"),
        ((was, made, "h264", (64, 32), 6), "instead of h264 of 64×32"),
        ((was, made, "h264", (64, 64), 5), "further apart than every 5"),
        ((other, made, "h264", (64, 64), 6), "23 pictures instead of 11"),
    ):
        with pytest.raises(DecodeError, match=message):
            check_index("f", *arguments)
    shifted = np.array(made.pts)
    shifted[4] += 1
    late = type(made)(**{**made.__dict__, "pts": shifted})
    with pytest.raises(DecodeError, match="picture 4 is at"):
        check_index("f", was, late, "h264", (64, 64), 6)


def test_the_command(src: Path, tmp_path: Path) -> None:
    arguments = ["transcode", src, tmp_path / "out", "--codec", "h264", "--preset", "ultrafast", "--threads", 2]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert "68 pictures, each at its time and like its own source" in result.stdout
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "4 files, 4 of them by an earlier run" in result.stdout
    result = CliRunner().invoke(app, ["transcode", str(src), str(src)])
    assert result.exit_code == 1
    assert "is the dataset itself" in result.stderr
