"""Coded clips → RGB pictures with torchcodec: the same pixels as PyAV's.

torchcodec decodes files only, so the frames that were fetched are put into a small MP4 in memory. Its times are made
up: each span takes its own stretch of them, and only the first frame of a span is marked as a keyframe. So torchcodec
decodes a span in one go from where the sample table says that it must begin, and never seeks to a keyframe inside it,
as it would between the groups of pictures of an open-GOP video, where that gives wrong pictures.
"""

from __future__ import annotations

import importlib
import logging
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch

from robostream.decode import PyavDecoder
from robostream.errors import SettingError
from robostream.mp4 import Coding
from robostream.video import CodedClip

Int = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

log = logging.getLogger("robostream")

_ENTRIES = {"h264": (b"avc1", b"avcC"), "hevc": (b"hvc1", b"hvcC"), "av1": (b"av01", b"av1C")}
_TICKS = 30  # of the made-up clock, per second
_MATRIX = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)


@lru_cache(maxsize=1)
def _load() -> Any:
    """torchcodec's VideoDecoder class. Loading it takes a second, so only those who ask for it wait."""
    return importlib.import_module("torchcodec.decoders").VideoDecoder


def check_torchcodec() -> None:
    """Raise SettingError, with the reason and the way out, if torchcodec can't be used here."""
    try:
        _load()
    except ModuleNotFoundError as error:
        raise SettingError(
            f"video_backend='torchcodec' needs a package that is not installed ({error}). Install it with "
            "`pip install 'robostream[torchcodec]'`, or use video_backend='pyav', which gives the same pixels."
        ) from error
    except (ImportError, RuntimeError, OSError) as error:
        raise SettingError(
            f"video_backend='torchcodec': torchcodec is installed but does not load: {_reason(error)} It needs the "
            "shared libraries of FFmpeg 4 to 8 (`apt-get install ffmpeg`, `conda install ffmpeg`) and the version that "
            f"belongs to torch {torch.__version__}. Or use video_backend='pyav', which gives the same pixels and "
            "brings its own FFmpeg."
        ) from error


def _reason(error: Exception) -> str:
    """The first line of a message that fills a page."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if line.endswith(".") else f"{line}."


class TorchcodecDecoder:
    """FFmpeg through torchcodec, on one thread of the CPU. Opens a decoder for each clip.

    PyAV has the last word, so that both give the same pictures and the same errors:

    - it decodes the kinds of video for which torchcodec's colours differ: those whose chroma is interpolated (4:2:0
      with more than 8 bits or an odd size), where torchcodec's way is bicubic and PyAV's is bilinear;
    - the first clip of each kind is decoded both ways and compared, as the FFmpeg on the system may be any;
    - it tries again where torchcodec fails: old FFmpegs lose the last pictures of a short span in an open GOP.

    One thing it can't do: torchcodec does not tell when FFmpeg conceals damage in a picture, for which PyAV raises.
    """

    def __init__(self) -> None:
        self._open = _load()
        self._pyav = PyavDecoder()
        self._equal: dict[Coding, bool] = {}

    def decode(self, clip: CodedClip, out: Sequence[Pixels | None]) -> None:
        """As VideoDecoder.decode."""
        kinds = {clip.table.coding(first) for first, _ in clip.spans}
        if clip.table.codec not in _ENTRIES or not all(self._equal.get(kind, True) for kind in kinds):
            self._pyav.decode(clip, out)
            return
        try:
            self._decode_here(clip, out)
        except (RuntimeError, ValueError, IndexError) as error:
            self._pyav.decode(clip, out)
            _say_once(clip, f"torchcodec could not decode it, PyAV could: {_reason(error)}")
            return
        if not all(self._equal.get(kind) for kind in kinds):
            self._compare(clip, kinds, out)

    def _decode_here(self, clip: CodedClip, out: Sequence[Pixels | None]) -> None:
        """Raises one of torchcodec's errors, or a ValueError, if any picture can't be had."""
        todo = {w: pixels for w, pixels in zip(clip.wanted.tolist(), out, strict=True) if pixels is not None}
        for movie in _movies(clip, np.array(list(todo), np.int64)):
            wanted = [picture for picture in todo if picture in movie.index]
            index = np.array([movie.index[picture] for picture in wanted], np.int64)
            batch = self._frames(movie, index, todo[wanted[0]].shape[:2])
            # torchcodec gives the next picture instead of one that is lost.
            if not np.array_equal(np.rint(batch.pts_seconds.numpy() * _TICKS), movie.pts[index]):
                raise ValueError("it gave other pictures than those asked for")
            for picture, pixels in zip(wanted, batch.data.numpy(), strict=True):
                todo.pop(picture)[:] = pixels
        if todo:
            raise ValueError(f"picture {min(todo)} is not among the frames to decode")

    def _frames(self, movie: _Movie, index: Int, size: tuple[int, ...]) -> Any:
        """The FrameBatch of frames `index` of a movie, which must be of this (height, width)."""
        data = torch.frombuffer(movie.data, dtype=torch.uint8)
        decoder = self._open(data, dimension_order="NHWC", num_ffmpeg_threads=1, device="cpu", seek_mode="exact")
        if (decoder.metadata.height, decoder.metadata.width) != size:
            raise ValueError("its pictures have another size")
        if _interpolates_chroma(decoder.metadata):
            self._equal[movie.kind] = False
        return decoder.get_frames_at(index.tolist())

    def _compare(self, clip: CodedClip, kinds: set[Coding], out: Sequence[Pixels | None]) -> None:
        """Decode a clip with PyAV too: settles who decodes videos of these kinds."""
        found = [None if pixels is None else pixels.copy() for pixels in out]
        if all(pixels is None for pixels in found):
            return
        self._pyav.decode(clip, out)
        equal = all(a is None or b is None or np.array_equal(a, b) for a, b in zip(found, out, strict=True))
        for kind in kinds:
            self._equal[kind] = self._equal.get(kind, True) and equal
        if not all(self._equal[kind] for kind in kinds):
            _say_once(clip, "PyAV decodes videos like it, because torchcodec would give other colours")


_said: set[str] = set()


def _say_once(clip: CodedClip, message: str) -> None:
    """Log a message the first time, with the name of the file that it is about."""
    if message not in _said:
        _said.add(message)
        log.warning("%s: %s", clip.name, message)


def _interpolates_chroma(metadata: Any) -> bool:
    """Whether swscale's interpolation matters; False where torchcodec doesn't tell the format of pixels."""
    name = getattr(metadata, "pixel_format", None)
    if not name:
        return False
    pixels = av.VideoFormat(name, 16, 16)
    subsampled = pixels.chroma_width(16) < 16 or pixels.chroma_height(16) < 16
    odd = bool(metadata.width % 2 or metadata.height % 2)
    return subsampled and (odd or pixels.components[0].bits > 8)


# The MP4 in memory ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Movie:
    """Spans of a clip that share a sample description, as one small MP4.

    data: the file. pts: int64 [N], made-up times of its frames, ascending. index: picture → which of these frames.
    """

    kind: Coding
    data: bytearray
    pts: Int
    index: dict[int, int]


@dataclass(frozen=True, eq=False)
class _Frames:
    """Coded frames in decode order. dts, pts: int64 [N], in ticks. first: int64, those that begin a span."""

    coded: list[memoryview]
    dts: Int
    pts: Int
    first: Int


def _movies(clip: CodedClip, wanted: Int) -> list[_Movie]:
    """The spans that hold any of the pictures `wanted`, as MP4s: one, unless sample descriptions differ."""
    skip = 0
    spans: dict[Coding, list[tuple[int, int, int]]] = {}
    for span in clip.spans:
        if np.isin(clip.table.position[slice(*span)], wanted).any():
            spans.setdefault(clip.table.coding(span[0]), []).append((*span, skip))
        skip += span[1] - span[0]
    return [_movie(clip, coding, group) for coding, group in spans.items()]


def _movie(clip: CodedClip, coding: Coding, spans: list[tuple[int, int, int]]) -> _Movie:
    """spans: (first, last, frames of the clip before it) each."""
    coded: list[memoryview] = []
    dts, pts, picture, first = [], [], [], []
    clock = 0
    for begin, end, skip in spans:
        count = end - begin
        first.append(len(coded))
        coded += clip.coded(begin, end, skip)
        order = np.argsort(clip.table.pts[begin:end], kind="stable")
        rank = np.empty(count, np.int64)
        rank[order] = np.arange(count)
        late = max(0, int((np.arange(count) - rank).max()))  # nothing may be shown before it is decoded
        dts.append(clock + np.arange(count))
        pts.append(clock + late + rank)
        picture.append(clip.table.position[begin:end][order])
        clock += late + count  # later than all of this span, so that seeking never takes the next one for it
    frames = _Frames(coded, np.concatenate(dts), np.concatenate(pts), np.array(first, np.int64))
    index = {int(p): i for i, p in enumerate(np.concatenate(picture).tolist()) if p >= 0}
    return _Movie(coding, _mp4(clip, coding, frames), np.sort(frames.pts), index)


def _mp4(clip: CodedClip, coding: Coding, frames: _Frames) -> bytearray:
    """An MP4 with what FFmpeg's demuxer needs of "ISO base media file format"."""
    ftyp = _box(b"ftyp", b"isom", _u4(0), b"isom")
    size = sum(map(len, frames.coded))
    length = len(_moov(clip, coding, frames, 0))  # the same whatever offset it says
    moov = _moov(clip, coding, frames, len(ftyp) + length + 8)
    return bytearray().join([ftyp, moov, _u4(size + 8), b"mdat", *frames.coded])


def _moov(clip: CodedClip, coding: Coding, frames: _Frames, offset: int) -> bytes:
    ticks = int(frames.pts.max()) + 1
    width, height = clip.table.width, clip.table.height
    mvhd = _full(b"mvhd", _u4(0, 0, _TICKS, ticks, 1 << 16), bytes(12), _MATRIX, bytes(24), _u4(2))
    enabled = 3  # flags: in use, and in the movie
    tkhd = _box(b"tkhd", _u4(enabled, 0, 0, 1, 0, ticks), bytes(16), _MATRIX, _u4(width << 16, height << 16))
    mdhd = _full(b"mdhd", _u4(0, 0, _TICKS, ticks, 0))
    hdlr = _full(b"hdlr", _u4(0), b"vide", bytes(13))
    stbl = _box(b"stbl", _description(clip, coding), *_sample_boxes(frames, offset))
    minf = _box(b"minf", _box(b"vmhd", _u4(1), bytes(8)), stbl)
    return _box(b"moov", mvhd, _box(b"trak", tkhd, _box(b"mdia", mdhd, hdlr, minf)))


def _description(clip: CodedClip, coding: Coding) -> bytes:
    """The sample description: codec, size and the decoder's configuration."""
    entry, configuration = _ENTRIES[coding.codec]
    colour = _box(b"colr", coding.colour) if coding.colour else b""
    size = struct.pack(">HH", clip.table.width, clip.table.height)
    fixed = bytes(6) + b"\0\1" + bytes(16) + size + _u4(72 << 16, 72 << 16, 0) + b"\0\1" + bytes(32) + b"\0\x18\xff\xff"
    return _full(b"stsd", _u4(1), _box(entry, fixed, _box(configuration, coding.extradata), colour))


def _sample_boxes(frames: _Frames, offset: int) -> list[bytes]:
    """When frames are decoded and shown, which are keyframes, and where they lie: all in one chunk."""
    count = len(frames.coded)
    ones = np.ones(count, np.int64)
    steps = np.diff(frames.dts, append=frames.dts[-1] + 1)
    return [
        _full(b"stts", _u4(count), _rows(ones, steps)),
        _full(b"ctts", _u4(count), _rows(ones, frames.pts - frames.dts)),
        _full(b"stss", _u4(len(frames.first)), _rows(frames.first + 1)),
        _full(b"stsc", _u4(1, 1, count, 1)),
        _full(b"stsz", _u4(0, count), _rows(np.array([len(coded) for coded in frames.coded]))),
        _full(b"stco", _u4(1, offset)),
    ]


def _u4(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def _rows(*columns: Int) -> bytes:
    return np.stack(columns, axis=1).astype(">u4").tobytes()


def _box(kind: bytes, *content: bytes) -> bytes:
    return b"".join([_u4(8 + sum(map(len, content))), kind, *content])


def _full(kind: bytes, *content: bytes) -> bytes:
    """A "full box": version 0 and no flags come first."""
    return _box(kind, _u4(0), *content)
