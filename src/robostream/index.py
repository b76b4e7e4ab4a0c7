"""The sample tables of a dataset's videos: in memory, from an index made ahead or the cache, or read."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from robostream.diskcache import DiskCache, cache_home
from robostream.errors import DataFileError
from robostream.memo import Memo
from robostream.mp4 import SampleTable, parse_movie
from robostream.mp4_boxes import Box, BoxError, Movie, read_movie
from robostream.parquet import read_bounds, read_footer, read_group
from robostream.source import Source, Stat

log = logging.getLogger("robostream")

INDEX_BYTES = 64 << 20
"""Sample tables kept in memory."""

STORED_PATH = "meta/robostream-index.parquet"
"""Where an index made ahead lies in a dataset."""

_CACHE_BYTES = 1 << 30  # of movie boxes on this machine's disk
_GROUP_BYTES = 4 << 20  # of movie boxes in a row group of a stored index
_COLUMNS = ("path", "size", "etag", "moov")
_HEAD, _TAIL = b"head", b"tail"  # in front of a kept movie box: where it lay in its file


class VideoIndex:
    """The sample tables of a dataset's MP4s, read when first asked for; the last used are kept. Thread-safe.

    What makes up a table is the file's movie box. For remote sources it is looked for in the dataset's stored index,
    then in this machine's cache; both count only for a file of the same size and etag.

    Args:
        source: where the files are.
        memory_bytes: bound on the tables kept; the newest is always kept.
    """

    def __init__(self, source: Source, memory_bytes: int = INDEX_BYTES) -> None:
        self._source = source
        self._tables: Memo[str, SampleTable] = Memo(memory_bytes, _weight)
        self._stored: Memo[str, StoredIndex | None] = Memo(1, lambda _: 1)
        self._cache = DiskCache(cache_home() / "index", _CACHE_BYTES) if source.is_remote else None

    def table(self, path: str) -> SampleTable:
        """The sample table of an MP4. Raises DataFileError if the file is missing or is not a whole MP4."""
        return self._tables.get(path, lambda: self._read(path))

    def __contains__(self, path: str) -> bool:
        """Whether a table is here, or on its way."""
        return path in self._tables

    def entry(self, path: str) -> IndexEntry:
        """What makes up the table of an MP4, as it is kept. Raises as `table` does."""
        return self._load(path)[0]

    def _read(self, path: str) -> SampleTable:
        return self._load(path)[1]

    def _load(self, path: str) -> tuple[IndexEntry, SampleTable]:
        stat = self._source.stat(path)
        name = self._source.describe(path)
        key = f"{name} {stat.size} {stat.etag}"
        kept = (self._ahead(path, stat) or self._cache.get(key)) if self._cache else None
        if kept is not None:
            try:
                return IndexEntry(path, stat, kept), parse_movie(_unpack(kept), stat.size, name)
            except DataFileError:
                log.warning("%s: what was kept of its index is not readable and is made anew", name)
        movie = _read_movie(self._source, path, stat)
        table = parse_movie(movie, stat.size, name)
        packed = (_HEAD if movie.at_head else _TAIL) + bytes(movie.moov.payload)
        if self._cache:
            self._cache.put(key, packed)
        return IndexEntry(path, stat, packed), table

    def _ahead(self, path: str, stat: Stat) -> bytes | None:
        stored = self._stored.get("", lambda: open_stored(self._source))
        return stored.find(path, stat) if stored else None


@dataclass(frozen=True, eq=False)
class IndexEntry:
    """An MP4 of the index: what it was when its movie box (`moov`, after where it lay) was read."""

    path: str
    stat: Stat
    moov: bytes


class StoredIndex:
    """An index made ahead: one Parquet file, its rows ordered by path, read by row groups as they are needed."""

    def __init__(self, source: Source, footer: pq.FileMetaData) -> None:
        self._source = source
        self._footer = footer
        bounds = read_bounds(source, STORED_PATH, footer, _COLUMNS[0])
        known = [group for group in bounds if group is not None]
        if len(known) < len(bounds):
            raise DataFileError(f"{source.describe(STORED_PATH)}: row groups without statistics")
        self._first = np.array([first for first, _ in known], object)
        self._groups: Memo[int, pa.Table] = Memo(4 * _GROUP_BYTES, lambda table: int(table.nbytes))

    def find(self, path: str, stat: Stat) -> bytes | None:
        """The movie box of a file, if it is in the index and was made of this size and etag."""
        group = int(np.searchsorted(self._first, path, "right")) - 1
        if group < 0:
            return None
        table = self._groups.get(group, lambda: read_group(self._source, STORED_PATH, self._footer, group, _COLUMNS)[0])
        row = pa.compute.index(table["path"], path).as_py()
        if row < 0:
            return None
        size, etag, moov = (table[name][row].as_py() for name in ("size", "etag", "moov"))
        # An index that was made from a local folder knows no etags.
        return moov if size == stat.size and etag in ("", stat.etag) else None


def open_stored(source: Source) -> StoredIndex | None:
    """The index that a dataset holds, or None. One that can't be used is warned of."""
    if not source.exists(STORED_PATH):
        return None
    try:
        footer = read_footer(source, STORED_PATH)
        if footer.schema.to_arrow_schema().names == list(_COLUMNS):
            return StoredIndex(source, footer)
        reason = f"has columns {footer.schema.to_arrow_schema().names}"
    except DataFileError as error:
        reason = str(error)
    log.warning("%s: is left aside: %s", source.describe(STORED_PATH), reason)
    return None


def write_stored(file: str | os.PathLike[str], entries: Iterable[IndexEntry]) -> None:
    """Write a stored index; `entries` ordered by path."""
    schema = pa.schema([("path", pa.string()), ("size", pa.int64()), ("etag", pa.string()), ("moov", pa.binary())])
    with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False) as writer:
        rows: list[dict[str, object]] = []
        held = 0
        for entry in entries:
            rows.append({"path": entry.path, "size": entry.stat.size, "etag": entry.stat.etag, "moov": entry.moov})
            held += len(entry.moov)
            if held > _GROUP_BYTES:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows, held = [], 0
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema))


def _unpack(kept: bytes) -> Movie:
    return Movie(Box(b"moov", memoryview(kept)[4:]), kept[:4] == _HEAD, 0)


class _Reader:
    """An MP4 of a source, as the index reader takes it."""

    def __init__(self, source: Source, path: str, stat: Stat) -> None:
        self.name = source.describe(path)
        self.size = stat.size
        self._source, self._path = source, path

    def read_at(self, start: int, length: int) -> bytes:
        return self._source.read_ranges(self._path, [start], [length])[0]


def _read_movie(source: Source, path: str, stat: Stat) -> Movie:
    try:
        return read_movie(_Reader(source, path, stat))
    except BoxError as error:
        raise DataFileError(f"{source.describe(path)}: {error}") from error


def _weight(table: SampleTable) -> int:
    """Bytes of memory that a table holds, with what it derives on use."""
    return 4096 + 64 * len(table.offset)
