"""FFmpeg's own functions decode all usual videos; PyAV decodes the others, and tells what is wrong."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from videos import VIDEOS, Make

from robostream import decode_direct, libav
from robostream.decode import PyavDecoder, VideoDecoder
from robostream.decode_direct import DirectDecoder, make_decoder
from robostream.errors import DecodeError
from robostream.video import CodedClip

pytestmark = pytest.mark.skipif(libav.load() is None, reason="PyAV's libraries can't be called directly here")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[CodedClip]:
    """The clips that PyAV is asked to decode."""
    asked: list[CodedClip] = []
    decode = PyavDecoder.decode

    def asking(self: PyavDecoder, clip: CodedClip, out: list[np.ndarray]) -> None:
        asked.append(clip)
        decode(self, clip, out)

    monkeypatch.setattr(PyavDecoder, "decode", asking)
    return asked


@pytest.fixture
def library() -> libav.Libav:
    """One of the test's own, to change."""
    return libav.Libav()


@pytest.mark.parametrize("name", VIDEOS)
def test_only_the_first_clip_of_a_kind_needs_pyav(written: Make, name: str, calls: list[CodedClip]) -> None:
    video, decoder = written(name), make_decoder()
    for wanted in (range(5, 20), range(3), range(30, 40)):
        np.testing.assert_array_equal(video.decode(decoder, wanted), video.pictures[list(wanted)])
    # There, swscale interpolates chroma by what the frame says of its place.
    assert len(calls) == (3 if name in ("hevc 10 bits", "h264 10 bits") else 1)


def test_kinds_are_kept_apart(written: Make, calls: list[CodedClip]) -> None:
    decoder = make_decoder()
    names = ["h264 B-frames", "hevc 4:4:4", "av1 gop 2", "h264 4:4:4"]
    for turn in range(3):
        for name in names:
            np.testing.assert_array_equal(written(name).decode(decoder, [turn, 30]), written(name).pictures[[turn, 30]])
    assert len(calls) == len(names)
    for name in ("h264 gop 2", *names):  # of the oldest, the context is given up
        written(name).decode(decoder, [5])
    assert len(calls) > len(names) + 1


def colourless(library: libav.Libav) -> None:
    library.set_colours = lambda *arguments: 0


def short(library: libav.Libav) -> None:
    scale = library.scale
    library.scale = lambda *arguments: int(scale(*arguments)) - 1


def unscaled(library: libav.Libav) -> None:
    library.get_scaler = lambda *arguments: None


def unopened(library: libav.Libav) -> None:
    library.open = lambda *arguments: -1


@pytest.mark.parametrize("fault", [colourless, short, unscaled, unopened])
def test_what_does_not_give_the_same_is_left_to_pyav(
    written: Make,
    fault: Callable[[libav.Libav], None],
    library: libav.Libav,
    calls: list[CodedClip],
    caplog: pytest.LogCaptureFixture,
) -> None:
    fault(library)
    video, decoder = written("h264 bt709"), DirectDecoder(library)
    with caplog.at_level(logging.INFO, "robostream"):
        for wanted in (range(5, 20), range(3), range(30, 40)):
            np.testing.assert_array_equal(video.decode(decoder, wanted), video.pictures[list(wanted)])
    assert len(calls) == 3
    assert [record.getMessage().count("which takes longer") for record in caplog.records] == [1]


def test_pictures_are_written_elsewhere_first_where_more_than_they_is_written(
    written: Make, library: libav.Libav, calls: list[CodedClip]
) -> None:
    video, decoder, scale = written("h264 gop 2"), DirectDecoder(library), library.scale

    def writing_too_much(*arguments: int) -> int:
        (target,) = (ctypes.c_void_p * 1).from_address(arguments[5])
        (stride,) = (ctypes.c_int * 1).from_address(arguments[6])
        ctypes.memset(target + 63 * stride + 96 * 3, 1, 8)
        return int(scale(*arguments))

    library.scale = writing_too_much
    video.decode(decoder, range(5, 20))
    memory = np.full((4, 64, 96, 3), 7, np.uint8)
    decoder.decode(video.fetch([6, 7]), [memory[0], memory[2]])
    np.testing.assert_array_equal(memory[::2], video.pictures[[6, 7]])
    assert (memory[1::2] == 7).all()
    assert len(calls) == 1


@pytest.mark.parametrize("flag", ["flags", "decode_error_flags"])
def test_a_damaged_picture_is_seen(written: Make, flag: str, calls: list[CodedClip]) -> None:
    """Damage that FFmpeg conceals shows in the frame's flags alone."""
    video, decoder = written("h264 gop 250"), make_decoder()
    assert isinstance(decoder, DirectDecoder)
    video.decode(decoder, range(4))
    (stream,) = decoder._streams.values()
    receive = decoder._library.receive

    def receiving(*arguments: int) -> int:
        status = receive(*arguments)
        setattr(stream._frame, flag, 1)
        return int(status)

    decoder._library = stream._library = replace_receive(decoder._library, receiving)
    np.testing.assert_array_equal(video.decode(decoder, range(8)), video.pictures[:8])
    assert len(calls) == 2


def replace_receive(library: libav.Libav, receive: Callable[..., int]) -> libav.Libav:
    changed = object.__new__(libav.Libav)
    changed.__dict__.update({**library.__dict__, "receive": receive})
    return changed


@pytest.mark.parametrize("name", ["h264 gop 250", "h264 gop 250, B-frames", "h264 pyramid", "av1 gop 20"])
def test_damaged_bytes_are_errors_where_they_are_for_pyav(written: Make, name: str) -> None:
    """What FFmpeg makes of damage that it does not see depends on what it decoded before, so that is not compared."""
    video, direct, plain = written(name), make_decoder(), PyavDecoder()
    video.decode(direct, range(4))
    noise = np.random.default_rng(0)
    outcomes = []
    for _ in range(60):
        clip = video.fetch(sorted(noise.choice(len(video.pictures), 6, replace=False)))
        clip = replace(clip, buffers=[flipped(data, noise) for data in clip.buffers])
        outcomes.append([outcome(decoder, clip, video.pictures[:6].copy()) for decoder in (direct, plain)])
        for decoder in (direct, plain):  # nothing of the damaged clip is left in it
            np.testing.assert_array_equal(video.decode(decoder, clip.wanted), video.pictures[clip.wanted])
    assert [ours for ours, _ in outcomes] == [theirs for _, theirs in outcomes]
    assert len({ours for ours, _ in outcomes}) > 3


def flipped(data: bytes, noise: np.random.Generator) -> bytes:
    """Bytes with some bits flipped."""
    changed = bytearray(data)
    for at in noise.integers(0, len(data), 3):
        changed[at] ^= 1 << noise.integers(8)
    return bytes(changed)


def outcome(decoder: VideoDecoder, clip: CodedClip, out: np.ndarray) -> str:
    try:
        decoder.decode(clip, list(out))
    except DecodeError as error:
        return str(error)
    return "pictures"


def test_bytes_that_end_early_are_not_read_beyond(written: Make, calls: list[CodedClip]) -> None:
    video, decoder = written("h264 gop 2"), make_decoder()
    video.decode(decoder, range(4))
    clip = video.fetch(range(4))
    with pytest.raises(DecodeError):
        decoder.decode(
            replace(clip, buffers=[data[: len(data) // 2] for data in clip.buffers]), list(video.pictures[:4].copy())
        )
    assert len(calls) == 2


@pytest.mark.parametrize("change", ["version", "layout", "function"])
def test_libraries_that_are_not_known_are_not_called(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if change == "version":
        monkeypatch.setattr(libav, "_VERSIONS", {(1, 1)})
    elif change == "layout":
        known = libav.Libav().versions[0]
        monkeypatch.setattr(libav, "_frame_type", lambda avutil, made=libav._frame_type: made(59 if known > 59 else 60))
    else:
        monkeypatch.setattr(libav.av.codec.context, "__file__", ctypes.__file__)
    libav.load.cache_clear()
    try:
        assert libav.load() is None
        assert isinstance(decode_direct.make_decoder(), PyavDecoder)
    finally:
        libav.load.cache_clear()
