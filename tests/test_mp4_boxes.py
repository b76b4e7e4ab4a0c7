"""The sample table of files whose boxes are made by hand, and of files that cannot be read."""

from __future__ import annotations

import struct
import time

import numpy as np
import pytest
from cases import BUSY
from mp4_files import (
    HEIGHT,
    RATE,
    WIDTH,
    MemoryReader,
    Tables,
    box,
    coded,
    edits,
    file_of,
    full,
    hand_made,
    large_box,
    movie,
    numbers,
    sample_entry,
    synthetic,
    table_of,
    top_level,
    track,
)

from robostream.errors import DataFileError
from robostream.mp4 import read_sample_table


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
    assert time.perf_counter() - begin < BUSY * 0.5


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
def test_a_truncated_file_is_told_at_every_length(name: str) -> None:
    data = coded(name)
    for length in [*range(1, 64), *range(64, len(data), 97), len(data) - 1]:
        with pytest.raises(DataFileError, match=r"^memory\.mp4: "):
            table_of(data[:length])
    with pytest.raises(DataFileError, match="truncated"):
        table_of(data[: len(data) * 2 // 3])


@pytest.mark.parametrize("name", ["h264_bframes", "av1_gop2"])
def test_damaged_bytes_give_an_error_or_a_table(name: str) -> None:
    data = coded(name)
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
