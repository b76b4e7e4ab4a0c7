"""MP4 files to read: encoded ones, and ones whose boxes are made by hand."""

from __future__ import annotations

import io
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import av
import numpy as np

from robostream.mp4 import SampleTable, read_sample_table

WIDTH, HEIGHT, FPS, FRAMES = 96, 64, 30, 40


@dataclass
class MemoryReader:
    """A file in memory that notes which bytes were asked for."""

    data: bytes
    name: str = "memory.mp4"
    reads: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.data)

    def read_at(self, start: int, length: int) -> bytes:
        self.reads.append((start, length))
        return self.data[start : start + length]


def table_of(data: bytes) -> SampleTable:
    return read_sample_table(MemoryReader(data))


def top_level(data: bytes) -> list[tuple[bytes, int, int]]:
    """(kind, start, end) of each top-level box."""
    boxes, at = [], 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        boxes.append((kind, at, at + size))
        at += size
    return boxes


# Encoded files ----------------------------------------------------------------------------------------------


def pictures(count: int, seed: int = 0) -> Iterator[av.VideoFrame]:
    """A moving gradient with noise, so that every picture differs and the references matter."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    for i in range(count):
        base = np.stack([x * 2 + 5 * i, y * 3 - 4 * i, x + y + 3 * i], axis=-1)
        noisy = base + rng.integers(0, 40, base.shape)
        yield av.VideoFrame.from_ndarray((noisy % 256).astype(np.uint8), format="rgb24")


@dataclass(frozen=True)
class Recipe:
    codec: str
    options: dict[str, str]
    mux: dict[str, str] = field(default_factory=dict)
    audio_first: bool = False


X264 = {"preset": "veryfast", "threads": "1"}
SVT = {"preset": "12", "svtav1-params": "lp=1"}
X265 = "log-level=none:pools=none:frame-threads=1:scenecut=0"

RECIPES = {
    "h264_gop2": Recipe("libx264", {**X264, "g": "2", "bf": "0"}),
    "h264_gop2_head": Recipe("libx264", {**X264, "g": "2", "bf": "0"}, {"movflags": "faststart"}),
    "h264_bframes": Recipe("libx264", {**X264, "g": "12", "bf": "3"}),
    "h264_gop250": Recipe("libx264", {**X264, "g": "250", "bf": "2"}, {"movflags": "faststart"}),
    "h264_open": Recipe("libx264", {**X264, "g": "8", "bf": "3", "x264-params": "open-gop=1:scenecut=0"}),
    "h264_negative_cts": Recipe("libx264", {**X264, "g": "12"}, {"movflags": "negative_cts_offsets"}),
    "h264_no_edits": Recipe("libx264", {**X264, "g": "12"}, {"use_editlist": "0"}),
    "h264_audio": Recipe("libx264", {**X264, "g": "10"}, audio_first=True),
    "hevc_closed": Recipe("libx265", {"preset": "ultrafast", "x265-params": f"{X265}:keyint=10:open-gop=0"}),
    "hevc_open": Recipe("libx265", {"preset": "fast", "x265-params": f"{X265}:keyint=8:open-gop=1:bframes=3"}),
    "av1_gop2": Recipe("libsvtav1", {**SVT, "g": "2"}),
    "av1_gop20_head": Recipe("libsvtav1", {**SVT, "g": "20"}, {"movflags": "faststart"}),
}


def encode(recipe: Recipe, frames: int = FRAMES) -> bytes:
    with tempfile.TemporaryDirectory() as folder:  # faststart reopens the file by its name
        path = Path(folder) / "video.mp4"
        write(path, recipe, frames)
        return path.read_bytes()


def write(path: Path, recipe: Recipe, frames: int) -> None:
    with av.open(str(path), "w", options=recipe.mux) as container:
        if recipe.audio_first:
            sound = container.add_stream("aac", rate=16000, layout="mono")
        video = container.add_stream(recipe.codec, rate=FPS, options=recipe.options)
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        video.codec_context.thread_count = 1
        if recipe.audio_first:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 16000), np.float32), "fltp", "mono")
            silence.sample_rate = 16000
            container.mux(sound.encode(silence))
            container.mux(sound.encode(None))
        for picture in pictures(frames):
            container.mux(video.encode(picture))
        container.mux(video.encode(None))


def concatenate(parts: list[bytes]) -> bytes:
    """Packets of several files one after another, as LeRobot joins episodes into one file."""
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as target:
        stream, shift = None, 0
        for part in parts:
            with av.open(io.BytesIO(part)) as source:
                video = source.streams.video[0]
                stream = stream or target.add_stream_from_template(video, opaque=True)
                for packet in source.demux(video):
                    if packet.size:
                        packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                        packet.stream = stream
                        target.mux(packet)
                shift += video.duration
    return out.getvalue()


@cache
def coded(name: str) -> bytes:
    """The file of that name, made once."""
    if name == "h264_concatenated":
        return concatenate([coded("h264_bframes")] * 3)
    if name == "av1_concatenated":
        return concatenate([coded("av1_gop2"), coded("av1_gop20_head")])
    return encode(RECIPES[name])


NAMES = [*RECIPES, "h264_concatenated", "av1_concatenated"]


# Boxes made by hand -----------------------------------------------------------------------------------------


def box(kind: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def large_box(kind: bytes, *content: bytes) -> bytes:
    body = b"".join(content)
    return struct.pack(">I4sQ", 1, kind, 16 + len(body)) + body


def full(kind: bytes, version: int, *content: bytes) -> bytes:
    return box(kind, struct.pack(">I", version << 24), *content)


def numbers(dtype: str, *values: object) -> bytes:
    return np.array(values).astype(dtype).tobytes()


def sample_entry(kind: bytes = b"avc1", configuration: bytes | None = b"avcC") -> bytes:
    fields = bytes(24) + struct.pack(">HH", WIDTH, HEIGHT) + bytes(50)
    return box(kind, fields, box(configuration, b"\x01extra") if configuration else b"")


@dataclass
class Tables:
    """Content of the boxes of 'stbl', to vary one at a time."""

    stsd: bytes = full(b"stsd", 0, numbers(">u4", 1), sample_entry())
    stts: bytes = full(b"stts", 0, numbers(">u4", 1, 6, 10))
    ctts: bytes = b""
    stss: bytes = full(b"stss", 0, numbers(">u4", 2, 1, 4))
    stsz: bytes = full(b"stsz", 0, numbers(">u4", 0, 6, 5, 4, 3, 5, 4, 3))
    stsc: bytes = full(b"stsc", 0, numbers(">u4", 1, 1, 3, 1))
    stco: bytes = full(b"stco", 0, numbers(">u4", 2, 1000, 1100))

    def stbl(self) -> bytes:
        return box(b"stbl", self.stsd, self.stts, self.ctts, self.stss, self.stsz, self.stsc, self.stco)


def track(stbl: bytes, elst: bytes = b"", handler: bytes = b"vide", timescale: int = 300, v: int = 0) -> bytes:
    times = numbers(">u8", 0, 0) if v else numbers(">u4", 0, 0)
    mdhd = full(b"mdhd", v, times, numbers(">u4", timescale))
    hdlr = full(b"hdlr", 0, bytes(4), handler, bytes(13))
    edits = box(b"edts", elst) if elst else b""
    return box(b"trak", edits, box(b"mdia", mdhd, hdlr, box(b"minf", stbl)))


def movie(*tracks: bytes, extra: bytes = b"", timescale: int = 100) -> bytes:
    mvhd = full(b"mvhd", 0, numbers(">u4", 0, 0, timescale))
    return box(b"moov", mvhd, *tracks, extra)


def file_of(moov: bytes, size: int = 2000) -> bytes:
    ftyp = box(b"ftyp", b"isom", bytes(4))
    return ftyp + moov + box(b"mdat", bytes(max(0, size - len(ftyp) - len(moov) - 8)))


def hand_made(elst: bytes = b"", **tables: bytes) -> SampleTable:
    return table_of(file_of(movie(track(Tables(**tables).stbl(), elst))))


def edits(*rows: tuple[int, int, int], version: int = 0) -> bytes:
    """'elst' of (duration, media_time, rate) rows."""
    form = ">QqI" if version else ">IiI"
    return full(b"elst", version, numbers(">u4", len(rows)), *(struct.pack(form, *row) for row in rows))


RATE = 1 << 16


def synthetic(frames: int, moov_first: bool) -> bytes:
    """A file with B-frame-like times, frames of 1 byte, 16 to a chunk."""
    chunks = -(-frames // 16)
    tables = Tables(
        stts=full(b"stts", 0, numbers(">u4", 1, frames, 10)),
        ctts=full(b"ctts", 0, numbers(">u4", frames), np.tile([1, 10], frames).astype(">u4").tobytes()),
        stsz=full(b"stsz", 0, numbers(">u4", 0, frames), np.ones(frames, ">u4").tobytes()),
        stsc=full(b"stsc", 0, numbers(">u4", 2, 1, 16, 1, chunks, frames - 16 * (chunks - 1), 1)),
        stco=full(b"co64", 0, numbers(">u4", chunks), (np.arange(chunks) * 16).astype(">u8").tobytes()),
    )
    moov, mdat = movie(track(tables.stbl())), box(b"mdat", bytes(frames))
    ftyp = box(b"ftyp", b"isom", bytes(4))
    return ftyp + (moov + mdat if moov_first else mdat + moov)
