"""Coded clips → RGB pictures. PyAV here; `decode_torchcodec.py` gives the same pixels with torchcodec."""

from __future__ import annotations

import inspect
import io
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import VideoReformatter
from PIL import Image

from robostream.errors import DecodeError, SettingError
from robostream.fetch import CameraPart
from robostream.video import CodedClip

Int = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]

_CONTEXTS = 4  # codec contexts kept per thread; one for each kind of stream in turn
_DECODERS = {"h264": "h264", "hevc": "hevc", "av1": "libdav1d"}
# PyAV converts with as many threads as there are cores unless told otherwise, which is slower under our threads.
_REFORMAT: dict[str, Any] = {"format": "rgb24"}
if "threads" in str(inspect.getdoc(VideoReformatter.reformat)):
    _REFORMAT["threads"] = 1


class VideoDecoder(Protocol):
    """Decodes clips. One per thread: it is not safe to share."""

    def decode(self, clip: CodedClip, out: Pixels, slots: Int) -> None:
        """Write picture `clip.wanted[j]` to `out[slots[j]]`, unless that is −1; out: uint8 [slots, H, W, 3].

        Raises DecodeError naming the file and the picture if one cannot be decoded, or has another size.
        """
        ...


def decoder_factory(backend: str) -> Callable[[], VideoDecoder]:
    """What makes a decoder of this backend: "pyav" or "torchcodec". Raises SettingError if it can't be used here."""
    if backend == "pyav":
        return PyavDecoder
    if backend != "torchcodec":
        raise SettingError(f"video_backend={backend!r} must be 'pyav' or 'torchcodec'")
    from robostream.decode_torchcodec import TorchcodecDecoder, check_torchcodec

    check_torchcodec()
    return TorchcodecDecoder


class PyavDecoder:
    """FFmpeg through PyAV: packets that the sample table cuts go straight to a codec context.

    One context per kind of stream and one converter are kept. The context uses one thread: clips are what runs in
    parallel.
    """

    def __init__(self) -> None:
        self._contexts: OrderedDict[tuple[str, bytes], av.VideoCodecContext] = OrderedDict()
        self._reformatter = VideoReformatter()

    def decode(self, clip: CodedClip, out: Pixels, slots: Int) -> None:
        table = clip.table
        # The packet's pts is the picture's position, which is unique even where the file's own pts are not.
        position = np.full(len(table.pts), -1, np.int64)
        position[table.presented] = np.arange(len(table.presented))
        target = {w: s for w, s in zip(clip.wanted.tolist(), slots.tolist(), strict=True) if s >= 0}
        done = 0
        try:
            for first, last in clip.spans:
                self._decode_span(clip, first, last, done, position[first:last].tolist(), out, target)
                done += last - first
        except (av.FFmpegError, ValueError) as error:
            self._contexts.clear()
            raise DecodeError(f"{clip.name}: FFmpeg could not decode {_range(clip)}: {error}") from error
        if target:
            raise DecodeError(f"{clip.name}: picture {min(target)} did not come out of the {table.codec} decoder")

    def _decode_span(
        self,
        clip: CodedClip,
        first: int,
        last: int,
        done: int,
        position: list[int],
        out: Pixels,
        target: dict[int, int],
    ) -> None:
        context = self._context(clip, first)
        size = clip.table.size[first:last].tolist()
        at = clip.at[done : done + last - first].tolist()
        buffer = clip.buffer[done : done + last - first].tolist()
        views = [memoryview(data) for data in clip.buffers]
        for i in range(last - first):
            packet = av.Packet(views[buffer[i]][at[i] : at[i] + size[i]])
            packet.pts = position[i]
            packet.dts = i
            for frame in context.decode(packet):
                self._keep(clip, frame, out, target)
        for frame in context.decode(None):
            self._keep(clip, frame, out, target)
        context.flush_buffers()

    def _keep(self, clip: CodedClip, frame: av.VideoFrame, out: Pixels, target: dict[int, int]) -> None:
        slot = target.pop(-1 if frame.pts is None else frame.pts, None)
        if slot is None:
            return
        if frame.is_corrupt:
            raise DecodeError(f"{clip.name}: picture {frame.pts} is corrupt")
        height, width = out.shape[1:3]
        if (frame.height, frame.width) != (height, width):
            raise DecodeError(
                f"{clip.name}: picture {frame.pts} is {frame.width}×{frame.height}, info.json declares {width}×{height}"
            )
        plane = self._reformatter.reformat(frame, **_REFORMAT).planes[0]
        lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)  # type: ignore[call-overload]
        out[slot].reshape(height, width * 3)[:] = lines[:height, : width * 3]

    def _context(self, clip: CodedClip, first: int) -> av.VideoCodecContext:
        table = clip.table
        extradata = table.extradata[int(table.description[first])]
        context = self._contexts.get((table.codec, extradata))
        if context is None:
            context = _open_context(clip, extradata)
            while len(self._contexts) >= _CONTEXTS:
                self._contexts.popitem(last=False)
            self._contexts[table.codec, extradata] = context
        return context


def _open_context(clip: CodedClip, extradata: bytes) -> av.VideoCodecContext:
    codec = clip.table.codec
    try:
        context = av.CodecContext.create(_DECODERS.get(codec, codec), "r")
    except (av.FFmpegError, ValueError) as error:
        raise DecodeError(
            f"{clip.name}: this build of PyAV has no decoder for '{codec}'. Re-encode the videos to AV1, HEVC or H.264."
        ) from error
    assert isinstance(context, av.VideoCodecContext)
    context.extradata = extradata or None
    context.thread_count = 1
    return context


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
