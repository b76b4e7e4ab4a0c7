"""The sample table against FFmpeg's demuxer, and decoding from it against decoding the whole file."""

from __future__ import annotations

import io
import itertools
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from robostream.errors import DataFileError
from robostream.mp4 import SampleTable, read_sample_table
from robostream.mp4_boxes import HEAD_BYTES

WIDTH, HEIGHT, FPS, FRAMES = 96, 64, 30, 40
GOLDEN = sorted((Path(__file__).parent / "golden").glob("**/*.mp4"))


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


# Making files -----------------------------------------------------------------------------------------------


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
    "hevc_open": Recipe(
        "libx265", {"preset": "fast", "x265-params": f"{X265}:keyint=8:open-gop=1:bframes=3"}
    ),
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


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    made = {name: encode(recipe) for name, recipe in RECIPES.items()}
    made["h264_concatenated"] = concatenate([made["h264_bframes"]] * 3)
    made["av1_concatenated"] = concatenate([made["av1_gop2"], made["av1_gop20_head"]])
    return made


NAMES = [*RECIPES, "h264_concatenated", "av1_concatenated"]


def table_of(data: bytes) -> SampleTable:
    return read_sample_table(MemoryReader(data))


# The table against FFmpeg's demuxer -------------------------------------------------------------------------


def check_against_demuxer(data: bytes) -> SampleTable:
    """Every packet that FFmpeg's demuxer gives is a row of the table (it leaves out what no edit needs)."""
    table = table_of(data)
    row_at = {offset: row for row, offset in enumerate(table.offset.tolist())}
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        packets = [packet for packet in container.demux(stream) if packet.size]
        rows = [row_at[packet.pos] for packet in packets]
        assert rows == list(range(rows[0], rows[0] + len(rows)))
        assert table.size[rows].tolist() == [packet.size for packet in packets]
        assert table.dts[rows].tolist() == [packet.dts for packet in packets]
        assert table.pts[rows].tolist() == [packet.pts for packet in packets]
        assert table.keyframe[rows].tolist() == [packet.is_keyframe for packet in packets]
        shown = [row for row, packet in zip(rows, packets, strict=True) if not packet.is_discard]
        assert sorted(table.presented.tolist()) == shown
        assert np.all(np.diff(table.pts[table.presented]) > 0)
        assert Fraction(1, table.timescale) == stream.time_base
        assert (table.width, table.height) == (stream.width, stream.height)
        assert table.extradata[0] == stream.codec_context.extradata
        assert table.codec == stream.codec.canonical_name
    return table


@pytest.mark.parametrize("name", NAMES)
def test_every_packet_agrees_with_ffmpeg(files: dict[str, bytes], name: str) -> None:
    table = check_against_demuxer(files[name])
    copies = {"h264_concatenated": 3, "av1_concatenated": 2}.get(name, 1)
    assert len(table.size) == len(table.presented) == copies * FRAMES
    assert table.frame_rate == FPS
    assert table.duration == copies * FRAMES * table.timescale // FPS
    assert table.moov_at_head == (name in RECIPES and RECIPES[name].mux.get("movflags") == "faststart")
    if name != "h264_no_edits":
        assert table.pts[table.presented[0]] == 0


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: "/".join(path.parts[-6:]))
def test_golden_files_agree_with_ffmpeg(path: Path) -> None:
    data = path.read_bytes()
    table = check_against_demuxer(data)
    wanted = np.random.default_rng(0).choice(len(table.presented), size=8)
    check_spans(data, [wanted])


# Which bytes are read ---------------------------------------------------------------------------------------


def top_level(data: bytes) -> list[tuple[bytes, int, int]]:
    """(kind, start, end) of each top-level box."""
    boxes, at = [], 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        boxes.append((kind, at, at + size))
        at += size
    return boxes


def padded(data: bytes, pad: int) -> bytes:
    """The same movie with `pad` unused bytes at the end of its media data (moov must be at the tail)."""
    (_, start, end) = next(box for box in top_level(data) if box[0] == b"mdat")
    head = struct.pack(">I", end - start + pad)
    return data[:start] + head + data[start + 4 : end] + bytes(pad) + data[end:]


@pytest.mark.parametrize("name", ["h264_gop2", "h264_bframes", "av1_gop2"])
def test_media_data_is_jumped_over(files: dict[str, bytes], name: str) -> None:
    data = padded(files[name], 5_000_000)
    _, moov_start, moov_end = top_level(data)[-1]
    reader = MemoryReader(data)
    table = read_sample_table(reader)
    assert reader.reads == [(0, HEAD_BYTES), (moov_start, moov_end - moov_start)]
    assert table.bytes_read == HEAD_BYTES + moov_end - moov_start
    assert not table.moov_at_head
    assert np.array_equal(table.pts, table_of(files[name]).pts)


def test_moov_at_head_takes_one_read_of_the_head(files: dict[str, bytes]) -> None:
    data = files["h264_gop2_head"] + struct.pack(">I4s", 5_000_008, b"free") + bytes(5_000_000)
    reader = MemoryReader(data)
    table = read_sample_table(reader)
    assert reader.reads == [(0, HEAD_BYTES)]
    assert table.bytes_read == HEAD_BYTES
    assert table.moov_at_head


def test_moov_longer_than_the_head_is_read_once() -> None:
    frames = 50_000
    data = synthetic(frames, moov_first=True)
    reader = MemoryReader(data)
    table = read_sample_table(reader)
    (moov_end,) = (end for kind, _, end in top_level(data) if kind == b"moov")
    assert moov_end > HEAD_BYTES
    assert reader.reads == [(0, HEAD_BYTES), (HEAD_BYTES, moov_end - HEAD_BYTES)]
    assert len(table.size) == frames


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


def track(
    stbl: bytes, elst: bytes = b"", handler: bytes = b"vide", timescale: int = 300, v: int = 0
) -> bytes:
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


def test_a_plain_table_made_by_hand() -> None:
    table = hand_made()
    assert table.codec == "h264"
    assert (table.width, table.height, table.timescale) == (WIDTH, HEIGHT, 300)
    assert table.extradata == (b"\x01extra",)
    assert table.offset.tolist() == [1000, 1005, 1009, 1100, 1105, 1109]
    assert table.size.tolist() == [5, 4, 3, 5, 4, 3]
    assert table.dts.tolist() == table.pts.tolist() == [0, 10, 20, 30, 40, 50]
    assert table.keyframe.tolist() == [True, False, False, True, False, False]
    assert table.description.tolist() == [0] * 6
    assert table.frame_rate == 30
    arrays = (table.offset, table.size, table.dts, table.pts, table.presented)
    assert {array.dtype for array in arrays} == {np.dtype(np.int64)}
    assert (table.keyframe.dtype, table.description.dtype) == (np.bool_, np.int16)


@pytest.mark.parametrize(
    ("bits", "content"),
    [
        (4, bytes([0x54, 0x35, 0x43])),
        (8, bytes([5, 4, 3, 5, 4, 3])),
        (16, numbers(">u2", 5, 4, 3, 5, 4, 3)),
    ],
)
def test_compact_sizes(bits: int, content: bytes) -> None:
    table = hand_made(stsz=full(b"stz2", 0, numbers(">u4", bits, 6), content))
    assert table.size.tolist() == [5, 4, 3, 5, 4, 3]


def test_one_size_for_all_and_64_bit_offsets_and_no_stss() -> None:
    table = hand_made(
        stsz=full(b"stsz", 0, numbers(">u4", 7, 6)),
        stco=full(b"co64", 0, numbers(">u4", 2), numbers(">u8", 1000, 1100)),
        stss=b"",
    )
    assert table.offset.tolist() == [1000, 1007, 1014, 1100, 1107, 1114]
    assert table.keyframe.all()


def test_uneven_chunks_and_two_sample_descriptions() -> None:
    table = hand_made(
        stsd=full(b"stsd", 0, numbers(">u4", 2), sample_entry(), sample_entry(b"avc3")),
        stsc=full(b"stsc", 0, numbers(">u4", 2, 1, 2, 1, 3, 1, 2)),
        stco=full(b"stco", 0, numbers(">u4", 4, 1000, 1100, 1200, 1050)),
    )
    assert table.offset.tolist() == [1000, 1005, 1100, 1103, 1200, 1050]
    assert table.description.tolist() == [0, 0, 0, 0, 1, 1]
    assert len(table.extradata) == 2
    # Frame 4 is no keyframe, but no decoder could use what lies before it.
    assert table.decode_spans(np.arange(6)) == [(0, 4), (4, 6)]


@pytest.mark.parametrize("version", [0, 1])
def test_negative_composition_offsets(version: int) -> None:
    late = full(b"ctts", version, numbers(">u4", 5), numbers(">i4", 1, 0, 1, 20, 2, -10, 1, 0, 1, 0))
    table = hand_made(ctts=late)
    assert table.pts.tolist() == [0, 30, 10, 20, 40, 50]
    assert table.dts.tolist() == [-10, 0, 10, 20, 30, 40]
    assert table.presented.tolist() == [0, 2, 3, 1, 4, 5]


def test_64_bit_box_sizes_and_a_last_box_up_to_the_end() -> None:
    ftyp = box(b"ftyp", b"isom", bytes(4))
    moov = movie(track(Tables().stbl(), v=1))
    data = ftyp + large_box(b"mdat", bytes(2000)) + struct.pack(">I", 0) + moov[4:]
    table = table_of(data)
    assert table.offset[-1] == 1109
    assert not table.moov_at_head
    data = ftyp + large_box(b"moov", moov[8:]) + struct.pack(">I4s", 0, b"mdat") + bytes(2000)
    assert table_of(data).moov_at_head


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("rows", "first_pts", "shown"),
    [
        ([(20, 0, RATE)], 0, [0, 1, 2, 3, 4, 5]),
        ([(0, 0, RATE)], 0, [0, 1, 2, 3, 4, 5]),
        ([(10, -1, RATE), (20, 0, RATE)], 30, [0, 1, 2, 3, 4, 5]),
        ([(20, 20, RATE)], -20, [2, 3, 4, 5]),
        ([(10, 10, RATE)], -10, [1, 2, 3]),
        ([(5, 0, RATE), (5, 15, RATE)], 0, [0, 1, 2]),
        ([(20, 15, RATE)], -20, [2, 3, 4, 5]),
    ],
)
def test_edit_lists(rows: list[tuple[int, int, int]], first_pts: int, shown: list[int], version: int) -> None:
    table = hand_made(elst=edits(*rows, version=version))
    assert table.pts.tolist() == [first_pts + 10 * i for i in range(6)]
    assert table.presented.tolist() == shown


@pytest.mark.parametrize(
    "rows",
    [
        [(5, 0, RATE), (5, 30, RATE)],
        [(5, 0, RATE), (5, -1, RATE), (5, 15, RATE)],
        [(20, 0, RATE // 2)],
    ],
)
def test_edit_lists_that_are_not_one_shift_are_refused(rows: list[tuple[int, int, int]]) -> None:
    with pytest.raises(DataFileError, match=r"memory\.mp4: an edit list .* not supported"):
        hand_made(elst=edits(*rows))


def rewrite_edit(data: bytes, media_time: int, duration: int) -> bytes:
    """The file with other numbers in its one edit."""
    at = data.index(b"elst") + 12
    assert data[at - 4 : at] == numbers(">u4", 1)
    return data[:at] + struct.pack(">Ii", duration, media_time) + data[at + 8 :]


@pytest.mark.parametrize("name", ["h264_gop2", "h264_bframes", "h264_open", "hevc_open", "av1_gop2"])
@pytest.mark.parametrize(("begin", "length"), [(0, 1000), (3, 500), (14, 400), (17.5, 600), (25, 100_000)])
def test_trimming_edits_agree_with_ffmpeg(
    files: dict[str, bytes], name: str, begin: float, length: int
) -> None:
    table = table_of(files[name])
    first = int(table.pts[0] - table.dts[0])  # pts of the first picture in the media
    media_time = first + int(begin * table.timescale / FPS)
    trimmed = check_against_demuxer(rewrite_edit(files[name], media_time, length))
    assert 0 < len(trimmed.presented) < FRAMES
    check_spans(rewrite_edit(files[name], media_time, length), [np.arange(len(trimmed.presented))])


def test_the_first_real_video_track_is_taken() -> None:
    cover = Tables(
        stsd=full(b"stsd", 0, numbers(">u4", 1), sample_entry(b"jpeg", None)),
        stsz=full(b"stsz", 0, numbers(">u4", 9, 1)),
    )
    sound = track(Tables().stbl(), handler=b"soun")
    video = track(Tables().stbl(), timescale=600)
    table = table_of(file_of(movie(sound, track(cover.stbl()), video), 3000))
    assert table.timescale == 600


def test_a_million_frames_take_little_time() -> None:
    data = synthetic(1_000_000, moov_first=False)
    begin = time.perf_counter()
    table = table_of(data)
    assert len(table.presented) == 1_000_000
    assert time.perf_counter() - begin < 1.0


def test_spans_of_a_clip_take_little_time() -> None:
    table = table_of(synthetic(1_000_000, moov_first=False))
    wanted = np.random.default_rng(0).integers(0, 1_000_000, 1000)
    table.decode_spans(wanted)
    begin = time.perf_counter()
    for _ in range(20):
        table.decode_spans(wanted)
    assert (time.perf_counter() - begin) / 20 < 5e-3


# What cannot be read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"the file is empty \(0 bytes\)"),
        (b"<!DOCTYPE html><html>Not found</html>", "not an MP4: the file begins with b'<!DOCTYPE html>"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"abc", "not an MP4: the file begins with b'abc'"),
        (box(b"ftyp", b"isom"), "there is no 'moov' box"),
        (box(b"ftyp", b"isom") + struct.pack(">I4s", 3, b"mdat"), "impossible size of 3 bytes"),
        (file_of(movie(extra=box(b"mvex"))), "fragmented MP4 .* -c copy"),
        (box(b"ftyp", b"isom") + box(b"moof"), "fragmented MP4 .* -c copy"),
        (file_of(movie()), r"no video track \(tracks found: none\)"),
        (file_of(movie(track(b"", handler=b"soun"))), r"no video track \(tracks found: soun\)"),
    ],
)
def test_files_that_are_no_readable_mp4(data: bytes, message: str) -> None:
    with pytest.raises(DataFileError, match=message) as caught:
        table_of(data)
    assert str(caught.value).startswith("memory.mp4: ")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"stsz": full(b"stsz", 0, numbers(">u4", 0, 7, 5))}, "'stsz' announces 7 entries"),
        ({"stsz": full(b"stsz", 0, numbers(">u4", 9, 4_000_000_000))}, "don't fit into the file"),
        ({"stsz": full(b"stsz", 0)}, "'stsz' ends after 4 bytes"),
        ({"stsz": b""}, "'stbl/stz2' is missing"),
        (
            {"stts": full(b"stts", 0, numbers(">u4", 1, 4_000_000_000, 1))},
            "'stts' describes 4000000000 frames",
        ),
        ({"stts": b""}, "'stbl/stts' is missing"),
        ({"ctts": full(b"ctts", 0, numbers(">u4", 1, 5, 1))}, "'ctts' describes 5 frames, the track has 6"),
        ({"stsc": full(b"stsc", 0, numbers(">u4", 1, 1, 4, 1))}, "'stsc' describes 8 frames"),
        ({"stsc": full(b"stsc", 0, numbers(">u4", 1, 2, 6, 1))}, "doesn't list the chunks in order"),
        ({"stsc": full(b"stsc", 0, numbers(">u4", 1, 1, 3, 2))}, "a sample description that doesn't exist"),
        ({"stss": full(b"stss", 0, numbers(">u4", 1, 7))}, "'stss' names a frame that doesn't exist"),
        ({"stco": full(b"stco", 0, numbers(">u4", 2, 1000, 5000))}, r"truncated: 3 of 6 .*\[5000, 5005\)"),
        (
            {"stsd": full(b"stsd", 0, numbers(">u4", 1), sample_entry(b"hvc1", None))},
            "'hvc1' has no 'hvcC' box",
        ),
        (
            {"stsd": full(b"stsd", 0, numbers(">u4", 2), sample_entry(), sample_entry(b"av01"))},
            "mixes codecs: av1, h264",
        ),
    ],
)
def test_damaged_tables(tables: dict[str, bytes], message: str) -> None:
    with pytest.raises(DataFileError, match=message):
        hand_made(**tables)


@pytest.mark.parametrize("name", ["h264_bframes", "h264_gop2_head"])
def test_a_truncated_file_is_told_at_every_length(files: dict[str, bytes], name: str) -> None:
    data = files[name]
    for length in [*range(1, 64), *range(64, len(data), 97), len(data) - 1]:
        with pytest.raises(DataFileError, match=r"^memory\.mp4: "):
            table_of(data[:length])
    with pytest.raises(DataFileError, match="truncated"):
        table_of(data[: len(data) * 2 // 3])


@pytest.mark.parametrize("name", ["h264_bframes", "av1_gop2"])
def test_damaged_bytes_give_an_error_or_a_table(files: dict[str, bytes], name: str) -> None:
    data = files[name]
    _, start, end = next(found for found in top_level(data) if found[0] == b"moov")
    rng = np.random.default_rng(1)
    for _ in range(400):
        damaged = bytearray(data)
        for at in rng.integers(start, end, 3):
            damaged[at] = rng.integers(256)
        try:
            table_of(bytes(damaged))
        except DataFileError:
            continue


def test_a_missing_file_is_named() -> None:
    class Gone(MemoryReader):
        def read_at(self, start: int, length: int) -> bytes:
            raise FileNotFoundError(2, "No such file")

    with pytest.raises(DataFileError, match=r"memory\.mp4: the file does not exist"):
        read_sample_table(Gone(bytes(100)))


# Spans ------------------------------------------------------------------------------------------------------


def planes(frame: av.VideoFrame) -> bytes:
    return frame.to_ndarray().tobytes()


def decode_file(data: bytes) -> dict[int, bytes]:
    """Every picture that a sequential decode shows, by pts."""
    with av.open(io.BytesIO(data)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return {frame.pts: planes(frame) for frame in container.decode(video=0)}


def new_context(table: SampleTable, description: int = 0) -> av.VideoCodecContext:
    context = av.CodecContext.create("libdav1d" if table.codec == "av1" else table.codec, "r")
    context.extradata = table.extradata[description]
    context.thread_count = 1
    return context


def decode_span(
    context: av.VideoCodecContext, data: bytes, table: SampleTable, span: tuple[int, int]
) -> dict[int, bytes]:
    found = {}
    for row in range(*span):
        packet = av.Packet(data[table.offset[row] : table.offset[row] + table.size[row]])
        packet.pts, packet.dts = int(table.pts[row]), int(table.dts[row])
        found.update({frame.pts: planes(frame) for frame in context.decode(packet)})
    found.update({frame.pts: planes(frame) for frame in context.decode(None)})
    return found


def check_spans(data: bytes, requests: list[np.ndarray]) -> None:
    """Pictures decoded from spans are those of the sequential decode, bit for bit."""
    table, whole = table_of(data), decode_file(data)
    context = new_context(table)
    for wanted in requests:
        spans = table.decode_spans(wanted)
        check_form(table, spans)
        found: dict[int, bytes] = {}
        for span in spans:
            pictures_of_span = decode_span(context, data, table, span)
            context.flush_buffers()  # makes the drained decoder ready for the next span
            rows = np.arange(*span)
            mine = set(table.pts[np.intersect1d(rows, table.presented[wanted])].tolist())
            found.update({pts: picture for pts, picture in pictures_of_span.items() if pts in mine})
        for pts in table.pts[table.presented[wanted]].tolist():
            assert found[pts] == whole[pts], (pts, spans)


def check_form(table: SampleTable, spans: list[tuple[int, int]]) -> None:
    """Each span begins at a keyframe; they are in order and apart."""
    assert all(table.keyframe[begin] and begin < end for begin, end in spans)
    assert all(one[1] < two[0] for one, two in itertools.pairwise(spans))


@pytest.mark.parametrize("name", NAMES)
def test_spans_decode_to_the_wanted_pictures(files: dict[str, bytes], name: str) -> None:
    frames = len(table_of(files[name]).presented)
    rng = np.random.default_rng(7)
    random = [rng.choice(frames, size=size) for size in (1, 1, 2, 4, 6)]
    check_spans(files[name], [*random, np.arange(frames), np.arange(9, 17)])


@pytest.mark.parametrize("name", ["hevc_open", "h264_open"])
def test_leading_pictures_start_one_keyframe_earlier(files: dict[str, bytes], name: str) -> None:
    table = table_of(files[name])
    keyframes = np.flatnonzero(table.keyframe)
    own = keyframes[np.searchsorted(keyframes, np.arange(len(table.size)), side="right") - 1]
    leading = np.flatnonzero(table.pts < table.pts[own]).tolist()
    assert leading, "the encoder made no open GOP, so this file tests nothing"
    position = {row: place for place, row in enumerate(table.presented.tolist())}
    check_spans(files[name], [np.array([position[row]]) for row in leading])
    for row in leading:
        ((begin, end),) = table.decode_spans(np.array([position[row]]))
        assert (begin, end) == (keyframes[keyframes < own[row]][-1], row + 1)


def test_spans_are_merged_when_they_touch() -> None:
    table = hand_made()
    expected = {(): [], (0,): [(0, 1)], (5, 4): [(3, 6)], (3, 0, 3): [(0, 1), (3, 4)], (4, 2): [(0, 5)]}
    for wanted, spans in expected.items():
        assert table.decode_spans(np.array(wanted, dtype=np.int64)) == spans


@pytest.mark.parametrize("position", [-1, 6])
def test_positions_outside_are_refused(position: int) -> None:
    with pytest.raises(IndexError, match=r"must lie in \[0, 6\)"):
        hand_made().decode_spans(np.array([position]))
