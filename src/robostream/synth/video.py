"""Encodes the episodes one by one and joins them into MP4 files without encoding again, as lerobot does."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

from .scene import Scene, episode_motion
from .settings import SynthSettings

ENCODERS = {"av1": "libsvtav1", "h264": "libx264", "hevc": "libx265"}
PRESETS = {"av1": "12", "h264": "veryfast", "hevc": "ultrafast"}
SAMPLED_FRAMES = 8  # pictures of an episode that its statistics count


@dataclass(frozen=True)
class Clip:
    """One encoded episode of one camera."""

    data: bytes
    """An MP4 of this episode alone."""
    frames: int
    sampled: int
    """Pictures counted in the histogram."""
    histogram: NDArray[np.int64]
    """(3, 256): how often each value occurs in each colour channel."""


def encode_clip(settings: SynthSettings, camera: int, episode: int) -> Clip:
    """Draws and encodes one episode of one camera."""
    frames = settings.frame_counts[episode]
    scene = Scene(settings, episode_motion(settings, episode), camera, episode)
    sampled = set(np.linspace(0, frames - 1, min(frames, SAMPLED_FRAMES)).astype(int).tolist())
    histogram = np.zeros((3, 256), np.int64)
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = _add_stream(container, settings)
        for number in range(frames):
            picture = scene.picture(number)
            if number in sampled:
                histogram += _histogram(picture)
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return Clip(file.getvalue(), frames, len(sampled), histogram)


def join_clips(path: Path, clips: Iterable[Clip], settings: SynthSettings) -> None:
    """Writes an MP4 of all clips, each after the last frame of the one before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"movflags": "faststart"} if settings.faststart else {}
    start = Fraction(0)  # in frames
    with av.open(str(path), "w", format="mp4", options=options) as joined:
        stream: VideoStream | None = None
        for clip in clips:
            with av.open(io.BytesIO(clip.data)) as source:
                video = source.streams.video[0]
                time_base = Fraction(video.time_base or 0)
                if stream is None:
                    stream = joined.add_stream_from_template(video, opaque=True)
                    stream.time_base = time_base
                shift = round(start / settings.fps / time_base)
                for packet in source.demux(video):
                    if packet.dts is None or packet.pts is None:  # the demuxer's end mark
                        continue
                    packet.pts += shift
                    packet.dts += shift
                    packet.stream = stream
                    joined.mux(packet)
            start += clip.frames + settings.join_stretch


def _add_stream(container: av.container.OutputContainer, settings: SynthSettings) -> VideoStream:
    os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 writes a page to stderr for each encoder, errors apart
    stream = container.add_stream(ENCODERS[settings.codec], rate=settings.fps, options=_options(settings))
    assert isinstance(stream, VideoStream)
    stream.width = settings.width
    stream.height = settings.height
    stream.pix_fmt = settings.pix_fmt
    stream.codec_context.thread_count = 1  # the clips run side by side; one thread also makes them repeatable
    return stream


def _options(settings: SynthSettings) -> dict[str, str]:
    """Encoder options: a fixed GOP (no scene cuts) and, where asked for, a fixed number of B-frames."""
    options = {"g": str(settings.gop), "crf": str(settings.crf), "preset": PRESETS[settings.codec]}
    if settings.codec == "av1":
        options["svtav1-params"] = "lp=1"
    if settings.codec == "h264":
        options |= {"bf": str(settings.bframes), "b_strategy": "0", "sc_threshold": "0"}
    if settings.codec == "hevc":
        x265 = f"bframes={settings.bframes}:b-adapt=0:scenecut=0:open-gop=0:keyint={settings.gop}"
        options["x265-params"] = x265 + ":pools=none:frame-threads=1:log-level=error"
    return options


def _histogram(picture: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(3, 256) counts of every fourth pixel of every fourth row."""
    sparse = picture[::4, ::4].reshape(-1, 3)
    return np.stack([np.bincount(channel, minlength=256) for channel in sparse.T])
