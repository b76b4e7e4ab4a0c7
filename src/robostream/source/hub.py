"""Datasets and buckets on the Hugging Face Hub: metadata through its client's cache, the rest by range requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import huggingface_hub
from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from robostream.errors import AccessError, MetadataError, SettingError, SourceError, SourceUnavailableError
from robostream.metrics import Metrics
from robostream.source.http import HttpSession, HttpStore
from robostream.source.local import LocalSource
from robostream.source.retry import RetryPolicy, TransientError, asked_pause_s, persist
from robostream.source.urls import Url

T = TypeVar("T")

_INFO = "meta/info.json"
_NOT_NEEDED = re.compile(r"meta/(episodes_stats\.jsonl|robostream-index\.parquet)")
_READERS = 8  # metadata files fetched at once
_URI = re.compile(
    r"hf://(?P<kind>datasets|buckets)/(?P<id>[^/@]+/[^/@]+)"
    r"(@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(/(?P<folder>.*))?"
)
_HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")  # of huggingface_hub's versions
_ADVICE = (
    "Check that the name is right and that the token may read it: log in with `hf auth login`, set HF_TOKEN, or pass "
    "token=; for a gated one, accept its conditions on its page"
)


class HubToken:
    """The user's token, looked up in the process that needs it; never shown.

    given: the token, True or None for the one that is stored or in HF_TOKEN, False for none.
    """

    def __init__(self, given: str | bool | None) -> None:
        self._given = given

    @property
    def for_client(self) -> str | bool | None:
        """As huggingface_hub's functions take it."""
        return self._given

    def __call__(self) -> str | None:
        """The Authorization header."""
        if self._given is False:
            return None
        token = self._given if isinstance(self._given, str) else huggingface_hub.get_token()
        return f"Bearer {token}" if token else None

    def __repr__(self) -> str:
        return "HubToken(…)"


class HubStore(HttpStore):
    """Files on the Hub, which is not asked for anything where HF_HUB_OFFLINE is set."""

    def connect(self, policy: RetryPolicy, metrics: Metrics) -> HttpSession:
        if constants.HF_HUB_OFFLINE:
            raise SourceUnavailableError(
                f"{self.name}: HF_HUB_OFFLINE is set, and only metadata is in the Hub's cache. Name the place of data/ "
                "and videos/ in data_files_root=, or unset it"
            )
        return super().connect(policy, metrics)


@dataclass(frozen=True)
class HubRoot:
    """A folder of a dataset repository or a bucket. folder: "" for its root."""

    repo_id: str
    is_bucket: bool
    token: HubToken = field(repr=False)
    revision: str | None = None
    folder: str = ""

    @classmethod
    def parse(cls, uri: str, token: HubToken) -> HubRoot:
        """Of `hf://datasets/OWNER/NAME[@REVISION][/FOLDER]` or `hf://buckets/OWNER/NAME[/FOLDER]`."""
        match = _URI.fullmatch(uri.rstrip("/"))
        if match is None:
            raise SettingError(
                f"{uri}: not a dataset or bucket of the Hub, which are named hf://datasets/OWNER/NAME[@REVISION] and "
                "hf://buckets/OWNER/NAME"
            )
        is_bucket = match["kind"] == "buckets"
        if is_bucket and match["revision"]:
            raise SettingError(f"{uri}: buckets have no revisions")
        revision = unquote(match["revision"]) if match["revision"] else None
        return cls(match["id"], is_bucket, token, revision, match["folder"] or "")

    @property
    def uri(self) -> str:
        """Its name for messages."""
        at = f"@{self.revision}" if self.revision else ""
        name = f"hf://{'buckets' if self.is_bucket else 'datasets'}/{self.repo_id}{at}"
        return f"{name}/{self.folder}" if self.folder else name

    def path(self, path: str) -> str:
        return f"{self.folder}/{path}" if self.folder else path

    def store(self) -> HttpStore:
        """Its files, by range requests. The revision should be a commit, so that one version is read throughout."""
        kind = "buckets" if self.is_bucket else "datasets"
        revision = "" if self.is_bucket else f"/{quote(self.revision or 'main', safe='')}"
        url = f"{constants.ENDPOINT}/{kind}/{self.repo_id}/resolve{revision}/{quote(self.folder)}"
        return HubStore(Url.parse(url), {}, _ADVICE, token=self.token, name=self.uri, lister=_Lister(self))

    def _tree(self, folder: str) -> list[Any]:
        api, token = HfApi(), self.token.for_client
        if not self.is_bucket:
            tree = api.list_repo_tree(
                self.repo_id, folder, recursive=True, revision=self.revision, repo_type="dataset", token=token
            )
            return list(tree)
        if not hasattr(api, "list_bucket_tree"):
            raise SettingError(f"{self.uri}: buckets need a newer huggingface_hub: pip install -U huggingface_hub")
        return list(api.list_bucket_tree(self.repo_id, folder, recursive=True, token=token))

    def pin(self, policy: RetryPolicy) -> HubRoot:
        """The same at the commit that the revision means now."""
        if self.revision and re.fullmatch(r"[0-9a-f]{40}", self.revision):
            return self
        api, token = HfApi(), self.token.for_client

        def ask() -> Any:
            return api.dataset_info(self.repo_id, revision=self.revision, expand=["sha"], token=token)

        info = persist(lambda: self.call(ask), policy, policy.opening_deadline_s, self.uri, lambda: None)
        return replace(self, revision=info.sha)

    def call(self, function: Callable[[], T]) -> T:
        """One attempt at a call of huggingface_hub, with its errors in our words.

        None of theirs is chained: they hold headers. Raises TransientError for what may pass.
        """
        try:
            return function()
        except GatedRepoError:
            reason = "a gated dataset that this token may not read"
        except RepositoryNotFoundError:
            reason = "no such dataset, or a private one that this token may not read"
        except RevisionNotFoundError:
            raise SourceError(
                f"{self.uri}: there is no revision {self.revision!r}; check its tags and branches"
            ) from None
        except (LocalEntryNotFoundError, OfflineModeIsEnabled):
            if not constants.HF_HUB_OFFLINE:
                raise TransientError(f"{constants.ENDPOINT} did not answer, and nothing is in the cache") from None
            raise SourceUnavailableError(
                f"{self.uri}: its metadata is not in the cache ({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE is set"
            ) from None
        except EntryNotFoundError:
            raise MetadataError(
                f"{self.uri}/{_INFO}: no such file; a dataset's root is the folder that holds meta/info.json, data/ "
                "and, where it has video, videos/"
            ) from None
        except HFValidationError:
            raise SettingError(f"repo_id={self.repo_id!r} is not a name on the Hub: OWNER/NAME") from None
        except HfHubHTTPError as error:
            status = getattr(error.response, "status_code", 0)
            if status not in (401, 403):
                pause = asked_pause_s(error.response.headers) if error.response is not None else 0.0
                raise TransientError(f"{constants.ENDPOINT} answered {status}", pause) from None
            reason = f"access refused ({status})"
        except Exception as error:
            if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _HTTP_LIBRARIES:
                raise
            raise TransientError(f"{type(error).__name__} at {constants.ENDPOINT}") from None
        raise AccessError(f"{self.uri}: {reason}. {_ADVICE}")

    def list(self, prefix: str) -> list[str]:
        """The files under a prefix, by their paths below the folder."""
        at = self.path(prefix)
        try:
            found = self.call(lambda: self._tree(at))
        except MetadataError:  # no such folder
            return []
        files = [item.path for item in found if hasattr(item, "size")]
        return sorted(name[len(self.folder) :].lstrip("/") for name in files if name.startswith(at.rstrip("/") + "/"))


@dataclass(frozen=True)
class _Lister:
    root: HubRoot

    def __call__(self, prefix: str) -> list[str]:
        return self.root.list(prefix)


def open_repository(root: HubRoot, policy: RetryPolicy, refresh: bool = False) -> tuple[HubRoot, LocalSource]:
    """Pin a dataset repository to the commit that its revision means now, and fetch its metadata.

    Metadata goes through huggingface_hub's cache, so its settings hold: HF_HOME, HF_ENDPOINT, HF_TOKEN,
    HF_HUB_OFFLINE. refresh: fetch it again. Returns the pinned root, and the metadata as a source.
    Raises AccessError, SourceError, SourceUnavailableError, or MetadataError where there is no meta/info.json.
    """

    def fetch(path: str, revision: str | None) -> Path:
        found = hf_hub_download(
            root.repo_id,
            path,
            repo_type="dataset",
            revision=revision,
            token=root.token.for_client,
            force_download=refresh,
        )
        return Path(found)

    def retried(function: Callable[[], T]) -> T:
        return persist(function, policy, policy.opening_deadline_s, root.uri, lambda: None)

    def get(path: str, revision: str | None) -> Path:
        return retried(lambda: root.call(lambda: fetch(root.path(path), revision)))

    info = get(_INFO, root.revision)
    snapshot = info.parents[root.path(_INFO).count("/")]
    pinned = replace(root, revision=snapshot.name)
    folder = LocalSource(snapshot / root.folder, pinned.uri)
    try:
        names = retried(lambda: pinned.list("meta"))
    except SourceUnavailableError:
        names = folder.list("meta")  # offline: what was fetched before
    needed = [name for name in names if name != _INFO and not _NOT_NEEDED.fullmatch(name)]
    with ThreadPoolExecutor(_READERS, "robostream-hub") as pool:
        list(pool.map(lambda name: get(name, snapshot.name), needed))
    return pinned, folder
