"""One picture of a file through each backend and device, and why it does not come out."""

from __future__ import annotations

import importlib
import time
from dataclasses import dataclass
from typing import Any

import av
import numpy as np
import torch

from robostream.decode import PyavDecoder, open_context
from robostream.decode_device import cuda_problem
from robostream.decode_torchcodec import check_torchcodec
from robostream.diagnose.nvdec import Coded, decoders_of, judge_gpu
from robostream.diagnose.report import TRANSCODE, Finding, error, note, warning
from robostream.diagnose.target import Target
from robostream.errors import DecodeError, RobostreamError, SettingError
from robostream.mp4 import SampleTable
from robostream.video import fetch_clip


@dataclass(frozen=True)
class Attempt:
    """One picture decoded by a backend on a device. ms: how long it took with opening; None if it failed.

    said: the pixel format, or in one line why it failed or was not tried.
    """

    backend: str
    device: str
    ms: float | None
    said: str


def try_pyav(target: Target, table: SampleTable, picture: int) -> tuple[Attempt, Finding | None]:
    """Decode a picture as the loader does."""
    begin = time.perf_counter()
    try:
        clip = fetch_clip(target.source, target.path, table, np.array([picture]))
        open_context(target.name, table.coding(int(table.presented[picture])))
        out = np.empty((table.height, table.width, 3), np.uint8)
        PyavDecoder().decode(clip, [out])
    except RobostreamError as failure:
        finding = _judge_decoding(failure, table)
        return Attempt("pyav", "cpu", None, _line(failure)), finding
    return Attempt("pyav", "cpu", 1e3 * (time.perf_counter() - begin), "rgb24"), None


def _judge_decoding(failure: RobostreamError, table: SampleTable) -> Finding:
    if isinstance(failure, DecodeError) and "no decoder" in str(failure):
        return error(
            "no-decoder",
            str(failure),
            "Re-encode the video with a program that can read it (`ffmpeg -i IN.mp4 -c:v libx264 OUT.mp4`). PyAV's "
            "wheels decode H.264, HEVC and AV1; one that was built from source may lack libdav1d: "
            "`pip install --force-reinstall --only-binary av av`.",
        )
    if isinstance(failure, DecodeError):
        return error(
            "undecodable",
            str(failure),
            "The coded pictures are damaged. Download the file again; else leave the episode out with `episodes=`, or "
            'pass on_error="skip".',
        )
    return error("unreadable", str(failure), "Check that the file is whole and can be read by this user.")


def pixel_format(target: Target, table: SampleTable) -> Coded | None:
    """How the pictures are coded, from the first one; None if it can't be decoded."""
    try:
        clip = fetch_clip(target.source, target.path, table, np.array([0]))
        first, last = clip.spans[0]
        context = open_context(target.name, table.coding(first))
        for i in range(last - first):
            start = int(clip.at[i])
            packet = av.Packet(clip.buffers[int(clip.buffer[i])][start : start + int(table.size[first + i])])
            for frame in context.decode(packet):
                return _coded(table.codec, frame.format)
        return next((_coded(table.codec, frame.format) for frame in context.decode(None)), None)
    except (RobostreamError, av.FFmpegError, ValueError):
        return None


def _coded(codec: str, pixels: av.VideoFormat) -> Coded:
    wide, high = pixels.chroma_width(16), pixels.chroma_height(16)
    chroma = 444 if (wide, high) == (16, 16) else 422 if high == 16 else 420
    return Coded(codec, chroma, pixels.components[0].bits)


def try_torchcodec(target: Target, picture: int, device: str) -> tuple[Attempt, Finding | None]:
    """Decode a picture with torchcodec itself, which reads the file by its own means."""
    try:
        check_torchcodec()
    except SettingError as failure:
        return Attempt("torchcodec", device, None, _line(failure)), _judge_torchcodec(failure)
    begin = time.perf_counter()
    try:
        decoder_class: Any = importlib.import_module("torchcodec.decoders").VideoDecoder
        with target.source.open(target.path) as handle:
            decoder = decoder_class(handle, device=device, num_ffmpeg_threads=1)
            data = decoder.get_frame_at(picture).data
            said = f"{tuple(data.shape)} on {data.device}"
            if device != "cpu" and bool(getattr(decoder, "cpu_fallback", False)):
                said += ", decoded on the CPU"
    except Exception as failure:  # torchcodec raises RuntimeError, ValueError and others; all are answers here
        return Attempt("torchcodec", device, None, _line(failure)), _judge_torchcodec_failure(target, device, failure)
    return Attempt("torchcodec", device, 1e3 * (time.perf_counter() - begin), said), None


def _judge_torchcodec(failure: SettingError) -> Finding:
    if "not installed" in str(failure):
        return note(
            "torchcodec-missing",
            "torchcodec is not installed; it is not needed: PyAV gives the same pixels",
            "To use it, `pip install 'robostream[torchcodec]'`.",
        )
    return warning("torchcodec-broken", _line(failure), "Install FFmpeg 4 to 8 with its shared libraries, or use PyAV.")


def _judge_torchcodec_failure(target: Target, device: str, failure: Exception) -> Finding:
    said = str(failure)
    if device != "cpu" and "unsupported device" in said.lower():
        return error(
            "torchcodec-no-cuda",
            f"torchcodec is built without CUDA ({_line(failure)})",
            "Install the build for your CUDA: `pip install torchcodec --index-url "
            "https://download.pytorch.org/whl/cu126` (the index that torch came from), or decode on the CPU.",
        )
    if device == "cpu" and "decoder" in said.lower() and ("find" in said.lower() or "not" in said.lower()):
        return warning(
            "torchcodec-no-decoder",
            f"{target.name}: the FFmpeg that torchcodec uses can't decode it ({_line(failure)})",
            "Use video_backend='pyav', which brings its own FFmpeg with decoders for H.264, HEVC and AV1, or install "
            "an FFmpeg with libdav1d.",
        )
    return warning(
        "torchcodec-failed",
        f"{target.name}: torchcodec on {device}: {_line(failure)}",
        "Use video_backend='pyav'." if device == "cpu" else f"Decode on the CPU, or {TRANSCODE}.",
    )


@dataclass(frozen=True)
class Gpu:
    """name: as CUDA gives it. decoders: NVDEC units, None where not known."""

    name: str
    capability: tuple[int, int]
    decoders: int | None


def find_gpu(device: str) -> Gpu | None:
    """The GPU that "cuda" or "cuda:N" stands for; without one, None."""
    if cuda_problem() is not None:
        return None
    number = int(device.partition(":")[2] or 0) if device.startswith("cuda") else 0
    if number >= torch.cuda.device_count():
        return None
    name = torch.cuda.get_device_name(number)
    return Gpu(name, torch.cuda.get_device_capability(number), decoders_of(name))


def judge_device(device: str, gpu: Gpu | None, video: Coded | None) -> list[Finding]:
    """What stands in the way of decoding on the device asked for."""
    if device == "cpu":
        return []
    if gpu is None:
        reason = cuda_problem() or f"there is no {device}: PyTorch finds {torch.cuda.device_count()} GPU(s)"
        return [
            error(
                "cuda-no-gpu",
                f"video_decode_device={device!r}: {reason}",
                "Decode on the CPU (the default). On a machine with an NVIDIA GPU: see that `nvidia-smi` lists it, "
                "that the container was started with the GPU and NVIDIA_DRIVER_CAPABILITIES=video,compute, and install "
                "a PyTorch with CUDA (https://pytorch.org/get-started/locally).",
            )
        ]
    finding = judge_gpu(gpu.name, gpu.capability, video) if video is not None else None
    return [finding] if finding is not None else []


def _line(failure: Exception) -> str:
    """The first line of a message."""
    return next((line.strip() for line in str(failure).splitlines() if line.strip()), type(failure).__name__)
