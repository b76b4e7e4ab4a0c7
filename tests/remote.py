"""Datasets put on the servers, and opened from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cases import stream as stream_local
from servers.process import ServerProcess
from servers.s3 import S3Server

from robostream import RetryPolicy, StreamingLeRobotDataset

KINDS = ["http", "s3", "hub", "hub_pinned", "hub_uri", "bucket", "bucket_data"]
PATIENT = RetryPolicy(timeout_s=2, deadline_s=30, opening_deadline_s=30, first_wait_s=0.01, longest_wait_s=0.1)
"""Soon to try again, as tests want it."""

Serve = Callable[..., ServerProcess]


@dataclass
class Places:
    """`put(kind, folder)` puts a dataset on a server of that kind; the arguments that open it from there."""

    serve: Serve
    request: pytest.FixtureRequest

    def put(self, kind: str, root: Path) -> dict[str, Any]:
        if kind == "http":
            return {"root": self.serve("files", folder=str(root)).url}
        if kind == "s3":
            store: S3Server = self.request.getfixturevalue("s3_server")
            return {"root": store.upload(root, "datasets", fresh_name()), "storage_options": store.options}
        hub: ServerProcess = self.request.getfixturevalue("hub")
        if kind == "bucket":
            hub.put_bucket("o/b", str(root))
            return {"repo_id": "o/b", "repo_type": "bucket"}
        commit = hub.push("o/n", str(root))
        if kind == "bucket_data":
            hub.put_bucket("o/b", str(root))
            return {"repo_id": "o/n", "data_files_root": "hf://buckets/o/b"}
        if kind == "hub_uri":
            return {"root": f"hf://datasets/o/n@{commit}"}
        return {"repo_id": "o/n"} | ({"revision": commit} if kind == "hub_pinned" else {})


_names = iter(range(1 << 30))


def fresh_name() -> str:
    return f"dataset-{next(_names)}"


def stream(place: dict[str, Any], **settings: Any) -> StreamingLeRobotDataset:
    """A remote dataset, opened as `cases.stream` opens local ones, and quick to try again."""
    return stream_local(**({"root": None, "retry": PATIENT} | place | settings))


def through(proxy: ServerProcess, place: dict[str, Any]) -> dict[str, Any]:
    """The same dataset, asked for by way of a proxy before its server."""
    if "storage_options" in place:
        return {**place, "storage_options": {**place["storage_options"], "endpoint_url": proxy.url}}
    return {**place, "root": proxy.url}
