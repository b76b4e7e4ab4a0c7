"""Parquet files of a source: footers, and row groups of which only the needed columns are read."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from robostream.errors import DataFileError
from robostream.source import Source

_REMOTE_TAIL = 64 * 1024  # read at first: holds the whole footer, as a rule
_LOCAL_TAIL = 4096  # where a second look costs nothing
_MAGIC = 8  # bytes at the end: the footer's length and "PAR1"
PARQUET_ERRORS = (pa.ArrowException, OSError, UnicodeDecodeError)  # what pyarrow raises for damaged files


@contextmanager
def named(source: Source, path: str, what: str = "not a readable Parquet file") -> Iterator[None]:
    """Turns what pyarrow raises for a damaged file into a DataFileError that names it."""
    try:
        yield
    except PARQUET_ERRORS as error:
        raise DataFileError(f"{source.describe(path)}: {what}: {error}") from error


def read_footer(source: Source, path: str) -> pq.FileMetaData:
    """The footer of a file. Raises DataFileError naming it where it is missing, truncated or no Parquet file."""
    size = source.stat(path).size
    begin = max(0, size - (_REMOTE_TAIL if source.is_remote else _LOCAL_TAIL))
    tail = source.read_ranges(path, [begin], [size - begin])[0]
    length = int.from_bytes(tail[-_MAGIC:-4], "little") + _MAGIC
    if len(tail) < length <= size:
        tail = source.read_ranges(path, [size - length], [length - len(tail)])[0] + tail
    with named(source, path):
        return pq.read_metadata(_Pieces(source, path, size, [size - len(tail)], [tail]))


def read_group(
    source: Source, path: str, footer: pq.FileMetaData, group: int, columns: Sequence[str]
) -> tuple[pa.Table, int]:
    """One row group: its columns by name (dotted for fields of structs), and the bytes that they needed.

    Raises DataFileError naming file and row group.
    """
    size = source.stat(path).size
    with named(source, path, f"row group {group}"):
        _check_chunks(size, footer, [group], columns)
        chunks = _chunks(footer, group, columns)
    starts, lengths = [start for start, _ in chunks], [length for _, length in chunks]
    data = source.read_ranges(path, starts, lengths)
    file = _Pieces(source, path, size, starts, data)
    with named(source, path, f"row group {group}"):
        reader = pq.ParquetFile(file, metadata=footer)
        return reader.read_row_group(group, columns=list(columns), use_threads=False), sum(lengths)


def read_bounds(source: Source, path: str, footer: pq.FileMetaData, column: str) -> list[tuple[Any, Any] | None]:
    """Per row group, the lowest and highest value of a column, as the footer says; None where it doesn't.

    Raises DataFileError naming the file where the footer is damaged.
    """
    groups = range(footer.num_row_groups)
    with named(source, path):
        _check_chunks(source.stat(path).size, footer, groups, [column])
        number = [footer.schema.column(i).path for i in range(footer.num_columns)].index(column)
        kind = footer.schema.column(number).physical_type
        found: list[tuple[Any, Any] | None] = []
        for group in groups:
            chunk = footer.row_group(group).column(number)
            if chunk.physical_type != kind:  # asked for its statistics, pyarrow would end the process
                raise DataFileError(
                    f"{source.describe(path)}: row group {group}: {column} is {chunk.physical_type} instead of {kind}: "
                    "the file is damaged"
                )
            statistics = chunk.statistics
            has = statistics is not None and statistics.has_min_max
            found.append((statistics.min, statistics.max) if has else None)
    return found


def _check_chunks(size: int, footer: pq.FileMetaData, groups: Sequence[int], columns: Sequence[str]) -> None:
    """Raise what pyarrow has against the footer's entries of these columns.

    Only readers check them with errors that can be caught; `RowGroupMetaData.column` ends the process. So a reader is
    begun: it looks at all entries before the first byte, which it doesn't get.
    """
    try:
        reader = pq.ParquetFile(_Unread(size), metadata=footer, pre_buffer=True)
        reader.read_row_groups(list(groups), columns=list(columns), use_threads=False)
    except _ReachedError as reached:
        # The reader holds it, and its traceback everybody's frames, so that none of them would ever be freed.
        reached.__traceback__ = None


def _chunks(footer: pq.FileMetaData, group: int, columns: Sequence[str]) -> list[tuple[int, int]]:
    """(first byte, bytes) of each wanted column chunk of a row group."""
    found = []
    row_group = footer.row_group(group)
    for number in range(footer.num_columns):
        if not _is_wanted(footer.schema.column(number).path, columns):
            continue
        chunk = row_group.column(number)
        begin = chunk.data_page_offset
        if chunk.dictionary_page_offset:
            begin = min(begin, chunk.dictionary_page_offset)
        found.append((begin, chunk.total_compressed_size))
    return found


def _is_wanted(name: str, columns: Collection[str]) -> bool:
    return any(name == column or name.startswith(f"{column}.") for column in columns)


class _Sized(io.RawIOBase):
    """A file of a known size to move about in."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at


class _Pieces(_Sized):
    """A file of which some pieces are in memory; the rest is read from the source when it is asked for."""

    def __init__(self, source: Source, path: str, size: int, starts: Sequence[int], data: Sequence[bytes]) -> None:
        super().__init__(size)
        self._source = source
        self._path = path
        self._pieces = list(zip(starts, data, strict=True))

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._at + size, self._size)
        begin, self._at = self._at, max(self._at, stop)
        for start, piece in self._pieces:
            if start <= begin and stop <= start + len(piece):
                return piece[begin - start : stop - start]
        return self._source.read_ranges(self._path, [begin], [stop - begin])[0] if stop > begin else b""

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _ReachedError(Exception):
    """A reader has come as far as the first byte."""


class _Unread(_Sized):
    """A file of which nothing can be read."""

    def read(self, size: int | None = -1) -> bytes:
        raise _ReachedError
