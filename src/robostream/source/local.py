"""A dataset in a local folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from robostream.errors import DataFileError, FileMissingError
from robostream.metrics import Board
from robostream.source.interface import Stat


class LocalSource:
    """A dataset in a local folder. Nothing is checked, opened or cached until it is asked for.

    Args:
        root: the folder.
        name: what messages call it; by default its path.
    """

    is_remote = False
    parallel = 2

    def __init__(self, root: str | os.PathLike[str], name: str | None = None) -> None:
        self.root = Path(root).expanduser().absolute()
        self._name = name or str(self.root)
        self.board = Board()

    def describe(self, path: str) -> str:
        return f"{self._name}/{path}"

    def stat(self, path: str) -> Stat:
        if not self.exists(path):
            raise FileMissingError(f"{self.describe(path)}: no such file")
        return Stat((self.root / path).stat().st_size)

    def exists(self, path: str) -> bool:
        return (self.root / path).is_file()

    def read(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except OSError as error:
            raise self._failure(path, error) from error

    def read_ranges(self, path: str, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        try:
            descriptor = os.open(f"{self.root}/{path}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts = [_pread(descriptor, *span) for span in zip(starts, lengths, strict=True)]
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._failure(path, error) from error
        for start, wanted, part in zip(starts, lengths, parts, strict=True):
            if len(part) != wanted:
                raise DataFileError(
                    f"{self.describe(path)}: wanted {wanted} bytes at {start}, got {len(part)}: "
                    "the file is shorter than its index says"
                )
        self.board.mine.add("bytes_read", sum(lengths))
        return parts

    def open(self, path: str) -> BinaryIO:
        try:
            return (self.root / path).open("rb")
        except OSError as error:
            raise self._failure(path, error) from error

    def list(self, prefix: str) -> list[str]:
        # Links are followed: a chunk folder may live on another disk.
        walk = os.walk(self.root / prefix, followlinks=True)
        found = (Path(folder, name) for folder, _, names in walk for name in names)
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    def _failure(self, path: str, error: OSError) -> DataFileError:
        if isinstance(error, FileNotFoundError):
            return FileMissingError(f"{self.describe(path)}: no such file")
        return DataFileError(f"{self.describe(path)}: {error.strerror or error}")


def _pread(descriptor: int, start: int, length: int) -> bytes:
    """`length` bytes at `start`, or fewer at the end of the file. One call of the system, as a rule."""
    part = os.pread(descriptor, length, start)
    while 0 < len(part) < length:  # one call gives at most 2 GiB, and may give less
        more = os.pread(descriptor, length - len(part), start + len(part))
        if not more:
            break
        part += more
    return part
