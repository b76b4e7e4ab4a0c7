"""Object stores through obstore, whose requests run outside of Python: S3, Google Cloud Storage, Azure."""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from robostream.errors import AccessError, FileMissingError, SettingError, SourceChangedError, SourceError
from robostream.metrics import Metrics
from robostream.source.generic import FsspecStore
from robostream.source.helper import HelperSession
from robostream.source.interface import Stat
from robostream.source.remote import Session
from robostream.source.retry import RetryPolicy, TransientError, check_pace
from robostream.source.urls import without_secrets

SCHEMES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs"}
"""Scheme → the package with which fsspec reads it."""

# fsspec's names of options → obstore's.
_OPTIONS = {
    "s3": {
        "key": "access_key_id",
        "secret": "secret_access_key",
        "token": "session_token",
        "anon": "skip_signature",
        "endpoint_url": "endpoint",
        "region": "region",
    },
    "gs": {"anon": "skip_signature", "token": "service_account"},
    "az": {
        "anon": "skip_signature",
        "account_name": "account_name",
        "account_key": "account_key",
        "sas_token": "sas_key",
        "tenant_id": "tenant_id",
        "client_id": "client_id",
        "client_secret": "client_secret",
    },
}
_used_by: list[int] = []  # the process that used obstore first: its threads do not survive a fork


class ObjectStore:
    """Objects below a URL: through obstore, or through fsspec where obstore is not there or does not know an option.

    options: as fsspec takes them.
    """

    def __init__(self, url: str, scheme: str, options: Mapping[str, Any]) -> None:
        self._url = url.rstrip("/")
        self._scheme = scheme
        self._options = dict(options)

    def describe(self, path: str) -> str:
        return f"{without_secrets(self._url)}/{path}"

    def connect(self, policy: RetryPolicy, metrics: Metrics) -> Session:
        settings, package = self._settings(), SCHEMES[self._scheme]
        if settings is None or not _installed("obstore"):
            if _installed(package):
                return FsspecStore(self._url, self._options).connect(policy, metrics)
            reason = "obstore knows no such storage_options" if _installed("obstore") else "needs obstore"
            raise SettingError(
                f"{without_secrets(self._url)}: {reason}: `pip install robostream[cloud]`, or fsspec's package for it: "
                f"`pip install {package}`"
            )
        if _used_by and _used_by[0] != os.getpid():
            return HelperSession(self, policy, metrics)
        _used_by[:] = [os.getpid()]
        return ObstoreSession(self, self._url, settings, policy, metrics)

    def _settings(self) -> dict[str, Any] | None:
        """The options in obstore's names; None where one of them has none."""
        names = _OPTIONS[{"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}.get(self._scheme, self._scheme)]
        options = dict(self._options)
        client = options.pop("client_kwargs", {})
        if not isinstance(client, Mapping):
            return None
        flat = {**client, **options}
        if not flat.keys() <= names.keys() | {"region_name"}:
            return None
        if "region_name" in flat:
            flat["region"] = flat.pop("region_name")
        return {names[name]: value for name, value in flat.items()}


class ObstoreSession:
    """One process's store. See `Session` in remote.py."""

    def __init__(
        self, store: ObjectStore, url: str, settings: Mapping[str, Any], policy: RetryPolicy, metrics: Metrics
    ) -> None:
        import obstore

        self._store = store
        self._policy = policy
        self._metrics = metrics
        self._obstore = obstore
        settings = dict(settings)
        endpoint = str(settings.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3", ""))
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL", "")
        timeout = timedelta(seconds=policy.timeout_s)
        client: dict[str, Any] = {"connect_timeout": timeout, "read_timeout": timeout, "timeout": "1h"}
        if endpoint.startswith("http://"):
            client["allow_http"] = True
        more: dict[str, Any] = {"client_options": client, "retry_config": {"max_retries": 0}}
        if url.startswith(("s3://", "s3a://")):
            more |= _s3_credentials(settings)
            if endpoint:
                settings["endpoint"] = endpoint
        try:
            self._files = _open_store(url, settings, more)
        except Exception as error:
            raise SourceError(f"{without_secrets(url)}: can't be opened: {_clean(error)}") from None

    def stat(self, path: str) -> Stat:
        found = self._call(path, lambda: self._obstore.head(self._files, path))
        if not found["e_tag"]:  # every store has them; a web page in its place has not
            raise TransientError("the answer has no etag, so it is not the store's")
        return Stat(int(found["size"]), str(found["e_tag"] or "").strip('"'))

    def whole(self, path: str) -> bytes:
        return bytes(self._call(path, lambda: self._body(self._obstore.get(self._files, path), 0)))

    def part(self, path: str, start: int, stop: int, stat: Stat) -> bytes:
        options: dict[str, Any] = {"range": (start, stop)}

        def read() -> bytes:
            answer = self._obstore.get(self._files, path, options=options)
            found = Stat(int(answer.meta["size"]), str(answer.meta["e_tag"] or "").strip('"'))
            if found != stat:
                raise SourceChangedError(
                    f"{self._store.describe(path)}: the object was replaced while the dataset was open: it was {stat} "
                    f"and is {found} now. Open the dataset anew"
                )
            return self._body(answer, stop - start)

        data = bytes(self._call(path, read))
        if len(data) != stop - start:
            raise TransientError(f"the body is short: {len(data):,} of {stop - start:,} bytes")
        return data

    def list(self, prefix: str) -> list[str] | None:
        batches = self._call(prefix, lambda: list(self._obstore.list(self._files, prefix.rstrip("/") + "/")))
        return sorted(str(item["path"]) for batch in batches for item in batch)

    def _body(self, answer: Any, due: int) -> bytes:
        """The body of an answer, given up where it comes too slowly. due: bytes that it should have."""
        pieces: list[bytes] = []
        had, begun = 0, time.monotonic()
        for piece in answer.stream(min_chunk_size=1):
            pieces.append(bytes(piece))
            had += len(pieces[-1])
            if had != due:
                check_pace(self._policy, had, begun)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _call(self, path: str, function: Any) -> Any:
        from obstore import exceptions

        name = self._store.describe(path)
        self._metrics.add("requests")
        begun = time.monotonic()
        try:
            return function()
        except (exceptions.NotFoundError, FileNotFoundError):
            raise FileMissingError(f"{name}: no such object") from None
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
            raise AccessError(_refused(name)) from None
        except exceptions.BaseError as error:
            text = str(error)
            status = re.search(r"status:? (\d{3})", text)
            code = int(status[1]) if status else 0
            if code in (401, 403) or "169.254.169.254" in text:
                raise AccessError(_refused(name)) from None
            if 400 <= code < 500 and code not in (408, 425, 429):
                raise SourceError(f"{name}: {_clean(error)}") from None
            raise TransientError(f"answered {code}" if code else _clean(error)) from None
        finally:
            self._metrics.add("first_byte_s", time.monotonic() - begun)


def _open_store(url: str, settings: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
    """A store of obstore for a root. Keys are taken as they are written, not decoded as parts of a URL are."""
    from obstore import store as stores

    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    options: dict[str, Any] = {"config": dict(settings), **more}
    if scheme in ("s3", "s3a"):
        return stores.S3Store(bucket, prefix=prefix or None, **options)
    if scheme in ("gs", "gcs"):
        return stores.GCSStore(bucket, prefix=prefix or None, **options)
    open_url: Any = stores.from_url
    return open_url(url, **options)


def _s3_credentials(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What AWS profiles and sign-on tell, which obstore does not read by itself; needs boto3."""
    known = "access_key_id" in settings or settings.get("skip_signature") or "AWS_ACCESS_KEY_ID" in os.environ
    if known or not _installed("boto3"):
        return {}
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.Session()
    if session.get_credentials() is None:
        return {}
    return {"credential_provider": Boto3CredentialProvider(session)}


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _clean(error: Exception) -> str:
    """The first line of an error of obstore, without the query of a URL in it."""
    return re.sub(r"\?[^\s\"')]*", "", str(error).strip().splitlines()[0])


def _refused(name: str) -> str:
    return (
        f"{name}: access refused. Check that the credentials in storage_options or in the environment may read it, "
        "and the region; docs/sources.md tells where they are looked for"
    )
