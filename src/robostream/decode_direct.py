"""Coded clips → RGB pictures through the FFmpeg that PyAV brings along, without PyAV's objects in between.

PyAV makes a packet, a frame and a converted frame for each picture: 25 µs of Python under the interpreter lock, and a
copy. Here a picture takes three calls, and is written where it is to lie. Nothing is taken on trust: the first pictures
of each kind of video are compared, bit for bit, with PyAV's, and PyAV decodes whatever is unusual.

swscale writes some formats and widths in steps that end beyond the line, or differently where lines are not aligned;
the comparison shows that, too. Pictures of such videos are written with longer lines first, and then copied.
"""

from __future__ import annotations

import ctypes
import errno
import logging
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from robostream import libav
from robostream.decode import CONTEXTS, DECODERS, OPTIONS, PyavDecoder, VideoDecoder, by_position, colours_of
from robostream.libav import CORRUPT, PADDING, Libav, Packet, Parameters
from robostream.mp4 import Coding
from robostream.video import CodedClip

Pixels = npt.NDArray[np.uint8]
_Wanted = dict[int, Pixels]  # by position
_Kind = tuple[int, int, int, int, int]  # width, height, format, colour range, colour space

log = logging.getLogger("robostream")

_BILINEAR = 2  # SWS_BILINEAR, PyAV's default
_FULL_RANGE = 2  # AVCOL_RANGE_JPEG
_TRIALS = 4  # pictures that are compared before a kind is decoded this way
_GUARD = 256  # bytes behind a trial picture that must stay as they were
_ALIGNED = 64  # bytes; the beginnings of lines as FFmpeg's own frames have them
_AGAIN, _END = -errno.EAGAIN, -int.from_bytes(b"EOF ", "little")  # AVERROR(EAGAIN), AVERROR_EOF


def make_decoder() -> VideoDecoder:
    """The quickest decoder that PyAV's libraries allow."""
    library = libav.load()
    return PyavDecoder() if library is None else DirectDecoder(library)


class _Unusual(Exception):
    """PyAV is to decode this clip: it tells what is wrong, or copes."""


class DirectDecoder:
    """Gives PyavDecoder's pictures and errors, sooner. One per thread."""

    def __init__(self, library: Libav) -> None:
        self._library = library
        self._pyav = PyavDecoder()
        self._streams: OrderedDict[Coding, _Stream] = OrderedDict()
        self._padded: set[Coding] = set()  # whose pictures are written with longer lines first
        self._refused: set[Coding] = set()

    def decode(self, clip: CodedClip, out: Sequence[Pixels | None]) -> None:
        """As VideoDecoder.decode."""
        codings = {clip.table.coding(first) for first, _ in clip.spans}
        if len(codings) != 1 or codings & self._refused or clip.table.codec not in DECODERS:
            self._pyav.decode(clip, out)
            return
        coding = codings.pop()
        try:
            self._stream(coding).decode(clip, by_position(clip, out))
        except _Unusual:
            self._pyav.decode(clip, out)
            self._try(clip, coding, out)

    def _stream(self, coding: Coding) -> _Stream:
        stream = self._streams.get(coding)
        if stream is None:
            stream = _Stream(self._library, coding, padded=coding in self._padded)
            while len(self._streams) >= CONTEXTS:
                self._streams.popitem(last=False)
            self._streams[coding] = stream
        return stream

    def _try(self, clip: CodedClip, coding: Coding, expected: Sequence[Pixels | None]) -> None:
        """Compare with what PyAV made of a clip."""
        some = dict(islice(by_position(clip, expected).items(), _TRIALS))
        while some and coding not in self._refused:
            try:
                if self._stream(coding).agrees(clip, some):
                    return
            except _Unusual:
                pass
            self._streams.pop(coding, None)
            if coding in self._padded:
                log.info("%s: videos like it are decoded through PyAV's objects, which takes longer", clip.name)
                self._refused.add(coding)
            self._padded.add(coding)


class _Scaler(NamedTuple):
    """swscale's context, and memory with longer lines where pictures are to be written there first, [H + 1, bytes]."""

    context: int
    lines: Pixels | None


class _Stream:
    """A codec context, and swscale's contexts for the kinds of frames that came out of it.

    padded: write pictures with longer lines first. Raises _Unusual if FFmpeg can't make a context.
    """

    def __init__(self, library: Libav, coding: Coding, *, padded: bool) -> None:
        self._library = library
        self._padded = padded
        self._scalers: dict[_Kind, _Scaler] = {}
        self._context = ctypes.c_void_p()
        self._packet_pointer = ctypes.c_void_p(library.alloc_packet())
        self._frame_pointer = ctypes.c_void_p(library.alloc_frame())
        self._open(coding)
        self._packet = Packet.from_address(self._packet_pointer.value or 0)
        self._frame: Any = library.Frame.from_address(self._frame_pointer.value or 0)
        self._target, self._target_strides = (ctypes.c_void_p * 4)(), (ctypes.c_int * 4)()
        self._source = ctypes.addressof(self._frame.data), ctypes.addressof(self._frame.linesize)
        self._destination = ctypes.addressof(self._target), ctypes.addressof(self._target_strides)

    def _open(self, coding: Coding) -> None:
        library = self._library
        decoder = library.find_decoder(DECODERS[coding.codec].encode())
        self._context.value = library.alloc_context(decoder) if decoder else None
        if self._context.value is None or not (self._packet_pointer and self._frame_pointer):
            raise _Unusual
        parameters = ctypes.c_void_p(library.alloc_parameters())
        stream = Parameters.from_address(parameters.value or 0)
        failed = library.from_context(parameters, self._context) < 0
        if coding.extradata and not failed:
            # Zeros behind it, as FFmpeg demands; freed with the parameters.
            stream.extradata = library.mallocz(len(coding.extradata) + PADDING)
            stream.extradata_size = len(coding.extradata)
            ctypes.memmove(stream.extradata, coding.extradata, len(coding.extradata))
        failed = failed or library.to_context(self._context, parameters) < 0
        library.free_parameters(ctypes.byref(parameters))
        options = {"threads": 1} | colours_of(coding.colour) | OPTIONS.get(coding.codec, {})
        for name, value in options.items():
            failed = failed or library.opt_set(self._context, name.encode(), str(value).encode(), 0) < 0
        if failed or library.open(self._context, decoder, None) < 0:
            raise _Unusual

    def decode(self, clip: CodedClip, wanted: _Wanted, *, learn: bool = False) -> None:
        """Write each picture to its place in `wanted`, which is emptied.

        learn: also pictures of a kind that is not known yet. Raises _Unusual where PyAV is to do it.
        """
        if not (learn or self._scalers):
            raise _Unusual  # no kind is known, so there is nothing to decode for
        base = np.array([np.frombuffer(data, np.uint8).ctypes.data for data in clip.buffers], np.int64)
        addresses = base[clip.buffer] + clip.at
        ends = addresses + np.concatenate([clip.table.size[first:last] for first, last in clip.spans])
        if (ends > base[clip.buffer] + np.array([len(data) for data in clip.buffers])[clip.buffer]).any():
            raise _Unusual
        frames = 0
        for first, last in clip.spans:
            count = last - first
            self._decode_span(clip, first, last, addresses[frames : frames + count].tolist(), wanted, learn)
            frames += count
        if wanted:
            raise _Unusual

    def _decode_span(
        self, clip: CodedClip, first: int, last: int, addresses: list[int], wanted: _Wanted, learn: bool
    ) -> None:
        packet, context, pointer, send = self._packet, self._context, self._packet_pointer, self._library.send
        sizes, positions = clip.table.size[first:last].tolist(), clip.table.position[first:last].tolist()
        try:
            for packet.data, packet.size, packet.pts in zip(addresses, sizes, positions, strict=True):
                if send(context, pointer) < 0:
                    raise _Unusual
                self._take(wanted, learn)
                if not wanted:
                    return
            if send(context, None) < 0:
                raise _Unusual
            self._take(wanted, learn)
        finally:
            self._library.flush(context)

    def _take(self, wanted: _Wanted, learn: bool) -> None:
        """Convert the wanted ones of the frames that have come out."""
        receive, context, pointer, frame = self._library.receive, self._context, self._frame_pointer, self._frame
        while not (status := receive(context, pointer)):
            pixels = wanted.pop(frame.pts, None)
            if pixels is not None:
                self._convert(pixels, learn)
        if status not in (_AGAIN, _END):
            raise _Unusual

    def _convert(self, pixels: Pixels, learn: bool) -> None:
        frame = self._frame
        width, height = frame.width, frame.height
        kind = (width, height, frame.format, frame.color_range, frame.colorspace)
        scaler = self._scalers.get(kind) or (self._learn(kind) if learn else None)
        damaged = frame.flags & CORRUPT or frame.decode_error_flags
        if scaler is None or damaged or pixels.shape != (height, width, 3):
            raise _Unusual
        lines = pixels if scaler.lines is None else scaler.lines
        self._target[0] = ctypes.addressof(ctypes.c_ubyte.from_buffer(lines))  # type: ignore[arg-type]  # the quickest way to its address
        self._target_strides[0] = lines.strides[0]
        if self._library.scale(scaler.context, *self._source, 0, height, *self._destination) != height:
            raise _Unusual
        if scaler.lines is not None:
            pixels.reshape(height, width * 3)[:] = scaler.lines[:height, : width * 3]

    def _learn(self, kind: _Kind) -> _Scaler | None:
        """swscale's context for a kind of frame; None if there is none."""
        library = self._library
        width, height, pixels, colour_range, space = kind
        size = (width, height)
        context = library.get_scaler(*size, pixels, *size, library.rgb24, _BILINEAR, None, None, None)
        if not context:
            return None
        table = library.coefficients(space)
        library.set_colours(context, table, int(colour_range == _FULL_RANGE), table, 0, 0, 1 << 16, 1 << 16)
        scaler = self._scalers[kind] = _Scaler(context, _lines(width, height) if self._padded else None)
        return scaler

    def agrees(self, clip: CodedClip, expected: _Wanted) -> bool:
        """Whether these pictures come out as expected, and nothing is written beyond them; their kinds are learned."""
        size = max(pixels.nbytes for pixels in expected.values())
        for guard in (0x5A, 0xA5):
            memory = np.full((len(expected), size + _GUARD), guard, np.uint8)
            found = {
                position: line[: pixels.nbytes].reshape(pixels.shape)
                for line, (position, pixels) in zip(memory, expected.items(), strict=True)
            }
            self.decode(clip, dict(found), learn=True)
            for line, pixels in zip(memory, expected.values(), strict=True):
                if not np.array_equal(line[: pixels.nbytes].reshape(pixels.shape), pixels):
                    return False
                if (line[pixels.nbytes :] != guard).any():
                    return False
        return True

    def __del__(self) -> None:
        for scaler in self._scalers.values():
            self._library.free_scaler(scaler.context)
        self._library.free_context(ctypes.byref(self._context))
        self._library.free_packet(ctypes.byref(self._packet_pointer))
        self._library.free_frame(ctypes.byref(self._frame_pointer))


def _lines(width: int, height: int) -> Pixels:
    stride = -(-width * 3 // _ALIGNED) * _ALIGNED
    memory = np.zeros((height + 1) * stride + _ALIGNED, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED
    return memory[begin : begin + (height + 1) * stride].reshape(height + 1, stride)
