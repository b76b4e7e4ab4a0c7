"""Coded clips → RGB pictures. PyAV here; `decode_torchcodec.py` gives the same pixels with torchcodec."""

from __future__ import annotations

import io
import struct
from collections import OrderedDict
from typing import Protocol

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

from robostream.errors import DecodeError
from robostream.fetch import CameraPart
from robostream.mp4 import Coding
from robostream.rgb import RgbConverter
from robostream.video import CodedClip

Int = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

_CONTEXTS = 4  # codec contexts kept per thread; one for each kind of stream in turn
_DECODERS = {"h264": "h264", "hevc": "hevc", "av1": "libdav1d"}


class VideoDecoder(Protocol):
    """Decodes clips. One per thread: it is not safe to share."""

    def decode(self, clip: CodedClip, out: Pixels, slots: Int) -> None:
        """Write picture `clip.wanted[j]` to `out[slots[j]]`, unless that is −1; out: uint8 [slots, H, W, 3].

        Raises DecodeError naming the file and the picture if one cannot be decoded, or has another size.
        """
        ...


class PyavDecoder:
    """FFmpeg through PyAV: packets that the sample table cuts go straight to a codec context.

    One context per kind of stream and one converter are kept. The context uses one thread: clips are what runs in
    parallel.
    """

    def __init__(self) -> None:
        self._contexts: OrderedDict[Coding, av.VideoCodecContext] = OrderedDict()
        self._converter = RgbConverter()

    def decode(self, clip: CodedClip, out: Pixels, slots: Int) -> None:
        sink = _Sink(clip, out, slots, self._converter)
        frames = 0
        try:
            for first, last in clip.spans:
                self._decode_span(clip, first, last, frames, sink)
                frames += last - first
        except (av.FFmpegError, ValueError) as error:
            self._contexts.clear()  # what they hold is not worth keeping
            raise DecodeError(f"{clip.name}: FFmpeg could not decode {_range(clip)}: {error}") from error
        sink.check_complete()

    def _decode_span(self, clip: CodedClip, first: int, last: int, skip: int, sink: _Sink) -> None:
        """Decode one span; skip: frames of the spans before it."""
        context = self._context(clip, first)
        # The packet's pts is the picture's position, which is unique even where the file's own pts are not.
        position = clip.table.position[first:last].tolist()
        size = clip.table.size[first:last].tolist()
        at = clip.at[skip : skip + last - first].tolist()
        buffer = clip.buffer[skip : skip + last - first].tolist()
        for i in range(last - first):
            packet = av.Packet(clip.buffers[buffer[i]][at[i] : at[i] + size[i]])
            packet.pts = position[i]
            packet.dts = i
            for frame in context.decode(packet):
                sink.take(frame)
        for frame in context.decode(None):
            sink.take(frame)
        context.flush_buffers()

    def _context(self, clip: CodedClip, first: int) -> av.VideoCodecContext:
        coding = clip.table.coding(first)
        context = self._contexts.get(coding)
        if context is None:
            context = open_context(clip.name, coding)
            while len(self._contexts) >= _CONTEXTS:
                self._contexts.popitem(last=False)
            self._contexts[coding] = context
        return context


class _Sink:
    """Where the pictures of one clip go."""

    def __init__(self, clip: CodedClip, out: Pixels, slots: Int, converter: RgbConverter) -> None:
        self._clip = clip
        self._out = out
        self._height, self._width = out.shape[1:3]
        self._address, self._step = out.ctypes.data, out.strides[0]
        self._converter = converter
        self._open = {w: s for w, s in zip(clip.wanted.tolist(), slots.tolist(), strict=True) if s >= 0}

    def take(self, frame: av.VideoFrame) -> None:
        """Keep a decoded frame if it is wanted; its pts is its picture's position."""
        slot = self._open.pop(-1 if frame.pts is None else frame.pts, None)
        if slot is None:
            return
        if frame.is_corrupt:
            raise DecodeError(f"{self._clip.name}: picture {frame.pts} is corrupt")
        if frame.height != self._height or frame.width != self._width:
            raise DecodeError(
                f"{self._clip.name}: picture {frame.pts} is {frame.width}×{frame.height}, "
                f"the camera's pictures are {self._width}×{self._height}"
            )
        self._converter.convert(frame, self._out[slot], self._address + slot * self._step)

    def check_complete(self) -> None:
        if self._open:
            raise DecodeError(
                f"{self._clip.name}: picture {min(self._open)} did not come out of the {self._clip.table.codec} decoder"
            )


def open_context(name: str, coding: Coding) -> av.VideoCodecContext:
    """A codec context for frames that are coded like this. Raises DecodeError, naming the file, without a decoder."""
    try:
        context = av.CodecContext.create(_DECODERS.get(coding.codec, coding.codec), "r")
    except (av.FFmpegError, ValueError) as error:
        raise DecodeError(
            f"{name}: this build of PyAV has no decoder for '{coding.codec}'. Re-encode the videos to AV1, HEVC or "
            "H.264."
        ) from error
    assert isinstance(context, av.VideoCodecContext)
    context.extradata = coding.extradata or None
    context.thread_count = 1
    if coding.codec == "h264":
        # Else FFmpeg guesses how far pictures are reordered where the stream does not say, and drops those that are
        # further off than it guessed.
        context.options = {"strict": "1"}
    _set_colours(context, coding.colour)
    return context


def _set_colours(context: av.VideoCodecContext, box: bytes) -> None:
    """Tell a context the colours that only the file says ("Colour Information Box", ISO/IEC 14496-12, 12.1.5)."""
    if box[:4] not in (b"nclx", b"nclc") or len(box) < 10:
        return
    context.color_primaries, context.color_trc, context.colorspace = struct.unpack(">3H", box[4:10])
    if box[:4] == b"nclx" and len(box) > 10:
        context.color_range = 2 if box[10] & 0x80 else 1  # full or limited


def _range(clip: CodedClip) -> str:
    return f"pictures {int(clip.wanted[0])} to {int(clip.wanted[-1])}"


def decode_image(data: bytes, out: Pixels, where: str) -> None:
    """Decode an image file (PNG, JPEG, …) into `out`, uint8 [H, W, C]. Raises DecodeError naming `where`."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            pixels = np.asarray(image.convert("RGB") if out.shape[2] == 3 else image)
    except (OSError, ValueError) as error:
        raise DecodeError(f"{where}: not a readable image: {error}") from error
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if pixels.shape != out.shape or pixels.dtype != np.uint8:
        raise DecodeError(f"{where}: image is {pixels.dtype} {pixels.shape}, info.json declares {out.shape}")
    out[:] = pixels


def decode_part(decoder: VideoDecoder, part: CameraPart, fresh: Int, pixels: Pixels, where: str) -> None:
    """Decode the pictures of frames `fresh` (int64, of `part.frames`) into their slots of `pixels`."""
    is_fresh = np.zeros(len(part.frames), bool)
    is_fresh[fresh] = True
    wanted = np.flatnonzero(is_fresh[part.read])  # of those read, the ones that are still to be decoded
    slots = part.slots[part.read[wanted]]
    if part.coded is None:
        for k, slot in zip(wanted.tolist(), slots.tolist(), strict=True):
            frame = int(part.frames[part.read[k]])
            decode_image(part.images[k], pixels[slot], f"{where}, frame {frame}, {part.camera.key}")
        return
    target = np.full(len(part.coded.wanted), -1, np.int64)
    target[part.picture[wanted]] = slots
    decoder.decode(part.coded, pixels, target)
    again = slots != target[part.picture[wanted]]  # rows that show the same picture as another row
    pixels[slots[again]] = pixels[target[part.picture[wanted]][again]]
