"""Files of any fsspec filesystem."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from robostream.errors import AccessError, FileMissingError, SettingError, SourceChangedError, SourceError
from robostream.metrics import Metrics
from robostream.source.interface import Stat
from robostream.source.retry import RetryPolicy, TransientError
from robostream.source.urls import scheme_of, without_secrets

_LOOK_AGAIN_S = 30.0  # an answer of fsspec does not tell the file's version, so it is looked at again this often
_ETAGS = ("ETag", "etag", "e_tag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "created")
_FINAL = (ImportError, NotImplementedError, TypeError, ValueError, AttributeError)


class FsspecStore:
    """Files below a URL that fsspec opens. options: for the filesystem, as `fsspec.filesystem` takes them."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url.rstrip("/")
        self._options = dict(options)

    def describe(self, path: str) -> str:
        return f"{without_secrets(self._url)}/{path}"

    def connect(self, policy: RetryPolicy, metrics: Metrics) -> FsspecSession:
        return FsspecSession(self, self._url, self._options, policy, metrics)


class FsspecSession:
    """One process's filesystem. See `Session` in remote.py."""

    def __init__(
        self, store: FsspecStore, url: str, options: Mapping[str, Any], policy: RetryPolicy, metrics: Metrics
    ) -> None:
        import fsspec

        self._store = store
        self._policy = policy
        self._metrics = metrics
        self._looked: dict[str, float] = {}
        try:
            self._files, root = fsspec.core.url_to_fs(url, **{"use_listings_cache": False, **options})
        except ImportError as error:
            raise SettingError(f"{without_secrets(url)}: {error}") from error
        except (TypeError, ValueError) as error:
            raise SettingError(f"{without_secrets(url)}: can't be opened with these storage_options: {error}") from None
        self._root = root.rstrip("/")

    def stat(self, path: str) -> Stat:
        info = self._call(path, self._files.info, f"{self._root}/{path}")
        if info.get("type") == "directory":
            raise FileMissingError(f"{self._store.describe(path)}: a folder, not a file")
        if info.get("size") is None:
            raise SourceError(f"{self._store.describe(path)}: the filesystem does not tell the file's size")
        self._looked[path] = time.monotonic()
        etag = next((str(info[name]) for name in _ETAGS if info.get(name)), "")
        return Stat(int(info["size"]), etag.strip('"'))

    def whole(self, path: str) -> bytes:
        return bytes(self._call(path, self._files.cat_file, f"{self._root}/{path}"))

    def part(self, path: str, start: int, stop: int, stat: Stat) -> bytes:
        if time.monotonic() - self._looked.get(path, 0.0) > _LOOK_AGAIN_S:
            self._check_version(path, stat)
        data = bytes(self._call(path, self._files.cat_file, f"{self._root}/{path}", start=start, end=stop))
        if len(data) != stop - start:
            self._check_version(path, stat)
            raise TransientError(f"the body is short: {len(data):,} of {stop - start:,} bytes")
        return data

    def list(self, prefix: str) -> list[str] | None:
        try:
            found = self._call(prefix, self._files.find, f"{self._root}/{prefix}")
        except FileMissingError:
            return []
        begin = self._root.lstrip("/")
        return sorted(path.lstrip("/")[len(begin) :].lstrip("/") for path in found)

    def _check_version(self, path: str, stat: Stat) -> None:
        now = self.stat(path)
        if now != stat:
            raise SourceChangedError(
                f"{self._store.describe(path)}: the file was replaced while the dataset was open: it was {stat} and "
                f"is {now} now. Open the dataset anew"
            )

    def _call(self, path: str, function: Any, *arguments: Any, **options: Any) -> Any:
        self._metrics.add("requests")
        begun = time.monotonic()
        try:
            return function(*arguments, **options)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise FileMissingError(f"{self._store.describe(path)}: no such file") from error
        except PermissionError:
            raise AccessError(_refused(self._store.describe(path))) from None
        except asyncio.TimeoutError:
            raise TransientError("timed out") from None
        except Exception as error:
            status = _status(error)
            if status in (401, 403) or "credentials" in type(error).__name__.lower():
                raise AccessError(_refused(self._store.describe(path))) from None
            if status in (404, 410):
                raise FileMissingError(f"{self._store.describe(path)}: no such file") from None
            if isinstance(error, _FINAL) or (status is not None and 400 <= status < 500 and status not in (408, 429)):
                raise SourceError(f"{self._store.describe(path)}: {type(error).__name__}: {error}") from None
            raise TransientError(f"{type(error).__name__}{f' (status {status})' if status else ''}") from None
        finally:
            self._metrics.add("first_byte_s", time.monotonic() - begun)


def _refused(name: str) -> str:
    return (
        f"{name}: access refused. Check that the credentials in storage_options or in the environment may read it; "
        f"docs/sources.md tells where {scheme_of(name)}:// looks for them"
    )


def _status(error: BaseException) -> int | None:
    """The HTTP status in an exception of any of fsspec's filesystems."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            value = getattr(holder, name, None)
            if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
                return int(value)
    return None
