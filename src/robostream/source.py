"""Where the bytes of a dataset come from: one small protocol, and a local folder behind it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from robostream.errors import DataFileError


class Source(Protocol):
    """Read access to the files of one dataset.

    Every path is relative to the dataset's root, with forward slashes. Implementations can be pickled, and
    are safe to call from several threads. A file that is missing, unreadable or too short is a
    `DataFileError` that names it.
    """

    def describe(self, path: str) -> str:
        """The full path or URL of `path`, for messages."""
        ...

    def size(self, path: str) -> int:
        """The size of a file in bytes."""
        ...

    def exists(self, path: str) -> bool:
        """Whether `path` is a file."""
        ...

    def read(self, path: str) -> bytes:
        """The whole of a small file."""
        ...

    def read_ranges(self, path: str, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """The byte ranges `[start, start + length)` of one file, in the order asked for."""
        ...

    def open(self, path: str) -> BinaryIO:
        """A seekable binary file, for readers that choose their own ranges (Parquet)."""
        ...

    def list(self, prefix: str) -> list[str]:
        """The files under the folder `prefix`, at any depth, sorted; an empty list where there are none."""
        ...


class LocalSource:
    """A dataset in a local folder. Nothing is checked, opened or cached until it is asked for."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).expanduser().absolute()

    def describe(self, path: str) -> str:
        return f"{self.root}/{path}"

    def size(self, path: str) -> int:
        if not self.exists(path):
            raise DataFileError(f"{self.describe(path)}: no such file")
        return (self.root / path).stat().st_size

    def exists(self, path: str) -> bool:
        return (self.root / path).is_file()

    def read(self, path: str) -> bytes:
        try:
            return (self.root / path).read_bytes()
        except OSError as error:
            raise self._failure(path, error) from error

    def read_ranges(self, path: str, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        try:
            descriptor = os.open(self.describe(path), os.O_RDONLY | os.O_CLOEXEC)
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
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        return DataFileError(f"{self.describe(path)}: {reason}")


def _pread(descriptor: int, start: int, length: int) -> bytes:
    """`length` bytes at `start`, or fewer at the end of the file. One call of the system, as a rule."""
    part = os.pread(descriptor, length, start)
    while 0 < len(part) < length:  # one call gives at most 2 GiB, and may give less
        more = os.pread(descriptor, length - len(part), start + len(part))
        if not more:
            break
        part += more
    return part
