"""What must be read from an MP4 to decode certain pictures of it, and the bytes once they are here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robostream.mp4 import SampleTable
from robostream.source import Source
from robostream.source.ranges import GAP

Int = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CodedClip:
    """The coded bytes of certain pictures of one MP4, and of the frames that they need to be decoded.

    name: the file, for messages. table: its index. wanted: int64 [K], picture positions in presentation order,
    ascending, each once. spans: runs of decode indices to feed, each from a keyframe on. buffers: bytes read.
    buffer, at: int64 [frames of all spans], where each frame's bytes begin: which buffer, and the offset in it.
    """

    name: str
    table: SampleTable
    wanted: Int
    spans: list[tuple[int, int]]
    buffers: list[bytes]
    buffer: Int
    at: Int

    def coded(self, first: int, last: int, skip: int) -> list[memoryview]:
        """The bytes of each frame of the span [first, last); skip: frames of the spans before it."""
        here = slice(skip, skip + last - first)
        places = self.buffer[here].tolist(), self.at[here].tolist(), self.table.size[first:last].tolist()
        buffers = [memoryview(data) for data in self.buffers]
        return [buffers[buffer][at : at + size] for buffer, at, size in zip(*places, strict=True)]

    @property
    def bytes_read(self) -> int:
        return sum(map(len, self.buffers))

    @property
    def bytes_needed(self) -> int:
        """Bytes of the frames that are fed to a decoder: what was read without the gaps between them."""
        return sum(int(self.table.size[start:stop].sum()) for start, stop in self.spans)


def fetch_clip(source: Source, path: str, table: SampleTable, wanted: Int) -> CodedClip:
    """Read the bytes of the pictures at positions `wanted` (int64 [K], ascending, unique).

    Raises DataFileError if the file is missing or ends early.
    """
    spans = table.decode_spans(wanted)
    name = source.describe(path)
    frames = [np.arange(a, b) for a, b in spans]
    taken = slice(*spans[0]) if len(spans) == 1 else np.concatenate([np.empty(0, np.int64), *frames])
    start, stop = table.offset[taken], table.offset[taken] + table.size[taken]
    if len(start) and (start[1:] == stop[:-1]).all():  # as a rule: nothing lies in between
        first, last = int(start[0]), int(stop[-1])
        buffers = source.read_ranges(path, [first], [last - first])
        return CodedClip(name, table, wanted, spans, buffers, np.zeros(len(start), np.int64), start - first)
    begins, ends, buffer = _coalesce(start, stop)
    buffers = source.read_ranges(path, begins.tolist(), (ends - begins).tolist())
    return CodedClip(name, table, wanted, spans, buffers, buffer, start - begins[buffer])


def _coalesce(start: Int, stop: Int) -> tuple[Int, Int, Int]:
    """Ranges that cover the frames [start, stop), and which of them holds each frame; all int64."""
    order = np.argsort(start, kind="stable")
    ends = np.maximum.accumulate(stop[order])
    is_new = np.ones(len(order), bool)
    is_new[1:] = start[order][1:] > ends[:-1] + GAP
    first = np.flatnonzero(is_new)
    buffer = np.empty(len(order), np.int64)
    buffer[order] = np.cumsum(is_new) - 1
    return start[order][first], np.append(ends[first[1:] - 1], ends[-1:]), buffer
