"""A bounded cache of byte strings on disk, shared by any number of processes without a lock on reading."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger("robostream")

_FOLDER = "robostream-v1"
_NAME = re.compile(r"[0-9a-f]{40}\.bin")
_LEFT_OVER = re.compile(r"[0-9a-f]{40}\.\d+\.\d+\.tmp")
_DIGEST = 16  # bytes in front of the content: its checksum, with the key in it
_TIDY_SHARE = 1 / 16  # of the bound: written by one process before it looks whether the bound is kept
_STALE_S = 3600  # an unfinished file this old belongs to a process that is gone


class DiskCache:
    """Byte strings by key, in one folder, the least recently used dropped first.

    Files are written aside and renamed, so a reader sees a whole one or none; a damaged one is dropped and counts as
    absent. Only files that this class has written are ever deleted. Several processes may share a folder: together
    they keep to the bound, apart from what is written between two tidyings (1/16 of it by each process).

    Args:
        folder: made on first use.
        max_bytes: bound of the files' content.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int) -> None:
        self._folder = Path(folder).expanduser().absolute() / _FOLDER
        self._bound = max_bytes
        self._unchecked = max_bytes  # written since the last tidying; the first write tidies
        self._counting = threading.Lock()
        self._broken = False

    def get(self, key: str) -> bytes | None:
        """The bytes put under this key, or None."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                data = file.read()
            os.utime(path)
        except OSError:
            return None
        content = data[_DIGEST:]
        if data[:_DIGEST] == _digest(key, content):
            return content
        _remove(path)
        return None

    def put(self, key: str, content: bytes) -> None:
        """Keep bytes. A disk that is full or can't be written is logged once, and nothing is kept."""
        if len(content) > self._bound:
            return
        path = self._path(key)
        aside = path.with_name(f"{path.stem}.{os.getpid()}.{time.monotonic_ns()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                file.write(_digest(key, content))
                file.write(content)
            aside.replace(path)
        except OSError as error:
            _remove(aside)
            if not self._broken:
                log.warning("%s: can't be written (%s), so nothing is cached there", self._folder, error.strerror)
            self._broken = True
            return
        with self._counting:
            self._unchecked += len(content)
            if self._unchecked <= self._bound * _TIDY_SHARE:
                return
            self._unchecked = 0
        self._tidy()

    def _path(self, key: str) -> Path:
        name = hashlib.blake2b(key.encode(), digest_size=20).hexdigest()
        return self._folder / name[:2] / f"{name}.bin"

    def _tidy(self) -> None:
        """Delete the files that were used longest ago until 7/8 of the bound are left.

        Several may be at it at once: they find the same files to be the oldest, so no more are deleted than by one.
        """
        found = sorted(self._entries())
        excess = sum(size for _, size, _ in found) - self._bound
        if excess <= 0:
            return
        excess += self._bound // 8
        for _, size, path in found:
            if excess <= 0:
                break
            _remove(path)
            excess -= size

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """(when last used, bytes, path) of the files that are here."""
        for folder in self._folder.glob("[0-9a-f][0-9a-f]"):
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        stat = entry.stat(follow_symlinks=False)
                        if _NAME.fullmatch(entry.name):
                            yield stat.st_mtime, stat.st_size, Path(entry.path)
                        elif _LEFT_OVER.fullmatch(entry.name) and time.time() - stat.st_mtime > _STALE_S:
                            _remove(Path(entry.path))


def _digest(key: str, content: bytes) -> bytes:
    state: Any = hashlib.blake2b(key.encode(), digest_size=_DIGEST)
    state.update(content)
    digest: bytes = state.digest()
    return digest


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def cache_home() -> Path:
    """The folder of this package's caches: $ROBOSTREAM_CACHE, else robostream in $XDG_CACHE_HOME or ~/.cache."""
    own = os.environ.get("ROBOSTREAM_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "robostream"
