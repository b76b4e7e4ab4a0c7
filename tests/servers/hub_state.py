"""The repositories, commits and buckets of the Hub-shaped server. A commit is immutable: path → file."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path

LARGE = (".parquet", ".mp4", ".bin")  # what `.gitattributes` of a dataset sends to large-file storage


@dataclass(frozen=True)
class Blob:
    """One version of one file."""

    file: str
    size: int
    sha256: str
    oid: str  # git's name of it
    large: bool

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.oid


@dataclass
class Repo:
    """`users` may read it where it is private or gated; everybody else may not."""

    private: bool = False
    gated: bool = False
    users: set[str] = field(default_factory=set)
    commits: dict[str, dict[str, Blob]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, revision: str) -> str | None:
        """The commit that a branch, a tag, or a commit's own name stands for."""
        return self.branches.get(revision) or (revision if revision in self.commits else None)


@dataclass
class Bucket:
    private: bool = False
    users: set[str] = field(default_factory=set)
    files: dict[str, Blob] = field(default_factory=dict)


class Store:
    """Keeps what is pushed in a folder of its own, by content, so that a folder may change after it was pushed."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.blobs: dict[str, Blob] = {}  # by sha256

    def take(self, folder: str) -> dict[str, Blob]:
        """Every file of `folder`, by its path in it."""
        root = Path(folder)
        paths = sorted(path for path in root.rglob("*") if path.is_file())
        return {path.relative_to(root).as_posix(): self._keep(path) for path in paths}

    def _keep(self, path: Path) -> Blob:
        data = path.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        kept = self.folder / sha256
        if not kept.exists():
            shutil.copyfile(path, kept)
        blob = Blob(str(kept), len(data), sha256, oid, path.suffix in LARGE)
        self.blobs[sha256] = blob
        return blob


def commit_name(files: dict[str, Blob], number: int) -> str:
    text = f"{number}" + "".join(f"{path} {blob.sha256}\n" for path, blob in files.items())
    return hashlib.sha1(text.encode()).hexdigest()


def tree(files: dict[str, Blob], prefix: str, recursive: bool) -> list[tuple[str, Blob | None]]:
    """Files, and folders as None, under `prefix`; a file's own path gives that file."""
    if prefix in files:
        return [(prefix, files[prefix])]
    start = f"{prefix}/" if prefix else ""
    entries: dict[str, Blob | None] = {}
    for path, blob in files.items():
        if not path.startswith(start):
            continue
        parts = path[len(start) :].split("/")
        for depth in range(1, len(parts) if recursive else min(2, len(parts))):
            entries[start + "/".join(parts[:depth])] = None
        if recursive or len(parts) == 1:
            entries[path] = blob
    return sorted(entries.items())


def valid_id(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and os.sep not in name.replace("/", "", 1)
