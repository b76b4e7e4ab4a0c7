"""Decoded frames → RGB pictures in memory that is ready for them.

PyAV's `VideoReformatter` makes a new frame for each picture, which must then be copied. Where PyAV comes with its own
FFmpeg (all wheels do), the same function of the same library is called directly and writes where the picture is to
lie. It is trusted for a kind of frame (format, size, colours) only after its result was equal, bit for bit, to the
reformatter's, and nothing beyond the picture was touched; else the reformatter is used.
"""

from __future__ import annotations

import ctypes
import inspect
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import VideoReformatter

Pixels = npt.NDArray[np.uint8]
_Kind = tuple[str, int, int, int, int]

log = logging.getLogger("robostream")

_BILINEAR = 2  # SWS_BILINEAR, PyAV's default
_GUARD = 256  # bytes behind a trial picture that must stay as they were
_TRIALS = 2  # pictures of a kind that are checked before the direct way is trusted
_Pointers = ctypes.c_void_p * 4
_Strides = ctypes.c_int * 4
# PyAV converts with as many threads as there are cores unless told otherwise, which is slower under our threads.
REFORMAT: dict[str, Any] = {"format": "rgb24"}
if "threads" in str(inspect.getdoc(VideoReformatter.reformat)):
    REFORMAT["threads"] = 1


class RgbConverter:
    """Converts frames to RGB. One per thread."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()
        self._trusted: dict[_Kind, _Scaler] = {}
        self._trials: dict[_Kind, tuple[_Scaler | None, int]] = {}  # None: the direct way won't do

    def convert(self, frame: av.VideoFrame, out: Pixels) -> None:
        """Write a frame to `out`, uint8 [H, W, 3], contiguous, of the frame's size."""
        kind = (frame.format.name, frame.width, frame.height, frame.colorspace, frame.color_range)
        scaler = self._trusted.get(kind)
        if scaler is not None:
            scaler.scale(frame, out)
            return
        self._reformat(frame, out)
        self._try(kind, frame, out)

    def _try(self, kind: _Kind, frame: av.VideoFrame, expected: Pixels) -> None:
        """Compare the direct way with the reformatter's; after some equal pictures of a kind, it is trusted."""
        if kind not in self._trials:
            self._trials[kind] = (_Scaler.make(frame), _TRIALS)
        scaler, left = self._trials[kind]
        if scaler is None:
            return
        if not scaler.agrees(frame, expected):
            log.info("frames of %s are converted through PyAV, with one more copy", kind)
            self._trials[kind] = (None, 0)
        elif left > 1:
            self._trials[kind] = (scaler, left - 1)
        else:
            self._trusted[kind] = scaler

    def _reformat(self, frame: av.VideoFrame, out: Pixels) -> None:
        height, width = out.shape[:2]
        plane = self._reformatter.reformat(frame, **REFORMAT).planes[0]
        lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)  # type: ignore[call-overload]
        out.reshape(height, width * 3)[:] = lines[:height, : width * 3]


class _Scaler:
    """swscale's context for one kind of frame."""

    def __init__(self, library: ctypes.CDLL, context: int, frame: av.VideoFrame) -> None:
        self._library, self._scale = library, library.sws_scale
        self._context = context
        self._height = frame.height
        # Filled in anew for each frame; making them anew would cost more than the call.
        self._source, self._source_strides = _Pointers(), _Strides()
        self._target, self._target_strides = _Pointers(), _Strides(frame.width * 3, 0, 0, 0)
        arrays = (self._source, self._source_strides, self._target, self._target_strides)
        self._arguments = tuple(ctypes.addressof(array) for array in arrays)
        self._bytes = frame.width * frame.height * 3

    @classmethod
    def make(cls, frame: av.VideoFrame) -> _Scaler | None:
        """A context for frames like this one; None where PyAV's libraries can't be called directly."""
        libraries = _libraries()
        if libraries is None:
            return None
        avutil, swscale = libraries
        source, target = (avutil.av_get_pix_fmt(name.encode()) for name in (frame.format.name, "rgb24"))
        size = (frame.width, frame.height)
        context = swscale.sws_getContext(*size, source, *size, target, _BILINEAR, None, None, None)
        return cls(swscale, context, frame) if context else None

    def scale(self, frame: av.VideoFrame, out: Pixels) -> None:
        """Write the RGB picture to the memory that begins with `out`."""
        for i, plane in enumerate(frame.planes):
            self._source[i] = plane.buffer_ptr
            self._source_strides[i] = plane.line_size
        self._target[0] = ctypes.addressof(ctypes.c_ubyte.from_buffer(out))  # type: ignore[arg-type]  # the quickest way to its address
        source, strides, target, target_strides = self._arguments
        lines = self._scale(self._context, source, strides, 0, self._height, target, target_strides)
        if lines != self._height:
            raise ValueError(f"swscale wrote {lines} of {self._height} lines")

    def agrees(self, frame: av.VideoFrame, expected: Pixels) -> bool:
        """Whether this gives the expected picture and writes nothing beyond it."""
        for guard in (0x5A, 0xA5):
            trial = np.full(self._bytes + _GUARD, guard, np.uint8)
            self.scale(frame, trial)
            if not np.array_equal(trial[: self._bytes], expected.reshape(-1)):
                return False
            if (trial[self._bytes :] != guard).any():
                return False
        return True

    def __del__(self) -> None:
        self._library.sws_freeContext(ctypes.c_void_p(self._context))


@lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL] | None:
    """(libavutil, libswscale) that PyAV's wheel brings along; None if it uses others."""
    package = Path(av.__file__).parent
    folders = [package.parent / "av.libs", package / ".dylibs"]
    found = []
    for name in ("avutil", "swscale"):
        paths = [path for folder in folders for path in sorted(folder.glob(f"*{name}*"))]
        if len(paths) != 1:
            return None
        found.append(paths[0])
    try:
        avutil, swscale = (ctypes.CDLL(str(path)) for path in found)
        avutil.av_get_pix_fmt.argtypes = [ctypes.c_char_p]
        swscale.sws_getContext.restype = ctypes.c_void_p
        swscale.sws_getContext.argtypes = [ctypes.c_int] * 7 + [ctypes.c_void_p] * 3
        address, number = ctypes.c_void_p, ctypes.c_int
        swscale.sws_scale.argtypes = [address, address, address, number, number, address, address]
    except (OSError, AttributeError):
        return None
    return avutil, swscale
