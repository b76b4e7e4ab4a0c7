"""What must be read from an MP4 to decode certain pictures of it, and the bytes once they are here."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robostream.mp4 import SampleTable, read_sample_table
from robostream.source import Source

Int = npt.NDArray[np.int64]

INDEX_BYTES = 64 << 20  # sample tables kept
_GAP = 64 * 1024  # bytes between two wanted ranges that are cheaper to read than to ask for separately


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

    @property
    def bytes_read(self) -> int:
        return sum(map(len, self.buffers))

    @property
    def bytes_needed(self) -> int:
        """Bytes of the wanted pictures alone, without what they are decoded from or what lies in between."""
        return int(self.table.size[self.table.presented[self.wanted]].sum())


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
    is_new[1:] = start[order][1:] > ends[:-1] + _GAP
    first = np.flatnonzero(is_new)
    buffer = np.empty(len(order), np.int64)
    buffer[order] = np.cumsum(is_new) - 1
    return start[order][first], np.append(ends[first[1:] - 1], ends[-1:]), buffer


class _Reader:
    """An MP4 of a source, as the index reader takes it."""

    def __init__(self, source: Source, path: str) -> None:
        self.name = source.describe(path)
        self.size = source.size(path)
        self._source, self._path = source, path

    def read_at(self, start: int, length: int) -> bytes:
        return self._source.read_ranges(self._path, [start], [length])[0]


class VideoIndex:
    """The sample tables of a dataset's MP4s, read when first asked for; the last used are kept.

    Args:
        source: where the files are.
        memory_bytes: bound on the tables kept; the newest is always kept.
    """

    def __init__(self, source: Source, memory_bytes: int = INDEX_BYTES) -> None:
        self._source = source
        self._bound = memory_bytes
        self._lock = threading.Lock()
        self._tables: OrderedDict[str, SampleTable] = OrderedDict()
        self._held = 0

    def table(self, path: str) -> SampleTable:
        """The sample table of an MP4. Raises DataFileError if the file is missing or is not a whole MP4."""
        with self._lock:
            if path in self._tables:
                self._tables.move_to_end(path)
                return self._tables[path]
        table = read_sample_table(_Reader(self._source, path))
        with self._lock:
            if path not in self._tables:
                self._held += _weight(table)
            self._tables[path] = table
            while self._held > self._bound and len(self._tables) > 1:
                self._held -= _weight(self._tables.popitem(last=False)[1])
        return table


def _weight(table: SampleTable) -> int:
    """Bytes of memory that a table holds, with what it derives on use."""
    return 4096 + 64 * len(table.offset)
