"""Boxes of an MP4 file: walking them, finding the movie box, reading single fields and tables.

Names in quotation marks are the section names of ISO/IEC 14496-12 (ISO base media file format).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

HEAD_BYTES = 64 * 1024
"""Bytes asked for at each place that is looked at; a request this small costs no more than one of 16."""

_BOX_HEADER_BYTES = 8
_LARGE_BOX_HEADER_BYTES = 16
_FIRST_BOX_KINDS = frozenset(
    b"ftyp styp moov mdat moof mfra free skip wide pnot uuid sidx ssix prft emsg meta udta".split()
)


class BoxError(Exception):
    """The bytes are not those of a readable MP4. The message says what; the caller adds which file."""


class ByteReader(Protocol):
    """Random access to the bytes of one file, local or remote."""

    @property
    def name(self) -> str:
        """Path or URL, for error messages."""

    @property
    def size(self) -> int:
        """Length of the whole file in bytes."""

    def read_at(self, start: int, length: int) -> bytes:
        """The bytes [start, start + length)."""


@dataclass(frozen=True)
class Box:
    """One box that lies in memory: its four-character code and the bytes after its header."""

    kind: bytes
    payload: memoryview

    def children(self, skip: int = 0) -> Iterator[Box]:
        """The boxes inside this one, after `skip` bytes of its own fields."""
        return iter_boxes(self.payload[skip:], self.kind)

    def find(self, *path: bytes) -> Box | None:
        """The first descendant along a path of four-character codes, or None."""
        box: Box | None = self
        for kind in path:
            if box is None:
                return None
            box = next((child for child in box.children() if child.kind == kind), None)
        return box

    def need(self, *path: bytes) -> Box:
        """As `find`, but an error when it is not there."""
        box = self.find(*path)
        if box is None:
            raise BoxError(f"box '{self.text}/{b'/'.join(path).decode('latin-1')}' is missing")
        return box

    @property
    def text(self) -> str:
        return self.kind.decode("latin-1")

    @property
    def version(self) -> int:
        """Version of a "FullBox"."""
        return self.uint(0, 1)

    def uint(self, at: int, length: int) -> int:
        """Unsigned big-endian integer of `length` bytes at byte `at` of the payload."""
        if at + length > len(self.payload):
            raise BoxError(f"box '{self.text}' ends after {len(self.payload)} bytes, inside its own fields")
        return int.from_bytes(self.payload[at : at + length], "big")

    def sint(self, at: int, length: int) -> int:
        """Signed big-endian integer of `length` bytes at byte `at` of the payload."""
        value = self.uint(at, length)
        return value - (1 << 8 * length) if value >> (8 * length - 1) else value

    def column(self, at: int, rows: int, dtype: str) -> Int64Array:
        """Big-endian numbers that begin at byte `at`, as int64[rows]."""
        return self.table(at, rows, dtype, columns=1).reshape(rows)

    def table(self, at: int, rows: int, dtype: str, columns: int) -> Int64Array:
        """Table of big-endian numbers that begins at byte `at`, as int64[columns, rows]."""
        kind = np.dtype(dtype)
        length = rows * columns * kind.itemsize
        if at + length > len(self.payload):
            raise BoxError(
                f"box '{self.text}' announces {rows} entries ({length} bytes) but holds"
                f" {max(len(self.payload) - at, 0)} bytes"
            )
        flat = np.frombuffer(self.payload[at : at + length], dtype=kind)
        values: Int64Array = flat.reshape(rows, columns).T.astype(np.int64, order="C")
        return values


def iter_boxes(data: memoryview, parent: bytes) -> Iterator[Box]:
    """Boxes that fill `data`, in order ("Object Structure"); fewer than 8 bytes at the end are padding."""
    at = 0
    while at + _BOX_HEADER_BYTES <= len(data):
        size, header = _box_size(data[at : at + _LARGE_BOX_HEADER_BYTES], len(data) - at)
        kind = bytes(data[at + 4 : at + 8])
        if size < header or at + size > len(data):
            raise BoxError(
                f"box {_quoted(kind)} in {_quoted(parent)} has a size of {size} bytes, where {len(data) - at} are left"
            )
        yield Box(kind, data[at + header : at + size])
        at += size


def _box_size(header: memoryview, remaining: int) -> tuple[int, int]:
    """Size of a box and of its header, in bytes. Size 1: a 64-bit size follows. Size 0: up to the end."""
    size = int.from_bytes(header[:4], "big")
    if size == 1:
        return int.from_bytes(header[8:16], "big"), _LARGE_BOX_HEADER_BYTES
    return (remaining if size == 0 else size), _BOX_HEADER_BYTES


def _quoted(kind: bytes) -> str:
    return f"'{kind.decode('latin-1')}'"


class _Window:
    """Reads through a `ByteReader`, keeps the latest block, counts the bytes."""

    def __init__(self, reader: ByteReader) -> None:
        self.size = reader.size
        self.bytes_read = 0
        self._reader = reader
        self._start = 0
        self._block = b""

    def peek(self, at: int, length: int) -> bytes:
        """Up to `length` bytes at `at` (fewer at the file's end), from one block of `HEAD_BYTES`."""
        if not self._start <= at <= min(at + length, self.size) <= self._start + len(self._block):
            self._block = self._read(at, min(HEAD_BYTES, self.size - at))
            self._start = at
        return self._block[at - self._start : at - self._start + length]

    def exactly(self, at: int, length: int) -> bytes:
        """The bytes [at, at + length); those in the latest block are not read again."""
        known = self._block[at - self._start : at - self._start + length] if at >= self._start else b""
        missing = length - len(known)
        return known + self._read(at + len(known), missing) if missing else known

    def _read(self, at: int, length: int) -> bytes:
        data = self._reader.read_at(at, length)
        self.bytes_read += len(data)
        if len(data) != length:
            raise BoxError(f"asked for {length} bytes at byte {at}, got {len(data)}; the file is truncated")
        return data


@dataclass(frozen=True)
class Movie:
    """The movie box, and how it was found."""

    moov: Box
    at_head: bool
    bytes_read: int


def read_movie(reader: ByteReader) -> Movie:
    """Find and read the 'moov' box ("Movie Box"), before or after the media data, which is jumped over."""
    window = _Window(reader)
    _check_begin(window.peek(0, _LARGE_BOX_HEADER_BYTES) if window.size else b"")
    at, mdat_seen = 0, False
    while at + _BOX_HEADER_BYTES <= window.size:
        head = memoryview(window.peek(at, _LARGE_BOX_HEADER_BYTES))
        size, header = _box_size(head, window.size - at)
        kind = bytes(head[4:8])
        _check_top_level(kind, at, size, header, window.size)
        if kind == b"moov":
            payload = window.exactly(at + header, size - header)
            return Movie(Box(kind, memoryview(payload)), not mdat_seen, window.bytes_read)
        mdat_seen |= kind == b"mdat"
        at += size
    raise BoxError(
        f"there is no 'moov' box in its {window.size} bytes: the file is truncated, or its recording was never finished"
    )


def _check_begin(begin: bytes) -> None:
    """The file must begin with a kind of box that an MP4 begins with."""
    if not begin:
        raise BoxError("the file is empty (0 bytes), not an MP4")
    if begin[4:8] in _FIRST_BOX_KINDS:
        return
    hint = ""
    if begin.startswith(b"version https://"[: len(begin)]):
        hint = ", a Git LFS pointer; fetch the real file with `git lfs pull`"
    raise BoxError(f"not an MP4: the file begins with {begin!r}{hint}")


def _check_top_level(kind: bytes, at: int, size: int, header: int, file_size: int) -> None:
    """A top-level box must be sound and lie inside the file."""
    if kind == b"moof":
        raise BoxError(FRAGMENTED)
    if size < header:
        raise BoxError(f"box {_quoted(kind)} at byte {at} has an impossible size of {size} bytes")
    if at + size > file_size:
        raise BoxError(
            f"the file is truncated: box {_quoted(kind)} at byte {at} needs the bytes up to {at + size}, the"
            f" file ends at {file_size} ({at + size - file_size} bytes are missing)"
        )


FRAGMENTED = (
    "fragmented MP4 (with 'moof' boxes) is not supported; rewrite it without loss with"
    " `ffmpeg -i IN.mp4 -c copy -movflags +faststart OUT.mp4`"
)
