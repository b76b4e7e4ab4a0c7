"""FFmpeg's own functions, from the libraries that PyAV has loaded, and the structures that they share with us.

The layouts are those of FFmpeg 7 and 8 (`libavutil/frame.h`, `libavcodec/packet.h`, `libavcodec/codec_par.h`). They are
used only with those versions, and only if what FFmpeg allocates holds FFmpeg's defaults where they say.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import lru_cache
from typing import Any

import av
import av.codec.context
import av.video.reformatter

NO_PTS = -(2**63)  # AV_NOPTS_VALUE
CORRUPT = 1  # AV_FRAME_FLAG_CORRUPT
PADDING = 64  # AV_INPUT_BUFFER_PADDING_SIZE
_UNSPECIFIED = 2  # of colours
_VERSIONS = {(59, 61), (60, 62)}  # libavutil, libavcodec


class Packet(ctypes.Structure):
    """AVPacket, as far as it is needed."""

    _fields_ = (("buf", c_void_p), ("pts", c_int64), ("dts", c_int64), ("data", c_void_p), ("size", c_int))


class Parameters(ctypes.Structure):
    """AVCodecParameters, as far as it is needed."""

    _fields_ = (
        ("codec_type", c_int),
        ("codec_id", c_int),
        ("codec_tag", c_int),
        ("extradata", c_void_p),
        ("extradata_size", c_int),
    )


def _frame_type(avutil: int) -> type[ctypes.Structure]:
    """AVFrame, as far as it is needed, in a version of libavutil."""
    old = avutil < 60

    class Frame(ctypes.Structure):
        _fields_ = (
            ("data", c_void_p * 8),
            ("linesize", c_int * 8),
            ("extended_data", c_void_p),
            *((name, c_int) for name in ("width", "height", "nb_samples", "format")),
            *([("key_frame", c_int)] if old else []),
            ("pict_type", c_int),
            ("sample_aspect_ratio", c_int * 2),
            ("pts", c_int64),
            ("pkt_dts", c_int64),
            ("time_base", c_int * 2),
            ("quality", c_int),
            ("opaque", c_void_p),
            ("repeat_pict", c_int),
            *([("interlaced_frame", c_int), ("top_field_first", c_int), ("palette_has_changed", c_int)] if old else []),
            ("sample_rate", c_int),
            ("buf", c_void_p * 8),
            ("extended_buf", c_void_p),
            ("nb_extended_buf", c_int),
            ("side_data", c_void_p),
            ("nb_side_data", c_int),
            *((name, c_int) for name in ("flags", "color_range", "color_primaries", "color_trc", "colorspace")),
            ("chroma_location", c_int),
            ("best_effort_timestamp", c_int64),
            *([("pkt_pos", c_int64)] if old else []),
            ("metadata", c_void_p),
            ("decode_error_flags", c_int),
        )

    return Frame


class Libav:
    """FFmpeg's functions under their names without `av_`, `avcodec_` and `sws_`.

    `send` and `scale`, where the work is done, let go of the interpreter lock. The others are short and keep it: to
    get it back would take longer than they do.

    Raises AttributeError where the libraries lack a function, OSError where they can't be opened.
    """

    def __init__(self) -> None:
        # A symbol is looked for in the libraries that PyAV's modules are linked to, too.
        codec, scaler = str(av.codec.context.__file__), str(av.video.reformatter.__file__)
        brief, brief_scaler = ctypes.PyDLL(codec), ctypes.PyDLL(scaler)
        long, long_scaler = ctypes.CDLL(codec), ctypes.CDLL(scaler)
        address = c_void_p

        def function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            found = library[name]  # of its own, so that its types are of its own
            found.restype, found.argtypes = result, list(arguments)
            return found

        self.send = function(long, "avcodec_send_packet", c_int, address, address)
        self.receive = function(brief, "avcodec_receive_frame", c_int, address, address)
        self.flush = function(brief, "avcodec_flush_buffers", None, address)
        self.find_decoder = function(brief, "avcodec_find_decoder_by_name", address, c_char_p)
        self.alloc_context = function(brief, "avcodec_alloc_context3", address, address)
        self.free_context = function(brief, "avcodec_free_context", None, address)
        self.open = function(brief, "avcodec_open2", c_int, address, address, address)
        self.opt_set = function(brief, "av_opt_set", c_int, address, c_char_p, c_char_p, c_int)
        self.alloc_parameters = function(brief, "avcodec_parameters_alloc", address)
        self.free_parameters = function(brief, "avcodec_parameters_free", None, address)
        self.to_context = function(brief, "avcodec_parameters_to_context", c_int, address, address)
        self.from_context = function(brief, "avcodec_parameters_from_context", c_int, address, address)
        self.mallocz = function(brief, "av_mallocz", address, c_size_t)
        self.alloc_packet = function(brief, "av_packet_alloc", address)
        self.free_packet = function(brief, "av_packet_free", None, address)
        self.alloc_frame = function(brief, "av_frame_alloc", address)
        self.free_frame = function(brief, "av_frame_free", None, address)
        self.rgb24 = function(brief, "av_get_pix_fmt", c_int, c_char_p)(b"rgb24")
        self.get_scaler = function(brief_scaler, "sws_getContext", address, *[c_int] * 7, *[address] * 3)
        self.free_scaler = function(brief_scaler, "sws_freeContext", None, address)
        self.coefficients = function(brief_scaler, "sws_getCoefficients", address, c_int)
        colours = [address, address, c_int, address, *[c_int] * 4]
        self.set_colours = function(brief_scaler, "sws_setColorspaceDetails", c_int, *colours)
        pictures = [address, address, c_int, c_int, address, address]
        self.scale = function(long_scaler, "sws_scale", c_int, address, *pictures)
        self.versions = tuple(function(brief, f"{name}_version", c_int)() >> 16 for name in ("avutil", "avcodec"))
        self.Frame = _frame_type(self.versions[0])

    def is_known(self) -> bool:
        """Whether the layouts are those of the libraries."""
        if self.versions not in _VERSIONS:
            return False
        frame, packet, parameters = c_void_p(), c_void_p(), c_void_p()
        try:
            frame.value, packet.value = self.alloc_frame(), self.alloc_packet()
            parameters.value = self.alloc_parameters()
            made: Any = self.Frame.from_address(frame.value or 0)
            times = (made.pts, made.pkt_dts, made.best_effort_timestamp)
            colours = (made.color_primaries, made.color_trc, made.colorspace)
            sent = Packet.from_address(packet.value or 0)
            stream = Parameters.from_address(parameters.value or 0)
            return (
                times == (NO_PTS,) * 3
                and colours == (_UNSPECIFIED,) * 3
                and (made.format, *made.sample_aspect_ratio) == (-1, 0, 1)
                and (made.width, made.height, made.flags, made.color_range, made.decode_error_flags) == (0,) * 5
                and (sent.pts, sent.dts, sent.data, sent.size) == (NO_PTS, NO_PTS, None, 0)
                and (stream.codec_type, stream.extradata, stream.extradata_size) == (-1, None, 0)
            )
        finally:
            self.free_frame(ctypes.byref(frame))
            self.free_packet(ctypes.byref(packet))
            self.free_parameters(ctypes.byref(parameters))


@lru_cache(maxsize=1)
def load() -> Libav | None:
    """The libraries; None where they can't be called directly."""
    try:
        library = Libav()
    except (OSError, AttributeError):
        return None
    return library if library.is_known() else None
