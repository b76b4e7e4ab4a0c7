"""The sample table against FFmpeg's demuxer, and decoding from it against decoding the whole file."""

from __future__ import annotations

import io
import itertools
import struct
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from cases import BUSY
from mp4_files import (
    FPS,
    FRAMES,
    NAMES,
    RECIPES,
    MemoryReader,
    coded,
    hand_made,
    numbers,
    synthetic,
    table_of,
    top_level,
)

from robostream.mp4 import SampleTable, read_sample_table
from robostream.mp4_boxes import HEAD_BYTES

GOLDEN = sorted((Path(__file__).parent / "golden").glob("**/*.mp4"))


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
def test_every_packet_agrees_with_ffmpeg(name: str) -> None:
    table = check_against_demuxer(coded(name))
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


def rewrite_edit(data: bytes, media_time: int, duration: int) -> bytes:
    """The file with other numbers in its one edit."""
    at = data.index(b"elst") + 12
    assert data[at - 4 : at] == numbers(">u4", 1)
    return data[:at] + struct.pack(">Ii", duration, media_time) + data[at + 8 :]


@pytest.mark.parametrize("name", ["h264_gop2", "h264_bframes", "h264_open", "hevc_open", "av1_gop2"])
@pytest.mark.parametrize(("begin", "length"), [(0, 1000), (3, 500), (14, 400), (17.5, 600), (25, 100_000)])
def test_trimming_edits_agree_with_ffmpeg(name: str, begin: float, length: int) -> None:
    table = table_of(coded(name))
    first = int(table.pts[0] - table.dts[0])  # pts of the first picture in the media
    media_time = first + int(begin * table.timescale / FPS)
    trimmed = check_against_demuxer(rewrite_edit(coded(name), media_time, length))
    assert 0 < len(trimmed.presented) < FRAMES
    check_spans(rewrite_edit(coded(name), media_time, length), [np.arange(len(trimmed.presented))])


# Which bytes are read ---------------------------------------------------------------------------------------


def padded(data: bytes, pad: int) -> bytes:
    """The same movie with `pad` unused bytes at the end of its media data (moov must be at the tail)."""
    (_, start, end) = next(box for box in top_level(data) if box[0] == b"mdat")
    head = struct.pack(">I", end - start + pad)
    return data[:start] + head + data[start + 4 : end] + bytes(pad) + data[end:]


@pytest.mark.parametrize("name", ["h264_gop2", "h264_bframes", "av1_gop2"])
def test_media_data_is_jumped_over(name: str) -> None:
    data = padded(coded(name), 5_000_000)
    _, moov_start, moov_end = top_level(data)[-1]
    reader = MemoryReader(data)
    table = read_sample_table(reader)
    assert reader.reads == [(0, HEAD_BYTES), (moov_start, moov_end - moov_start)]
    assert table.bytes_read == HEAD_BYTES + moov_end - moov_start
    assert not table.moov_at_head
    assert np.array_equal(table.pts, table_of(coded(name)).pts)


def test_moov_at_head_takes_one_read_of_the_head() -> None:
    data = coded("h264_gop2_head") + struct.pack(">I4s", 5_000_008, b"free") + bytes(5_000_000)
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
def test_spans_decode_to_the_wanted_pictures(name: str) -> None:
    frames = len(table_of(coded(name)).presented)
    rng = np.random.default_rng(7)
    random = [rng.choice(frames, size=size) for size in (1, 1, 2, 4, 6)]
    check_spans(coded(name), [*random, np.arange(frames), np.arange(9, 17)])


@pytest.mark.parametrize("name", ["hevc_open", "h264_open"])
def test_leading_pictures_start_one_keyframe_earlier(name: str) -> None:
    table = table_of(coded(name))
    keyframes = np.flatnonzero(table.keyframe)
    own = keyframes[np.searchsorted(keyframes, np.arange(len(table.size)), side="right") - 1]
    leading = np.flatnonzero(table.pts < table.pts[own]).tolist()
    assert leading, "the encoder made no open GOP, so this file tests nothing"
    position = {row: place for place, row in enumerate(table.presented.tolist())}
    check_spans(coded(name), [np.array([position[row]]) for row in leading])
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


def test_spans_of_a_clip_take_little_time() -> None:
    table = table_of(synthetic(1_000_000, moov_first=False))
    wanted = np.random.default_rng(0).integers(0, 1_000_000, 1000)
    table.decode_spans(wanted)
    begin = time.perf_counter()
    for _ in range(20):
        table.decode_spans(wanted)
    assert (time.perf_counter() - begin) / 20 < BUSY * 3e-3
