"""Both decoders give the pictures that decoding the whole file gives, bit for bit, from the fetched bytes alone."""

from __future__ import annotations

import importlib
import io
import logging
import random
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import av
import numpy as np
import numpy.typing as npt
import pytest
from av.codec.context import CodecContext
from PIL import Image
from videos import VIDEOS, Make, Written, decoded_whole

from robostream import decode_torchcodec
from robostream.build import decoder_factory
from robostream.decode import PyavDecoder, VideoDecoder, decode_image
from robostream.decode_torchcodec import check_torchcodec
from robostream.errors import DecodeError, SettingError
from robostream.video import CodedClip

Int = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

BACKENDS = ["pyav", "objects of pyav", pytest.param("torchcodec", marks=pytest.mark.torchcodec)]


def decoder_of(backend: str) -> VideoDecoder:
    return PyavDecoder() if backend == "objects of pyav" else decoder_factory(backend)()


# The right pictures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", VIDEOS)
def test_pictures_equal_those_of_the_whole_file_decoded(written: Make, name: str, backend: str) -> None:
    video = written(name)
    decoder = decoder_of(backend)
    frames = len(video.pictures)
    chosen = random.Random(name)
    sets = [range(frames), [0], [frames - 1], range(7, 19), range(0, frames, 9)]
    sets += [sorted(chosen.sample(range(frames), size)) for size in (1, 2, 5, 20)]
    for wanted in sets:
        np.testing.assert_array_equal(video.decode(decoder, wanted), video.pictures[list(wanted)], err_msg=str(wanted))


def with_colour_box(data: bytes, colour: bytes) -> bytes:
    """An MP4 whose moov comes last, with a `colr` box appended to its H.264 sample entry."""
    box = (len(colour) + 8).to_bytes(4, "big") + b"colr" + colour
    at = data.rindex(b"avcC") - 4
    end = at + int.from_bytes(data[at : at + 4], "big")
    grown = bytearray(data[:end] + box + data[end:])
    for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"avc1"):
        place = data.rindex(kind, 0, at) - 4
        grown[place : place + 4] = (int.from_bytes(data[place : place + 4], "big") + len(box)).to_bytes(4, "big")
    return bytes(grown)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "colour", [b"nclx\0\1\0\1\0\1\0", b"nclx\0\2\0\2\0\2\x80", b"nclc\0\1\0\1\0\1", b"prof1234567890"]
)
def test_colours_that_only_the_file_tells_are_used(written: Make, tmp_path: Path, colour: bytes, backend: str) -> None:
    plain = written("h264 gop 250")
    (tmp_path / "video.mp4").write_bytes(with_colour_box((plain.folder / "video.mp4").read_bytes(), colour))
    told = Written(tmp_path, decoded_whole(tmp_path / "video.mp4"))
    assert np.array_equal(told.pictures, plain.pictures) == (colour[:4] == b"prof")
    np.testing.assert_array_equal(told.decode(decoder_of(backend), range(5, 30)), told.pictures[5:30])


@pytest.mark.torchcodec
@pytest.mark.parametrize("name", VIDEOS)
def test_torchcodec_decodes_itself_unless_chroma_is_interpolated(
    written: Make, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    video, settings = written(name), VIDEOS[name]
    decoder = decoder_factory("torchcodec")()
    wanted = range(5, 20)
    video.decode(decoder, wanted)  # the first clip of a kind settles who decodes it
    calls: list[CodedClip] = []
    monkeypatch.setattr(PyavDecoder, "decode", lambda self, clip, out: calls.append(clip))
    out = video.decode(decoder, wanted)
    subsampled = "444" not in settings.pixels
    odd = settings.width % 2 or settings.height % 2
    if subsampled and ("10" in settings.pixels or odd):
        assert len(calls) == 1
    else:
        assert calls == []
        assert np.array_equal(out, video.pictures[list(wanted)])


@pytest.mark.torchcodec
def test_a_kind_with_other_pixels_is_left_to_pyav(written: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an FFmpeg on the system that converts colours in another way, and does not tell the pixels' format."""
    monkeypatch.setattr(decode_torchcodec, "_interpolates_chroma", lambda metadata: False)
    video = written("hevc 10 bits")
    decoder = decoder_factory("torchcodec")()
    for wanted in (range(4), range(10, 30)):
        np.testing.assert_array_equal(video.decode(decoder, wanted), video.pictures[list(wanted)])


@pytest.mark.torchcodec
@pytest.mark.parametrize("fault", ["error", "the next picture"])
def test_what_torchcodec_does_not_give_is_tried_with_pyav(
    written: Make, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    video = written("h264 B-frames")
    decoder = decoder_factory("torchcodec")()
    np.testing.assert_array_equal(video.decode(decoder, range(4)), video.pictures[:4])
    real = decode_torchcodec._load()

    class Faulty(real):  # type: ignore[misc, valid-type]
        def get_frames_at(self, indices: list[int]) -> object:
            if fault == "error":
                raise RuntimeError("Requested next frame")
            return super().get_frames_at([min(index + 1, len(self) - 1) for index in indices])

    monkeypatch.setattr(decoder, "_open", Faulty)
    monkeypatch.setattr(decode_torchcodec, "_said", set())
    with caplog.at_level(logging.WARNING, "robostream"):
        for _ in range(2):
            np.testing.assert_array_equal(video.decode(decoder, range(4, 20)), video.pictures[4:20])
    assert [record.getMessage().count("PyAV could") for record in caplog.records] == [1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_pictures_are_written_where_they_go_and_nothing_else(written: Make, backend: str) -> None:
    video = written("h264 B-frames")
    decoder = decoder_of(backend)
    for _ in range(2):
        out = np.full((9, *video.pictures.shape[1:]), 77, np.uint8)
        decoder.decode(video.fetch([3, 8, 9, 22, 39]), [out[6], None, out[2], None, out[0]])
        expected = np.full_like(out, 77)
        expected[[6, 2, 0]] = video.pictures[[3, 9, 39]]
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pictures_that_go_nowhere(written: Make, backend: str) -> None:
    video = written("h264 B-frames")
    decoder = decoder_of(backend)
    decoder.decode(video.fetch([3, 8]), [None, None])
    np.testing.assert_array_equal(video.decode(decoder, [3, 8]), video.pictures[[3, 8]])


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_decoder_takes_videos_of_all_kinds_in_turn(written: Make, backend: str) -> None:
    decoder = decoder_of(backend)
    names = ["h264 B-frames", "hevc 10 bits", "av1 gop 2", "h264 4:4:4", "av1 97 × 65", "hevc open gop"]
    for turn in range(3):
        for name in names:
            video, wanted = written(name), [turn, 10 + turn, 30]
            np.testing.assert_array_equal(video.decode(decoder, wanted), video.pictures[wanted], err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["h264 gop 2", "h264 gop 250, B-frames", "hevc open gop", "av1 gop 20"])
def test_only_the_fetched_bytes_are_needed(written: Make, name: str, backend: str) -> None:
    """Bytes between the frames of a clip, which are fetched only because they are near, are never looked at."""
    video = written(name)
    wanted = [2, 17, 33]
    clip = video.fetch(wanted)
    frames = np.concatenate([np.arange(*span) for span in clip.spans])
    used = [np.zeros(len(data), bool) for data in clip.buffers]
    for frame, buffer, at in zip(frames.tolist(), clip.buffer.tolist(), clip.at.tolist(), strict=True):
        used[buffer][at : at + int(clip.table.size[frame])] = True
    buffers = [
        bytes(np.where(u, np.frombuffer(d, np.uint8), 0xEE).astype(np.uint8))
        for u, d in zip(used, clip.buffers, strict=True)
    ]
    (video.folder / "video.mp4").rename(video.folder / "away.mp4")
    try:
        out = np.zeros((3, *video.pictures.shape[1:]), np.uint8)
        decoder_of(backend).decode(replace(clip, buffers=buffers), list(out))
    finally:
        (video.folder / "away.mp4").rename(video.folder / "video.mp4")
    np.testing.assert_array_equal(out, video.pictures[wanted])


# Damage -----------------------------------------------------------------------------------------------------------


def damaged(clip: CodedClip, value: bytes | None = None) -> CodedClip:
    """The clip with the bytes of every frame from its second on replaced by noise, or by a value."""
    noise = np.random.default_rng(0)
    buffers = [bytearray(data) for data in clip.buffers]
    frames = np.concatenate([np.arange(*span) for span in clip.spans])
    for frame, buffer, at in list(zip(frames.tolist(), clip.buffer.tolist(), clip.at.tolist(), strict=True))[1:]:
        size = int(clip.table.size[frame])
        buffers[buffer][at : at + size] = noise.bytes(size) if value is None else value * size
    return replace(clip, buffers=[bytes(data) for data in buffers])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [None, b"\0"], ids=["noise", "zeros"])
@pytest.mark.parametrize("name", ["h264 B-frames", "h264 gop 2", "hevc", "av1 gop 20", "av1 10 bits"])
def test_corrupt_bytes_are_an_error_that_names_the_file(
    written: Make, name: str, value: bytes | None, backend: str
) -> None:
    video = written(name)
    decoder = decoder_of(backend)
    video.decode(decoder, range(10))
    out = np.zeros((12, *video.pictures.shape[1:]), np.uint8)
    clip = damaged(video.fetch(range(20, 32)), value)
    with pytest.raises(DecodeError, match=r"video\.mp4: .*picture") as caught:
        decoder.decode(clip, list(out))
    assert str(video.folder) in str(caught.value)
    np.testing.assert_array_equal(video.decode(decoder, range(20, 32)), video.pictures[20:32])  # goes on as before


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["h264 gop 2", "av1 gop 2"])
def test_a_size_that_is_not_the_declared_one_is_an_error(written: Make, name: str, backend: str) -> None:
    video = written(name)
    for height, width in ((48, 96), (64, 128), (128, 64)):
        with pytest.raises(DecodeError, match=rf"video\.mp4: picture 4 is 96×64, .*{width}×{height}"):
            decoder_of(backend).decode(video.fetch([4, 5]), list(np.zeros((2, height, width, 3), np.uint8)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_codec_without_a_decoder_says_what_to_do(written: Make, backend: str) -> None:
    clip = written("h264 gop 2").fetch([0])
    clip = replace(clip, table=replace(clip.table, codec="xyz1", extradata=(b"",), colour=(b"",)))
    with pytest.raises(DecodeError, match=r"video\.mp4: .*no decoder for 'xyz1'.*Re-encode"):
        decoder_of(backend).decode(clip, [np.zeros((64, 96, 3), np.uint8)])


def test_a_codec_of_something_else_than_pictures_is_named(written: Make) -> None:
    clip = written("h264 gop 2").fetch([0])
    clip = replace(clip, table=replace(clip.table, codec="aac", extradata=(b"",), colour=(b"",)))
    with pytest.raises(DecodeError, match=r"video\.mp4: .*'aac', which is no video codec"):
        PyavDecoder().decode(clip, [np.zeros((64, 96, 3), np.uint8)])


def test_a_build_without_this_decoder_says_what_to_do(written: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(codec: str, mode: str) -> CodecContext:
        raise av.codec.codec.UnknownCodecError(codec)

    monkeypatch.setattr(CodecContext, "create", refuse)
    with pytest.raises(DecodeError, match=r"no decoder for 'av1'.*Re-encode"):
        PyavDecoder().decode(written("av1 gop 2").fetch([0]), [np.zeros((64, 96, 3), np.uint8)])


# Backends ---------------------------------------------------------------------------------------------------------


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(SettingError, match=r"'opencv'.*'pyav' or 'torchcodec'"):
        decoder_factory("opencv")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ModuleNotFoundError("No module named 'torchcodec'"), r"not installed.*torchcodec.*pip install.*'pyav'"),
        (
            RuntimeError("\nCould not load libtorchcodec. Likely causes:\n 1. FFmpeg is not properly installed\n ..."),
            r"does not load: Could not load libtorchcodec. Likely causes.*FFmpeg.*'pyav'",
        ),
        (OSError("libavutil.so.59: cannot open shared object file"), r"libavutil.so.59.*apt-get install ffmpeg"),
    ],
)
def test_a_torchcodec_that_cannot_be_used_says_why_and_what_to_do(
    error: Exception, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> ModuleType:
        raise error

    decode_torchcodec._load.cache_clear()
    monkeypatch.setattr(importlib, "import_module", fail)
    for use in (check_torchcodec, lambda: decoder_factory("torchcodec")):
        with pytest.raises(SettingError, match=expected) as caught:
            use()
        assert "\n" not in str(caught.value)
    decode_torchcodec._load.cache_clear()


# Image files ------------------------------------------------------------------------------------------------------


def encoded_image(pixels: Pixels, kind: str) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, kind)
    return data.getvalue()


def test_image_files_are_decoded_to_their_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (11, 7, 3)).astype(np.uint8)
    out = np.zeros_like(pixels)
    decode_image(encoded_image(pixels, "png"), out, "row 3")
    assert np.array_equal(out, pixels)
    grey = np.zeros((11, 7, 1), np.uint8)
    decode_image(encoded_image(pixels[..., 0], "png"), grey, "row 3")
    assert np.array_equal(grey[..., 0], pixels[..., 0])


def test_a_broken_image_or_one_of_another_size_is_named() -> None:
    pixels = np.zeros((11, 7, 3), np.uint8)
    data = encoded_image(pixels, "png")
    with pytest.raises(DecodeError, match="row 3: not a readable image"):
        decode_image(data[: len(data) // 2], pixels, "row 3")
    with pytest.raises(DecodeError, match=r"row 3: image is uint8 \(11, 7, 3\).*\(12, 7, 3\)"):
        decode_image(data, np.zeros((12, 7, 3), np.uint8), "row 3")
