"""Small videos of many kinds, and what decoding the whole file gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pytest

from robostream.decode import VideoDecoder
from robostream.index import VideoIndex
from robostream.source import LocalSource
from robostream.video import CodedClip, fetch_clip

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Video:
    """How a video is written. colours: attributes of the encoder."""

    encoder: str
    options: dict[str, str]
    pixels: str = "yuv420p"
    width: int = 96
    height: int = 64
    frames: int = 40
    colours: dict[str, int] = field(default_factory=dict)


def x264(**options: str) -> dict[str, str]:
    return {"preset": "veryfast", "threads": "1", **options}


def x265(parameters: str) -> dict[str, str]:
    return {"preset": "ultrafast", "x265-params": f"log-level=none:pools=none:frame-threads=1:scenecut=0:{parameters}"}


def svt(**options: str) -> dict[str, str]:
    return {"preset": "12", "svtav1-params": "lp=1", **options}


VIDEOS = {
    "h264 gop 2": Video("libx264", x264(g="2", bf="0")),
    "h264 keyframes only": Video("libx264", x264(g="1")),
    "h264 gop 250": Video("libx264", x264(g="250", bf="0"), frames=60),
    "h264 gop 250, B-frames": Video("libx264", x264(g="250", bf="3"), frames=60),
    "h264 B-frames": Video("libx264", x264(g="12", bf="3")),
    "h264 pyramid": Video("libx264", x264(**{"x264-params": "keyint=16:bframes=6:b-pyramid=normal:ref=4"})),
    "h264 open gop": Video("libx264", x264(g="8", bf="3", **{"x264-params": "open-gop=1:scenecut=0:b-adapt=0"})),
    "hevc": Video("libx265", x265("keyint=10:open-gop=0:bframes=0")),
    "hevc B-frames": Video("libx265", x265("keyint=10:open-gop=0:bframes=3")),
    "hevc open gop": Video("libx265", x265("keyint=8:open-gop=1:bframes=3:b-adapt=0")),
    "av1 gop 2": Video("libsvtav1", svt(g="2")),
    "av1 gop 20": Video("libsvtav1", svt(g="20")),
    "h264 4:4:4": Video("libx264", x264(g="10", bf="2"), "yuv444p"),
    "hevc 4:4:4": Video("libx265", x265("keyint=10:bframes=2"), "yuv444p"),
    "h264 4:2:2": Video("libx264", x264(g="10"), "yuv422p"),
    "hevc 10 bits": Video("libx265", x265("keyint=10:bframes=2"), "yuv420p10le"),
    "hevc 10 bits 4:4:4": Video("libx265", x265("keyint=10"), "yuv444p10le"),
    "h264 10 bits": Video("libx264", x264(g="10"), "yuv420p10le"),
    "av1 10 bits": Video("libsvtav1", svt(g="10"), "yuv420p10le"),
    "h264 width 98, height 66": Video("libx264", x264(g="10", bf="2"), width=98, height=66),
    "h264 width 100": Video("libx264", x264(g="10"), width=100),
    "hevc width 90, height 50": Video("libx265", x265("keyint=10"), width=90, height=50),
    "av1 width 98, height 66": Video("libsvtav1", svt(g="2"), width=98, height=66),
    "av1 97 × 65": Video("libsvtav1", svt(g="2"), width=97, height=65),
    "av1 97 × 64": Video("libsvtav1", svt(g="2"), width=97),
    "av1 96 × 65": Video("libsvtav1", svt(g="2"), height=65),
    "h264 97 × 65": Video("libx264", x264(g="10", bf="2"), "yuv444p", 97, 65),
    "hevc 97 × 65": Video("libx265", x265("keyint=10"), "yuv444p", 97, 65),
    "h264 full range": Video("libx264", x264(g="10"), "yuvj420p"),
    "h264 bt709": Video("libx264", x264(g="10"), colours={"colorspace": 1, "color_range": 1}),
    "h264 bt2020": Video("libx264", x264(g="10"), colours={"colorspace": 9, "color_range": 1}),
}


def draw(video: Video) -> list[Pixels]:
    """Moving gradients with noise, so that pictures differ and refer to each other."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[: video.height, : video.width]
    pictures = []
    for i in range(video.frames):
        base = np.stack([x * 2 + 5 * i, y * 3 - 4 * i, x + y + 3 * i], axis=-1)
        pictures.append(((base + rng.integers(0, 40, base.shape)) % 256).astype(np.uint8))
    return pictures


def write(path: Path, video: Video) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(video.encoder, rate=30, options=video.options)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = video.width, video.height, video.pixels
        stream.codec_context.thread_count = 1
        for name, value in video.colours.items():
            setattr(stream.codec_context, name, value)
        for picture in draw(video):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


@dataclass(frozen=True, eq=False)
class Written:
    """A written video and what it shows: uint8 [frames, H, W, 3]."""

    folder: Path
    pictures: Pixels

    def fetch(self, wanted: Sequence[int]) -> CodedClip:
        source = LocalSource(self.folder)
        return fetch_clip(source, "video.mp4", VideoIndex(source).table("video.mp4"), np.array(wanted, np.int64))

    def decode(self, decoder: VideoDecoder, wanted: Sequence[int]) -> Pixels:
        out = np.zeros((len(wanted), *self.pictures.shape[1:]), np.uint8)
        decoder.decode(self.fetch(wanted), list(out))
        return out


def decoded_whole(path: Path) -> Pixels:
    with av.open(str(path)) as container:
        frames = [frame.reformat(format="rgb24").to_ndarray() for frame in container.decode(video=0)]
    return np.stack(frames)


Make = Callable[[str], Written]


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Videos by name, each written once."""
    made: dict[str, Written] = {}

    def make(name: str) -> Written:
        if name not in made:
            folder = tmp_path_factory.mktemp("video")
            write(folder / "video.mp4", VIDEOS[name])
            made[name] = Written(folder, decoded_whole(folder / "video.mp4"))
            assert len(made[name].pictures) == VIDEOS[name].frames
        return made[name]

    return make
