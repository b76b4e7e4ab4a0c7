"""Coded clips → RGB pictures, through PyAV.

Others give the same pixels: `decode_direct.py` sooner, and `decode_torchcodec.py` with the system's FFmpeg.
"""

from __future__ import annotations

import io
import struct
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol, TypeAlias

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import VideoReformatter
from PIL import Image

from robostream.errors import DecodeError
from robostream.fetch import CameraPart
from robostream.mp4 import Coding
from robostream.rgb import to_rgb
from robostream.video import CodedClip

Int = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]
_Wanted: TypeAlias = dict[Any, Pixels]  # by position; frames without a pts are not among them

CONTEXTS = 4  # codec contexts kept per thread; one for each kind of stream in turn
DECODERS = {"h264": "h264", "hevc": "hevc", "av1": "libdav1d"}
"""Codec → FFmpeg's decoder for it."""
# Else FFmpeg guesses how far pictures are reordered where the stream does not say, and drops those that are further off
# than it guessed.
OPTIONS = {"h264": {"strict": "1"}}
"""Codec → FFmpeg's options for its decoder."""


class VideoDecoder(Protocol):
    """Decodes clips. One per thread: it is not safe to share."""

    def decode(self, clip: CodedClip, out: Sequence[Pixels | None]) -> None:
        """Write picture `clip.wanted[j]` to `out[j]`, contiguous uint8 [H, W, 3], unless that is None.

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
        self._reformatter = VideoReformatter()

    def decode(self, clip: CodedClip, out: Sequence[Pixels | None]) -> None:
        wanted: _Wanted = by_position(clip, out)
        frames = 0
        try:
            for first, last in clip.spans:
                self._decode_span(clip, first, last, frames, wanted)
                frames += last - first
        except (av.FFmpegError, ValueError) as error:
            raise DecodeError(f"{clip.name}: FFmpeg could not decode {_range(clip)}: {error}") from error
        finally:
            if frames < len(clip.at):
                self._contexts.clear()  # they may hold frames of this clip, which must not come out with the next one
        if wanted:
            codec = clip.table.codec
            raise DecodeError(f"{clip.name}: picture {min(wanted)} did not come out of the {codec} decoder")

    def _decode_span(self, clip: CodedClip, first: int, last: int, skip: int, wanted: _Wanted) -> None:
        """Decode one span, and take from `wanted` what came out of it; skip: frames of the spans before it."""
        context = self._context(clip, first)
        decode = context.decode
        # The packet's pts is the picture's position, which is unique even where the file's own pts are not.
        position = clip.table.position[first:last].tolist()
        coded = clip.coded(first, last, skip)
        packets = (_packet(data, pts, dts) for dts, (data, pts) in enumerate(zip(coded, position, strict=True)))
        for packet in chain(packets, [None]):  # None: no more are coming
            for frame in decode(packet):
                pixels = wanted.pop(frame.pts, None)
                if pixels is not None:
                    if frame.is_corrupt or pixels.shape != (frame.height, frame.width, 3):
                        raise _unfit(clip, frame, pixels)
                    to_rgb(self._reformatter, frame, pixels)
        context.flush_buffers()

    def _context(self, clip: CodedClip, first: int) -> av.VideoCodecContext:
        coding = clip.table.coding(first)
        context = self._contexts.get(coding)
        if context is None:
            context = open_context(clip.name, coding)
            while len(self._contexts) >= CONTEXTS:
                self._contexts.popitem(last=False)
            self._contexts[coding] = context
        return context


def _packet(data: memoryview, pts: int, dts: int) -> av.Packet[Any]:
    packet = av.Packet(data)  # type: ignore[arg-type]  # anything with a buffer will do
    packet.pts, packet.dts = pts, dts
    return packet


def _unfit(clip: CodedClip, frame: av.VideoFrame, pixels: Pixels) -> DecodeError:
    if frame.is_corrupt:
        return DecodeError(f"{clip.name}: picture {frame.pts} is corrupt")
    return DecodeError(
        f"{clip.name}: picture {frame.pts} is {frame.width}×{frame.height}, "
        f"the camera's pictures are {pixels.shape[1]}×{pixels.shape[0]}"
    )


def open_context(name: str, coding: Coding) -> av.VideoCodecContext:
    """A codec context for frames that are coded like this. Raises DecodeError, naming the file, without a decoder."""
    try:
        context = av.CodecContext.create(DECODERS.get(coding.codec, coding.codec), "r")
    except (av.FFmpegError, ValueError) as error:
        raise DecodeError(
            f"{name}: this build of PyAV has no decoder for '{coding.codec}'. Re-encode the videos to AV1, HEVC or "
            "H.264."
        ) from error
    if not isinstance(context, av.VideoCodecContext):
        raise DecodeError(f"{name}: its pictures are declared as '{coding.codec}', which is no video codec: damaged?")
    context.extradata = coding.extradata or None
    context.thread_count = 1
    context.options = dict(OPTIONS.get(coding.codec, {}))
    for name, value in colours_of(coding.colour).items():
        setattr(context, name, value)
    return context


def colours_of(box: bytes) -> dict[str, int]:
    """Colours that only the file says, under FFmpeg's names ("Colour Information Box", ISO/IEC 14496-12, 12.1.5)."""
    if box[:4] not in (b"nclx", b"nclc") or len(box) < 10:
        return {}
    colours = dict(zip(("color_primaries", "color_trc", "colorspace"), struct.unpack(">3H", box[4:10]), strict=True))
    if box[:4] == b"nclx" and len(box) > 10:
        colours["color_range"] = 2 if box[10] & 0x80 else 1  # full or limited
    return colours


def by_position(clip: CodedClip, out: Sequence[Pixels | None]) -> dict[int, Pixels]:
    """Where the wanted pictures of a clip go, by their positions."""
    return {w: pixels for w, pixels in zip(clip.wanted.tolist(), out, strict=True) if pixels is not None}


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


def decode_part(decoder: VideoDecoder, part: CameraPart, fresh: Int, out: Sequence[Pixels], where: str) -> None:
    """Decode the pictures of frames `fresh` (int64 [n], of `part.frames`, ascending) to `out`, [H, W, C] each."""
    at = np.searchsorted(part.read, fresh)  # all of them were read
    if part.coded is None:
        for k, frame, pixels in zip(at.tolist(), part.frames[fresh].tolist(), out, strict=True):
            decode_image(part.images[k], pixels, f"{where}, frame {frame}, {part.camera.key}")
        return
    targets: list[Pixels | None] = [None] * len(part.coded.wanted)
    repeats: list[tuple[Pixels, Pixels]] = []
    for picture, pixels in zip(part.picture[at].tolist(), out, strict=True):
        first = targets[picture]
        if first is None:
            targets[picture] = pixels
        else:  # a row that shows the same picture as the one before it
            repeats.append((pixels, first))
    decoder.decode(part.coded, targets)
    for pixels, first in repeats:
        pixels[:] = first
