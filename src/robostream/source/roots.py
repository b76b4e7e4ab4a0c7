"""From what a user names a dataset by to the source of its bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from robostream.diskcache import DiskCache
from robostream.errors import SettingError
from robostream.metrics import Board
from robostream.source.generic import FsspecStore
from robostream.source.http import HttpStore
from robostream.source.interface import Source, Stat
from robostream.source.local import LocalSource
from robostream.source.objects import SCHEMES, ObjectStore
from robostream.source.remote import RemoteSource, Store
from robostream.source.retry import RetryPolicy
from robostream.source.urls import Url, scheme_of

if TYPE_CHECKING:  # huggingface_hub takes long to import, and is not needed for other sources
    from robostream.source.hub import HubRoot

_META = "meta/"
_HTTP_ADVICE = "Check the URL, and the credentials in it or in storage_options={'headers': {…}}"


@dataclass(frozen=True)
class Access:
    """How remote files are read. cache_dir: of a disk cache for ranges, bounded to cache_bytes; None for none."""

    token: str | bool | None = field(default=None, repr=False)
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int = 10 << 30
    refresh: bool = False

    def __post_init__(self) -> None:
        if self.cache_bytes < 1:
            raise SettingError(f"cache_bytes={self.cache_bytes} must be at least 1")
        if not isinstance(self.retry, RetryPolicy):
            raise SettingError(f"retry={self.retry!r} must be a RetryPolicy")
        if not isinstance(self.storage_options, Mapping):
            raise SettingError("storage_options must be a dict of what fsspec takes for the URL's scheme")

    def remote(self, store: Store) -> RemoteSource:
        cache = None if self.cache_dir is None else DiskCache(self.cache_dir, self.cache_bytes)
        return RemoteSource(store, self.retry, cache)


@dataclass(frozen=True)
class Opened:
    """A dataset's source.

    revision: the commit that it is pinned to, where it is a repository of the Hub. folder: where it is local.
    """

    source: Source
    revision: str | None = None
    folder: Path | None = None


class JoinedSource:
    """Metadata from one source, everything else from another."""

    def __init__(self, meta: Source, bulk: Source) -> None:
        self._meta = meta
        self._bulk = bulk

    @property
    def is_remote(self) -> bool:
        return self._bulk.is_remote

    @property
    def parallel(self) -> int:
        return self._bulk.parallel

    @property
    def board(self) -> Board:
        return self._bulk.board

    def _of(self, path: str) -> Source:
        # The index lies beside the files that it is of.
        is_meta = path.startswith(_META) and not path.startswith(_META + "robostream-index.")
        return self._meta if is_meta else self._bulk

    def describe(self, path: str) -> str:
        return self._of(path).describe(path)

    def stat(self, path: str) -> Stat:
        return self._of(path).stat(path)

    def exists(self, path: str) -> bool:
        return self._of(path).exists(path)

    def read(self, path: str) -> bytes:
        return self._of(path).read(path)

    def read_ranges(self, path: str, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        return self._of(path).read_ranges(path, starts, lengths)

    def open(self, path: str) -> BinaryIO:
        return self._of(path).open(path)

    def list(self, prefix: str) -> list[str] | None:
        return self._of(prefix).list(prefix)


def open_source(
    *,
    repo_id: str | None = None,
    revision: str | None = None,
    repo_type: str = "dataset",
    root: str | os.PathLike[str] | None = None,
    data_files_root: str | os.PathLike[str] | None = None,
    access: Access | None = None,
) -> Opened:
    """The source of a dataset.

    root: a folder or URL that holds all of it; no name on the Hub is looked at then. Else `repo_id` names it on the
    Hub. data_files_root: a folder or URL that data/ and videos/ are read from; all of it where it is named alone.
    Raises SettingError for names that can't be meant, AccessError, SourceError and MetadataError as the Hub tells.
    """
    access = access or Access()
    if repo_type not in ("dataset", "bucket"):
        raise SettingError(f"repo_type={repo_type!r} must be 'dataset' or 'bucket'")
    if root is not None:
        opened = _open(root, access)
    elif repo_id is not None:
        if repo_type == "bucket" and revision is not None:
            raise SettingError(f"revision={revision!r}: buckets have no revisions")
        opened = _open_hub(_hub(repo_id, access, repo_type == "bucket", revision), access)
    elif data_files_root is not None:
        return _open(data_files_root, access)
    else:
        raise SettingError("name a dataset: repo_id=, root= or data_files_root=")
    if data_files_root is None:
        return opened
    return replace(opened, source=JoinedSource(opened.source, _bulk(data_files_root, access)))


def _open(root: str | os.PathLike[str], access: Access) -> Opened:
    if scheme_of(os.fspath(root)) == "hf":
        return _open_hub(_parse_hub(os.fspath(root), access), access)
    source = _source(root, access)
    return Opened(source, folder=source.root if isinstance(source, LocalSource) else None)


def _hub(repo_id: str, access: Access, is_bucket: bool, revision: str | None) -> HubRoot:
    from robostream.source.hub import HubRoot, HubToken

    return HubRoot(repo_id, is_bucket, HubToken(access.token), revision)


def _parse_hub(uri: str, access: Access) -> HubRoot:
    from robostream.source.hub import HubRoot, HubToken

    return HubRoot.parse(uri, HubToken(access.token))


def _open_hub(hub: HubRoot, access: Access) -> Opened:
    if hub.is_bucket:
        return Opened(access.remote(hub.store()))
    from robostream.source.hub import open_repository

    pinned, meta = open_repository(hub, access.retry, access.refresh)
    return Opened(JoinedSource(meta, access.remote(pinned.store())), pinned.revision)


def _bulk(root: str | os.PathLike[str], access: Access) -> Source:
    """A root of which only data/ and videos/ are read. A branch of a repository is pinned all the same."""
    if scheme_of(os.fspath(root)) != "hf":
        return _source(root, access)
    hub = _parse_hub(os.fspath(root), access)
    return access.remote((hub if hub.is_bucket else hub.pin(access.retry)).store())


def _source(root: str | os.PathLike[str], access: Access) -> Source:
    """What is not on the Hub."""
    text = os.fspath(root)
    scheme = scheme_of(text)
    options = access.storage_options
    if scheme in ("", "file", "local"):
        return LocalSource(text if not scheme else text.split("://", 1)[1])
    if scheme in ("http", "https"):
        unknown = options.keys() - {"headers"}
        if unknown:
            raise SettingError(f"storage_options: {min(unknown)!r} is not known for {scheme}://, only 'headers' is")
        return access.remote(HttpStore(Url.parse(text), dict(options.get("headers", {})), _HTTP_ADVICE))
    if scheme in SCHEMES:
        return access.remote(ObjectStore(text, scheme, options))
    return access.remote(FsspecStore(text, options))
