"""Videos as encoders write them: reordered frames, sparse keyframes, other chroma and depth, odd sizes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import pytest
from cases import (
    CAM0,
    CAM1,
    STATE,
    Reference,
    check_all,
    check_pairing,
    decode_file,
    indices,
    places,
    stream,
    video_path,
    write,
)

from robostream.errors import DataFileError, DecodeError
from robostream.index import VideoIndex
from robostream.source import LocalSource

LENGTHS = [61, 33, 40]
WINDOWS = {CAM0: [-0.7, -0.1, 0.0, 0.4], CAM1: [0.0], STATE: [-0.1]}

# Settings of the encoder, and of the pictures.
ENCODED: dict[str, dict[str, Any]] = {
    "h264, one keyframe, B-frames": {"gop": 1000, "bframes": 3},
    "h264, B-frames": {"gop": 12, "bframes": 2},
    "h264, keyframes only": {"gop": 1},
    "h264, 4:4:4": {"pix_fmt": "yuv444p", "bframes": 1, "gop": 10},
    "hevc": {"codec": "hevc"},
    "hevc, B-frames": {"codec": "hevc", "gop": 20, "bframes": 3},
    "hevc, 4:4:4": {"codec": "hevc", "pix_fmt": "yuv444p", "gop": 10},
    "hevc, 10 bits": {"codec": "hevc", "pix_fmt": "yuv420p10le", "gop": 10},
    "av1": {"codec": "av1"},
    "av1, sparse keyframes": {"codec": "av1", "gop": 60},
    "av1, 10 bits": {"codec": "av1", "pix_fmt": "yuv420p10le"},
    "odd size": {"width": 65, "height": 49, "pix_fmt": "yuv444p"},
    "odd size, hevc": {"width": 67, "height": 51, "pix_fmt": "yuv444p", "codec": "hevc"},
    "no multiple of 16": {"width": 72, "height": 56},
    "no multiple of 8, upright, hevc": {"width": 50, "height": 94, "codec": "hevc"},
    "no multiple of 8, av1": {"width": 70, "height": 66, "codec": "av1"},
}


@pytest.fixture(scope="module", params=list(ENCODED))
def encoded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Reference]:
    root = write(tmp_path_factory.mktemp("encoded"), LENGTHS, episodes_per_video_file=2, **ENCODED[request.param])
    return root, Reference(root)


def test_pictures_equal_those_of_the_whole_file_decoded(encoded: tuple[Path, Reference]) -> None:
    root, reference = encoded
    shape = reference.pictures[CAM0, 0].shape[1:]
    samples = list(stream(root, clip_frames=7, buffer_size=20))
    assert sorted(check_pairing(sample) for sample in samples) == places(LENGTHS)
    assert {tuple(sample[CAM0].shape) for sample in samples} == {shape}
    assert sorted(check_all(samples, reference)) == list(range(sum(LENGTHS)))
    assert check_all(stream(root, shuffle=False), reference) == list(range(sum(LENGTHS)))


def test_windows_equal_those_of_the_whole_file_decoded(encoded: tuple[Path, Reference]) -> None:
    root, reference = encoded
    dataset = stream(root, delta_timestamps=WINDOWS)
    assert sorted(check_all(dataset, reference, WINDOWS)) == list(range(sum(LENGTHS)))
    picks = [0, 60, 61, 93, 94, 133]
    assert check_all([dataset[i] for i in picks], reference, WINDOWS) == picks


def reencode(path: Path, encoder: str, options: dict[str, str], container: dict[str, str] | None = None) -> None:
    """Encode a video again, with any of FFmpeg's options."""
    pictures = decode_file(path).transpose(0, 2, 3, 1)
    with av.open(str(path), "w", options=container or {}) as target:
        added = target.add_stream(encoder, rate=10, options=options)
        assert isinstance(added, av.VideoStream)
        added.height, added.width = pictures.shape[1:3]
        added.pix_fmt = "yuv420p"
        for number, picture in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(picture.copy(), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            target.mux(added.encode(frame))
        target.mux(added.encode())


OPEN_GOPS = {
    "h264": ("libx264", {"x264-params": "open-gop=1:keyint=8:min-keyint=8:bframes=3:b-adapt=0:scenecut=0"}),
    "hevc": ("libx265", {"x265-params": "open-gop=1:keyint=8:min-keyint=8:bframes=3:b-adapt=0:scenecut=0:log-level=1"}),
    "h264 with a pyramid": ("libx264", {"x264-params": "keyint=30:bframes=6:b-pyramid=normal:ref=4:scenecut=0"}),
}


@pytest.mark.parametrize(("encoder", "options"), OPEN_GOPS.values(), ids=OPEN_GOPS.keys())
def test_open_gops_and_pyramids(tmp_path: Path, encoder: str, options: dict[str, str]) -> None:
    root = write(tmp_path, LENGTHS)
    reencode(video_path(root), encoder, options)
    reference = Reference(root)
    for clip_frames, windows in ((5, None), (8, WINDOWS)):
        dataset = stream(root, clip_frames=clip_frames, delta_timestamps=windows)
        assert sorted(check_all(dataset, reference, windows)) == list(range(sum(LENGTHS)))


def test_a_video_that_cannot_be_entered_at_its_keyframes_is_an_error_and_never_wrong(tmp_path: Path) -> None:
    root = write(tmp_path, LENGTHS)
    reencode(video_path(root), "libx264", {"x264-params": "intra-refresh=1:keyint=10:bframes=0"})
    reference = Reference(root)
    with pytest.raises(DecodeError, match=r"episode \d, .*file-000.mp4: picture \d+ did not come out of the h264"):
        check_all(stream(root, clip_frames=5, shuffle=False), reference)
    check_all(stream(root, clip_frames=5, on_error="skip"), reference)


def test_fragmented_files_are_refused_with_the_way_out(tmp_path: Path) -> None:
    root = write(tmp_path, [20])
    reencode(video_path(root), "libx264", {}, {"movflags": "frag_keyframe+empty_moov"})
    with pytest.raises(DataFileError, match=r"file-000.mp4: .*fragment"):
        stream(root)


def test_a_picture_of_another_size_than_the_first_file_is_named(tmp_path: Path) -> None:
    root = write(tmp_path / "a", [20, 20], episodes_per_video_file=1)
    other = write(tmp_path / "b", [20, 20], episodes_per_video_file=1, width=96)
    video_path(root, CAM1, 1).write_bytes(video_path(other, CAM1, 1).read_bytes())
    with pytest.raises(DecodeError, match=rf"episode 1, {CAM1}.*file-001.mp4.*96×64.*64×64"):
        list(stream(root))
    assert len(indices(stream(root, on_error="skip"))) == 20


def test_one_keyframe_is_what_it_claims(tmp_path: Path) -> None:
    root = write(tmp_path, [61], gop=1000, bframes=3, cameras=1)
    table = VideoIndex(LocalSource(root)).table(f"videos/{CAM0}/chunk-000/file-000.mp4")
    assert table.keyframe.tolist() == [True] + [False] * 60
    assert (table.presented != range(61)).any()
