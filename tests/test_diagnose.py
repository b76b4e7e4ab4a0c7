"""Each thing that can be wrong with a video gets its own diagnosis, and a good one gets none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import av
import pytest
import torch
from mp4_files import Recipe as VideoRecipe
from mp4_files import Tables, box, coded, encode, file_of, full, movie, numbers, pictures, sample_entry, track
from typer.testing import CliRunner, Result

from robostream import StreamingLeRobotDataset
from robostream.bench.modes import Mode
from robostream.cli import app
from robostream.diagnose import Diagnosis, Severity, diagnose, find_target
from robostream.diagnose.first_bytes import judge_first_bytes
from robostream.diagnose.index import IndexFacts
from robostream.diagnose.predict import predict
from robostream.diagnose.timing import Speed
from robostream.errors import SelectionError, SettingError
from robostream.index import VideoIndex

GOLDEN = Path(__file__).parent / "golden"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
NEEDED = {"torchcodec-missing", "torchcodec-broken"}  # said of the machine, not of the file

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


def look(path: Path, **options: Any) -> Diagnosis:
    return diagnose(find_target(file=str(path)), seconds=0, **options)


def kinds(found: Diagnosis) -> list[str]:
    return [finding.kind for finding in found.findings if finding.kind not in NEEDED]


def file_with(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "video.mp4"
    path.write_bytes(data)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)])


def test_a_good_file_has_no_findings(tmp_path: Path) -> None:
    assert kinds(look(file_with(tmp_path, coded("h264_gop2_head")))) == []
    found = diagnose(find_target(root=GOLDEN / "av1_multifile/dataset", episode=1), seconds=0)
    assert kinds(found) == ["moov-at-tail"]
    assert found.findings[0].severity is Severity.note
    assert not found.failed
    assert found.index is not None
    assert found.first_bytes is not None
    assert "66 74 79 70" in found.first_bytes
    assert found.camera == "observation.images.cam0"
    assert (found.index.codec, found.index.spacing, found.index.bframes, found.index.moov) == ("av1", 2, False, "tail")
    assert str(found.coded) == "AV1, 8 bits"
    assert found.attempts[0].backend == "pyav"
    assert found.attempts[0].ms is not None


@pytest.mark.torchcodec
def test_torchcodec_decodes_the_good_file_too() -> None:
    found = diagnose(find_target(root=GOLDEN / "h264_gop30/dataset"), seconds=0)
    attempt = next(attempt for attempt in found.attempts if attempt.backend == "torchcodec")
    assert attempt.device == "cpu"
    assert attempt.ms is not None
    assert attempt.said.startswith("(3, 96, 128)")


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (b"<!DOCTYPE html><html><head><title>Sign in</title>", "html-page", "'sign in'"),
        (b"\n <html lang=en>404", "html-page", "HTML page"),
        (b'{"error":"Repository not found"}', "json-error", "Repository not found"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "xml-error", "accessdenied"),
        (LFS, "lfs-pointer", "of a file of 12,345 bytes"),
        (b"# xet version 0\nfilesize = 12345\nhash = 'ab'\n", "xet-pointer", "Xet pointer"),
        (b"", "empty-file", "0 bytes"),
        (b"\x1aE\xdf\xa3\x01\x00\x00\x00", "not-mp4", "Matroska"),
        (b"PAR1\x15\x04\x15\x20", "not-mp4", "a Parquet file"),
    ],
)
def test_what_is_no_mp4_is_named(tmp_path: Path, data: bytes, kind: str, says: str) -> None:
    found = look(file_with(tmp_path, data))
    assert kinds(found) == [kind]
    assert found.failed
    assert found.index is None
    finding = found.findings[0]
    assert says in finding.what
    assert str(tmp_path) in finding.what
    assert finding.do


def test_first_bytes_of_mp4s_pass() -> None:
    for name in ("h264_gop2", "av1_gop20_head", "hevc_open"):
        assert judge_first_bytes("f", coded(name)[:512], len(coded(name))) is None


@pytest.mark.parametrize("share", [0.02, 0.5, 0.999])
@pytest.mark.parametrize("name", ["h264_gop2", "h264_gop2_head"])
def test_a_truncated_file(tmp_path: Path, name: str, share: float) -> None:
    data = coded(name)
    found = look(file_with(tmp_path, data[: int(share * len(data))]))
    assert kinds(found) == ["truncated"]
    assert found.failed


def test_a_missing_file(tmp_path: Path) -> None:
    found = look(tmp_path / "none.mp4")
    assert kinds(found) == ["missing-file"]


def _patched_sync_table(data: bytes, entries: list[int]) -> bytes:
    """A file with other keyframes marked: 'stss' is overwritten in place, and what is left of it becomes 'free'."""
    at = data.index(b"stss") - 4
    size = int.from_bytes(data[at : at + 4], "big")
    new = full(b"stss", 0, numbers(">u4", len(entries), *entries))
    filler = b"" if len(new) == size else box(b"free", bytes(size - len(new) - 8))
    assert len(new) + len(filler) == size
    return data[:at] + new + filler + data[at + size :]


def test_a_file_in_which_no_frame_is_marked_as_a_keyframe(tmp_path: Path) -> None:
    found = look(file_with(tmp_path, _patched_sync_table(coded("h264_gop2"), [])))
    assert "no-keyframes" in kinds(found)
    assert found.failed


def test_a_file_that_begins_without_a_keyframe(tmp_path: Path) -> None:
    found = look(file_with(tmp_path, _patched_sync_table(coded("h264_gop2"), [3, 5])))
    assert "late-keyframe" in kinds(found)
    assert "the first keyframe is frame 2" in next(f.what for f in found.findings if f.kind == "late-keyframe")


def test_frames_that_are_marked_as_keyframes_and_are_none(tmp_path: Path) -> None:
    data = coded("h264_gop2")  # keyframes are 1, 3, 5…
    found = look(file_with(tmp_path, _patched_sync_table(data, [1, 4, 8, 12])))
    assert "false-keyframes" in kinds(found)
    for name in ("h264_open", "hevc_open", "h264_bframes", "av1_concatenated"):
        assert "false-keyframes" not in kinds(look(file_with(tmp_path, coded(name))))


def test_keyframes_far_apart_and_fewer_than_declared(tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(GOLDEN / "h264_gop30/dataset", root)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["observation.images.cam0"]["info"]["video.g"] = 2
    (root / "meta/info.json").write_text(json.dumps(info))
    found = diagnose(find_target(root=root), seconds=0)
    assert kinds(found) == ["fewer-keyframes", "b-frames"]
    assert "a keyframe every 30 frames, where info.json declares one every 2" in found.findings[0].what
    assert not found.failed
    only_one = look(
        file_with(tmp_path, encode(VideoRecipe("libx264", {"g": "250", "bf": "0", "sc_threshold": "0"}), 80))
    )
    assert kinds(only_one) == ["keyframes-far", "moov-at-tail"]
    assert "only one keyframe in 80 pictures" in only_one.findings[0].what


def test_bframes_and_a_tail_index_are_notes(tmp_path: Path) -> None:
    options = {"preset": "veryfast", "g": "12", "bf": "3", "b_strategy": "0", "sc_threshold": "0"}
    found = look(file_with(tmp_path, encode(VideoRecipe("libx264", options))))
    assert kinds(found) == ["moov-at-tail", "b-frames"]
    assert {finding.severity for finding in found.findings} == {Severity.note}


def test_a_codec_without_a_decoder(tmp_path: Path) -> None:
    path = tmp_path / "vp9.mp4"
    with av.open(str(path), "w") as container:
        video = container.add_stream("libvpx-vp9", rate=30, options={"deadline": "realtime", "cpu-used": "8"})
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        for picture in pictures(4):
            container.mux(video.encode(picture))
        container.mux(video.encode(None))
    found = look(path)
    finding = next(finding for finding in found.findings if finding.severity is Severity.error)
    assert finding.kind == "no-decoder"
    assert "no decoder for 'vp09'" in finding.what
    assert found.attempts[0].ms is None


def test_an_unknown_codec_of_four_letters(tmp_path: Path) -> None:
    stsd = full(b"stsd", 0, numbers(">u4", 1), sample_entry(b"wxyz", None))
    found = look(file_with(tmp_path, file_of(movie(track(Tables(stsd=stsd).stbl())))))
    assert "no-decoder" in kinds(found)


def test_damaged_pictures(tmp_path: Path) -> None:
    data = bytearray(coded("av1_gop20_head"))
    at = data.index(b"mdat") + 4
    data[at:] = bytes(len(data) - at)
    found = look(file_with(tmp_path, bytes(data)))
    assert "undecodable" in kinds(found)


@no_gpu
@pytest.mark.parametrize("data", [None, b"<html>"])
def test_cuda_without_a_gpu(tmp_path: Path, data: bytes | None) -> None:
    found = look(file_with(tmp_path, coded("h264_gop2") if data is None else data), device="cuda")
    finding = next(finding for finding in found.findings if finding.kind == "cuda-no-gpu")
    assert finding.severity is Severity.error
    assert "video_decode_device='cuda'" in finding.what
    assert "nvidia-smi" in finding.do
    assert "cuda-no-gpu" not in kinds(look(file_with(tmp_path, coded("h264_gop2"))))


@no_gpu
def test_the_dataset_refuses_cuda_and_says_where_to_look() -> None:
    with pytest.raises(SettingError, match=r"'cuda': PyTorch.*robostream diagnose --video_decode_device cuda"):
        StreamingLeRobotDataset(root=GOLDEN / "h264_gop30/dataset", video_decode_device="cuda")
    with pytest.raises(SettingError, match="'tpu' must be 'cpu' or 'cuda'"):
        StreamingLeRobotDataset(root=GOLDEN / "h264_gop30/dataset", video_decode_device="tpu")


def test_what_contradicts_the_metadata(tmp_path: Path) -> None:
    root = tmp_path / "dataset"
    shutil.copytree(GOLDEN / "h264_gop30/dataset", root)
    info = json.loads((root / "meta/info.json").read_text())
    info["fps"] = 10
    info["features"]["observation.images.cam0"]["shape"] = [48, 64, 3]
    (root / "meta/info.json").write_text(json.dumps(info))
    assert kinds(diagnose(find_target(root=root), seconds=0)) == ["b-frames", "other-fps", "other-size"]


def test_the_target_is_the_episodes_file() -> None:
    root = GOLDEN / "av1_multifile/dataset"
    meta = StreamingLeRobotDataset(root=root).meta
    for row, episode in enumerate(meta.episodes.index.tolist()):
        target = find_target(root=root, episode=episode, camera="observation.images.cam1")
        placement = meta.episodes.videos["observation.images.cam1"]
        assert target.path == placement.files[placement.file[row]]
        assert (target.first, target.length) == (placement.base[row], meta.episodes.length[row])
    with pytest.raises(SelectionError, match="no episode 99"):
        find_target(root=root, episode=99)
    with pytest.raises(SelectionError, match="no video camera 'x'; there are observation"):
        find_target(root=root, camera="x")
    with pytest.raises(SelectionError, match="no cameras"):
        find_target(root=GOLDEN / "no_camera/dataset")


def test_the_prediction_follows_from_the_speed_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robostream.diagnose.predict.usable_cores", lambda: 4)
    target = find_target(root=GOLDEN / "av1_multifile/dataset")
    table = VideoIndex(target.source).table(target.path)
    single = predict(target, table, Speed(1000, 500, 1.5), Mode.single)
    assert single.cameras == 2
    assert single.frames_per_sample == pytest.approx(2.0)
    assert single.samples_per_s == pytest.approx(0.75 * 4 * 1000 / 2)
    windows = predict(target, table, Speed(1000, 500, 1.5), Mode.sarm_images)
    assert windows.frames_per_sample > 2 * single.frames_per_sample  # short episodes, windows of seven seconds


def test_the_command_on_a_good_dataset() -> None:
    result = run("--root", GOLDEN / "av1_multifile/dataset", "--seconds", 0.2, "--mode", "sarm_images")
    assert result.exit_code == 0, result.output
    for text in ("FFmpeg in av", "libavcodec", "an MP4's", "one every 2 frames", "pictures/s to RGB", "samples/s"):
        assert text in result.stdout
    assert "mode sarm_images" in result.stdout


def test_the_command_as_json(tmp_path: Path) -> None:
    result = run(GOLDEN / "h264_gop30/dataset/videos/observation.images.cam0/chunk-000/file-000.mp4", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert IndexFacts(**found["index"]).bframes
    assert found["speed"]["sequential"] > 0
    result = run("--file", file_with(tmp_path, LFS), "--json")
    assert result.exit_code == 1
    assert [finding["kind"] for finding in json.loads(result.stdout)["findings"]] == ["lfs-pointer"]
    assert json.loads(result.stdout)["findings"][0]["severity"] == "error"


def test_the_command_says_what_to_do(tmp_path: Path) -> None:
    result = run(file_with(tmp_path, LFS))
    assert result.exit_code == 1
    assert "error (lfs-pointer): " in result.stdout
    assert "→ Run `git lfs install && git lfs pull`" in result.stdout
    assert run().exit_code == 1
    assert "say what to look at" in run().stderr
