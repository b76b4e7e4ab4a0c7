"""What the rest of the package asks of a source of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from robostream.metrics import Board


@dataclass(frozen=True)
class Stat:
    """size: bytes of a file. etag: changes whenever its content does; empty where the source has none."""

    size: int
    etag: str = ""


class Source(Protocol):
    """Read access to the files of one dataset.

    Every path is relative to the dataset's root, with forward slashes. Implementations can be pickled, are safe to
    call from several threads, and share no connection with a forked child. A file that is not there is a
    `FileMissingError`, one that is unreadable or too short a `DataFileError`, and a source that refuses or fails a
    `SourceError`; each names the file without credentials.
    """

    @property
    def is_remote(self) -> bool:
        """Whether a read costs a round trip over a network."""
        ...

    @property
    def parallel(self) -> int:
        """How many reads are worth having under way at once."""
        ...

    @property
    def board(self) -> Board:
        """What was read from it: requests, retries, bytes_read, first_byte_s."""
        ...

    def describe(self, path: str) -> str:
        """The full path or URL of `path`, without credentials, for messages."""
        ...

    def stat(self, path: str) -> Stat:
        """Size and etag of a file."""
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
        """A seekable binary file; remote ones are read whole, so it is for metadata."""
        ...

    def list(self, prefix: str) -> list[str] | None:
        """The files under the folder `prefix`, at any depth, sorted; empty where there are none.

        None where the source can't list.
        """
        ...
