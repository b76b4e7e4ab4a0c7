"""Where every coded frame of an MP4's video track lies, when it is shown, and what decoding it takes.

Only the headers of the top-level boxes and the movie box are read, never the media data. Names in quotation
marks are the section names of ISO/IEC 14496-12 (ISO base media file format). Times agree with those of
FFmpeg's demuxer, because that is what datasets were recorded and are checked with.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from robostream.errors import DataFileError
from robostream.mp4_boxes import FRAGMENTED, Box, BoxError, ByteReader, Int64Array, Movie, read_movie

__all__ = ["ByteReader", "SampleTable", "parse_movie", "read_sample_table"]

BoolArray = npt.NDArray[np.bool_]

_CODECS = {b"avc1": "h264", b"avc3": "h264", b"hvc1": "hevc", b"hev1": "hevc", b"av01": "av1"}
_CONFIGURATION_BOXES = {"h264": b"avcC", "hevc": b"hvcC", "av1": b"av1C"}
_VISUAL_SAMPLE_ENTRY_BYTES = 78  # fields of a "Visual Sample Entry" before its child boxes
_NORMAL_RATE = 1 << 16  # media_rate 1.0 as 16.16 fixed point


class Coding(NamedTuple):
    """What a decoder must know of a frame's sample description; see the fields of SampleTable."""

    codec: str
    extradata: bytes
    colour: bytes


@dataclass(frozen=True, eq=False)
class SampleTable:
    """The coded frames of one video track: one row per frame, in decode order, except where said.

    Times are in ticks of `1 / timescale` seconds, with the edit list applied, as FFmpeg's demuxer gives them.
    """

    codec: str
    """'h264', 'hevc', 'av1', or else the four-character code of the sample entry."""
    width: int
    height: int
    extradata: tuple[bytes, ...]
    """Per sample description: payload of its avcC, hvcC or av1C box; empty for other codecs."""
    colour: tuple[bytes, ...]
    """Per sample description: payload of its colr box, which may say what the coded video does not; else empty."""
    timescale: int
    offset: Int64Array
    """int64[N]: first byte of the frame in the file."""
    size: Int64Array
    """int64[N]: bytes."""
    dts: Int64Array
    """int64[N]: when to decode."""
    pts: Int64Array
    """int64[N]: when to show; 0 for the first picture shown of a normal file."""
    keyframe: BoolArray
    """bool[N]: a sync sample."""
    description: npt.NDArray[np.int16]
    """int16[N]: index into `extradata`."""
    presented: Int64Array
    """int64[M]: decode indices in order of pts, without the frames that an edit list cuts away."""
    duration: int
    """Length of the media in ticks, before edits."""
    moov_at_head: bool
    bytes_read: int
    """Bytes that were read from the file to build this table."""

    @property
    def frame_rate(self) -> Fraction:
        """Frames per second, from the median step of pts; 0 if the file doesn't tell."""
        steps = np.diff(self.pts[self.presented])
        middle = len(steps) // 2
        step = int(np.partition(steps, middle)[middle]) if len(steps) else self.duration
        return Fraction(self.timescale, step) if step > 0 else Fraction(0)

    def coding(self, frame: int) -> Coding:
        """How the frame of a decode index is coded."""
        description = int(self.description[frame])
        return Coding(self.codec, self.extradata[description], self.colour[description])

    @cached_property
    def position(self) -> Int64Array:
        """int64[N]: the place of each frame in presentation order; −1 if an edit list cuts it away."""
        position = np.full(len(self.pts), -1, np.int64)
        position[self.presented] = np.arange(len(self.presented))
        return position

    @cached_property
    def decode_start(self) -> Int64Array:
        """int64[N]: the keyframe at which decoding must begin to get this frame, as a decode index.

        A frame that is decoded after a keyframe but shown before it (a leading picture of an open GOP) may
        refer to frames before that keyframe, so it starts one keyframe earlier. The first frame of the file
        and of each sample description counts as a start: nothing before it can be used.
        """
        begins_description = np.diff(self.description, prepend=np.int16(-1)) != 0
        is_start = self.keyframe | begins_description
        starts = np.flatnonzero(is_start)
        own = np.cumsum(is_start) - 1
        leading = (self.pts < self.pts[starts[own]]) & ~begins_description[starts[own]]
        start: Int64Array = starts[own - leading]
        return start

    def decode_spans(self, wanted: Int64Array) -> list[tuple[int, int]]:
        """What to feed to a decoder, then flush it, to get the pictures `wanted`.

        wanted: int64[K], positions in presentation order, in any order. Returns half-open ranges of decode
        indices, ascending. Each begins at a keyframe and has one sample description; ranges that touch or
        overlap are merged. The decoder also gives pictures that were not asked for: tell them apart by pts.
        """
        positions = np.asarray(wanted, dtype=np.int64)
        if positions.size == 0:
            return []
        if positions.min() < 0 or positions.max() >= len(self.presented):
            raise IndexError(f"picture positions must lie in [0, {len(self.presented)})")
        last = np.sort(self.presented[positions])  # decode indices
        start = self.decode_start[last]
        # A leading picture starts before the frame in front of it in decode order; let it cover that one too.
        start = np.minimum.accumulate(start[::-1])[::-1]
        apart = start[1:] > last[:-1] + 1
        if len(self.extradata) > 1:
            apart |= self.description[start[1:]] != self.description[start[:-1]]
        cut = np.flatnonzero(apart)
        first_of_run = np.concatenate(([0], cut + 1))
        last_of_run = np.concatenate((cut, [len(last) - 1]))
        return list(zip(start[first_of_run].tolist(), (last[last_of_run] + 1).tolist(), strict=True))


def read_sample_table(reader: ByteReader) -> SampleTable:
    """Sample table of the first video track; `DataFileError` if there is none or the file is damaged."""
    try:
        movie = read_movie(reader)
    except BoxError as error:
        raise DataFileError(f"{reader.name}: {error}") from error
    except FileNotFoundError as error:
        raise DataFileError(f"{reader.name}: the file does not exist") from error
    return parse_movie(movie, reader.size, reader.name)


def parse_movie(movie: Movie, file_size: int, name: str) -> SampleTable:
    """The same from a movie box that was read before, of a file of this size; name: the file, for messages."""
    try:
        return _sample_table(movie, file_size)
    except BoxError as error:
        raise DataFileError(f"{name}: {error}") from error


def _sample_table(movie: Movie, file_size: int) -> SampleTable:
    if movie.moov.find(b"mvex") is not None:
        raise BoxError(FRAGMENTED)
    track = _video_track(movie.moov)
    table = track.need(b"mdia", b"minf", b"stbl")
    entries = _sample_entries(table)
    codec = _codec(entries)
    size = _sample_sizes(table, file_size)
    offset, description = _chunk_layout(table, size, len(entries))
    _check_inside_file(offset, size, file_size)
    step = _run_lengths(table.need(b"stts"), len(size), ">u4")
    timescale = _timescale(track.need(b"mdia", b"mdhd"))
    dts, pts, shown = _apply_edits(
        *_decode_and_composition_times(table, step), _edit_window(track, movie.moov, timescale)
    )
    return SampleTable(
        codec=codec,
        width=entries[0].uint(24, 2),
        height=entries[0].uint(26, 2),
        extradata=tuple(_extradata(entry, codec) for entry in entries),
        colour=tuple(_colour(entry) for entry in entries),
        timescale=timescale,
        offset=offset,
        size=size,
        dts=dts,
        pts=pts,
        keyframe=_keyframes(table, len(size)),
        description=description,
        presented=_presentation_order(pts, shown),
        duration=int(step.sum()),
        moov_at_head=movie.at_head,
        bytes_read=movie.bytes_read,
    )


def _video_track(moov: Box) -> Box:
    """The first track whose handler is 'vide' ("Handler Reference Box") and that isn't a cover picture."""
    handlers = []
    for track in moov.children():
        handler = track.find(b"mdia", b"hdlr") if track.kind == b"trak" else None
        if handler is None:
            continue
        handlers.append(bytes(handler.payload[8:12]).decode("latin-1"))
        if handlers[-1] == "vide" and not _is_cover(track.need(b"mdia", b"minf", b"stbl")):
            return track
    raise BoxError(f"there is no video track (tracks found: {', '.join(handlers) or 'none'})")


def _is_cover(table: Box) -> bool:
    """A cover is a track of one still image, in a codec that this package doesn't know as video."""
    sizes = table.find(b"stsz") or table.find(b"stz2")
    is_video = any(entry.kind in _CODECS for entry in table.need(b"stsd").children(skip=8))
    return not is_video and (sizes is None or sizes.uint(8, 4) <= 1)


def _sample_entries(table: Box) -> list[Box]:
    """The sample descriptions ("Sample Description Box")."""
    entries = list(table.need(b"stsd").children(skip=8))
    if not entries:
        raise BoxError("box 'stsd' has no sample description")
    return entries


def _codec(entries: list[Box]) -> str:
    codecs = sorted({_CODECS.get(entry.kind, entry.text) for entry in entries})
    if len(codecs) > 1:
        raise BoxError(f"the video track mixes codecs: {', '.join(codecs)}")
    return codecs[0]


def _extradata(entry: Box, codec: str) -> bytes:
    """Payload of the decoder configuration box of a sample entry, which FFmpeg takes as extradata."""
    if codec not in _CONFIGURATION_BOXES:
        return b""
    kind = _CONFIGURATION_BOXES[codec]
    for child in entry.children(skip=_VISUAL_SAMPLE_ENTRY_BYTES):
        if child.kind == kind:
            return bytes(child.payload)
    raise BoxError(f"sample description '{entry.text}' has no '{kind.decode()}' box")


def _colour(entry: Box) -> bytes:
    """Payload of the "Colour Information Box" of a sample entry."""
    children = entry.children(skip=_VISUAL_SAMPLE_ENTRY_BYTES)
    return next((bytes(child.payload) for child in children if child.kind == b"colr"), b"")


def _sample_sizes(table: Box, file_size: int) -> Int64Array:
    """int64[N], bytes ("Sample Size Box", "Compact Sample Size Box")."""
    box = table.find(b"stsz")
    if box is None:
        return _compact_sizes(table.need(b"stz2"))
    common, count = box.uint(4, 4), box.uint(8, 4)
    if common == 0:
        return box.column(12, count, ">u4")
    if common * count > file_size:  # checked before the array is made, as a damaged count may be huge
        raise BoxError(f"{count} frames of {common} bytes don't fit into the file's {file_size} bytes")
    return np.full(count, common, dtype=np.int64)


def _compact_sizes(box: Box) -> Int64Array:
    bits, count = box.uint(7, 1), box.uint(8, 4)
    if bits == 4:
        pairs = box.column(12, (count + 1) // 2, ">u1")
        sizes: Int64Array = np.stack((pairs >> 4, pairs & 15), axis=1).reshape(-1)[:count]
        return sizes
    if bits not in (8, 16):
        raise BoxError(f"box 'stz2' has a field size of {bits} bits")
    return box.column(12, count, f">u{bits // 8}")


def _chunk_layout(table: Box, size: Int64Array, entries: int) -> tuple[Int64Array, npt.NDArray[np.int16]]:
    """Byte offset and description index per frame ("Sample To Chunk Box", "Chunk Offset Box")."""
    chunk_offset = _chunk_offsets(table)
    box = table.need(b"stsc")
    first_chunk, samples, description = box.table(8, box.uint(4, 4), ">u4", columns=3)
    chunks = np.diff(first_chunk - 1, append=len(chunk_offset))  # chunks in each run of equal chunks
    if len(first_chunk) and (first_chunk[0] != 1 or chunks.min() < 0):
        raise BoxError("box 'stsc' doesn't list the chunks in order")
    _check_total(box, int(chunks @ samples), len(size))
    if len(size) and not 1 <= description.min() <= description.max() <= entries:
        raise BoxError("box 'stsc' names a sample description that doesn't exist")
    samples_of_chunk = np.repeat(samples, chunks)
    before = np.cumsum(size) - size  # bytes of all frames before each
    first_of_chunk = np.cumsum(samples_of_chunk) - samples_of_chunk
    # Chunks without samples may follow the last frame; their base is not used.
    base = chunk_offset - before[np.minimum(first_of_chunk, len(size) - 1)] if len(size) else chunk_offset
    offset: Int64Array = before + np.repeat(base, samples_of_chunk)
    return offset, np.repeat((description - 1).astype(np.int16), chunks * samples)


def _chunk_offsets(table: Box) -> Int64Array:
    box = table.find(b"stco")
    if box is not None:
        return box.column(8, box.uint(4, 4), ">u4")
    box = table.need(b"co64")
    return box.column(8, box.uint(4, 4), ">i8")


def _check_total(box: Box, total: int, frames: int) -> None:
    """A box must describe as many frames as 'stsz' has; also keeps a damaged count from filling memory."""
    if total != frames:
        raise BoxError(f"box '{box.text}' describes {total} frames, the track has {frames}")


def _check_inside_file(offset: Int64Array, size: Int64Array, file_size: int) -> None:
    end = offset + size
    outside = np.flatnonzero((end > file_size) | (offset < 0))
    if len(outside):
        first = int(outside[0])
        raise BoxError(
            f"the file is truncated: {len(outside)} of {len(size)} frames lie outside it; frame {first} in"
            f" decode order needs the bytes [{offset[first]}, {end[first]}), the file ends at {file_size}"
        )


def _run_lengths(box: Box, frames: int, value: str) -> Int64Array:
    """Unpack a table of (count, value) to int64[N] ("Decoding Time to Sample Box" and its kin)."""
    runs = box.uint(4, 4)
    counts = box.table(8, runs, ">u4", columns=2)[0]
    values = box.table(8, runs, value, columns=2)[1]
    _check_total(box, int(counts.sum()), frames)
    return np.repeat(values, counts)


def _decode_and_composition_times(table: Box, step: Int64Array) -> tuple[Int64Array, Int64Array]:
    """dts and pts, int64[N] each, before edits ("Composition Time to Sample Box")."""
    dts = np.cumsum(step) - step
    box = table.find(b"ctts")
    if box is None:
        return dts, dts
    # Version 0 is unsigned by the standard, but writers do put negative offsets there.
    late = _run_lengths(box, len(step), ">i4")
    # With negative offsets a frame would be shown before it is decoded: FFmpeg moves all dts ahead of that.
    return dts - max(0, -int(late.min(initial=0))), dts + late


def _timescale(header: Box) -> int:
    """Ticks per second, of "Media Header Box" or "Movie Header Box"."""
    timescale = header.uint(20 if header.version == 1 else 12, 4)
    if timescale == 0:
        raise BoxError(f"box '{header.text}' has a timescale of 0")
    return timescale


def _keyframes(table: Box, frames: int) -> BoolArray:
    """bool[N] ("Sync Sample Box"; without the box every frame is a sync sample)."""
    box = table.find(b"stss")
    if box is None:
        return np.ones(frames, dtype=np.bool_)
    index = box.column(8, box.uint(4, 4), ">u4") - 1
    if len(index) and not 0 <= index.min() <= index.max() < frames:
        raise BoxError("box 'stss' names a frame that doesn't exist")
    keyframe = np.zeros(frames, dtype=np.bool_)
    keyframe[index] = True
    return keyframe


@dataclass(frozen=True)
class _EditWindow:
    """The part of the media that is shown, [start, end), after `empty` ticks of nothing; media ticks."""

    start: int
    end: int | None
    empty: int


def _edit_window(track: Box, moov: Box, timescale: int) -> _EditWindow | None:
    """One window for the whole edit list ("Edit List Box"); an error if its edits don't join to one."""
    box = track.find(b"edts", b"elst")
    if box is None or box.uint(4, 4) == 0:
        return None
    per_movie_tick = Fraction(timescale, _timescale(moov.need(b"mvhd")))
    empty, window = 0, None
    for duration, media_time, rate in _edits(box):
        length = int(duration * per_movie_tick + Fraction(1, 2))
        if media_time == -1 and window is None:
            empty += length
        elif media_time >= 0 and rate == _NORMAL_RATE and (window is None or window.end == media_time):
            start = window.start if window else media_time
            # Duration 0 is that of a file whose length was not known: up to the end.
            window = _EditWindow(start, media_time + length if duration else None, empty)
        else:
            raise BoxError(
                "an edit list that does more than shift and trim the video once is not supported (entry:"
                f" duration {duration}, media time {media_time}, rate {rate / _NORMAL_RATE:g})"
            )
    return window


def _edits(box: Box) -> list[tuple[int, int, int]]:
    """(duration in movie ticks, media time in media ticks, rate as 16.16 fixed point) per edit."""
    width = 8 if box.version == 1 else 4
    row = 2 * width + 4
    starts = range(8, 8 + box.uint(4, 4) * row, row)
    return [(box.uint(at, width), box.sint(at + width, width), box.sint(at + 2 * width, 4)) for at in starts]


def _apply_edits(
    dts: Int64Array, pts: Int64Array, window: _EditWindow | None
) -> tuple[Int64Array, Int64Array, BoolArray]:
    """dts and pts in presentation time, and which frames are shown (bool[N]).

    As in FFmpeg: a frame is shown if its pts lies in the window, and the first one shown is moved to where
    the edit begins, even if the window begins a little before it.
    """
    if window is None:
        return dts, pts, np.ones(len(pts), dtype=np.bool_)
    shown = pts >= window.start
    if window.end is not None:
        shown &= pts < window.end
    first = int(pts[shown].min()) if shown.any() else window.start
    return dts - first + window.empty, pts - first + window.empty, shown


def _presentation_order(pts: Int64Array, shown: BoolArray) -> Int64Array:
    index = np.flatnonzero(shown)
    order: Int64Array = index[np.argsort(pts[index], kind="stable")]
    return order
