"""The servers that sources are tested against do what real clients and real servers expect of each other."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import urllib3
from cases import BUSY
from huggingface_hub import HfApi, HfFileSystem, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    BucketNotFoundError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from servers.faults import EVERY_KIND
from servers.process import ServerProcess
from servers.s3 import S3Server

Serve = Callable[..., ServerProcess]
ADA, BOB = "hf_token_of_ada", "hf_token_of_bob"
BODY = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "dataset"
    for path, data in {
        "meta/info.json": b"{}",
        "data/chunk-000/file-000.parquet": BODY,
        "videos/a b.mp4": BODY[::-1],
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def get(url: str, timeout: float = 5.0, **headers: str) -> urllib3.BaseHTTPResponse:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return urllib3.request("GET", url, headers=names, retries=False, redirect=False, timeout=timeout)


def test_files_by_ranges_under_conditions(serve: Serve, folder: Path) -> None:
    server = serve("files", folder=str(folder))
    url = server.url + "/data/chunk-000/file-000.parquet"
    part = get(url, Range="bytes=10-19")
    assert (part.status, part.data, part.headers["Content-Range"]) == (206, BODY[10:20], f"bytes 10-19/{len(BODY)}")
    assert get(url, Range="bytes=-5").data == BODY[-5:]
    assert get(url, Range="bytes=99999-").status == 416
    assert get(url).data == BODY
    assert get(url, Range="bytes=0-1", If_Match=part.headers["ETag"]).status == 206
    assert get(server.url + "/videos/a%20b.mp4").data == BODY[::-1]
    assert get(server.url + "/../conftest.py").status == 404
    (folder / "data/chunk-000/file-000.parquet").write_bytes(BODY + b"x")
    assert get(url, Range="bytes=0-1", If_Match=part.headers["ETag"]).status == 412
    assert server.record()[0]["headers"]["range"] == "bytes=10-19"


def test_files_with_credentials(serve: Serve, folder: Path) -> None:
    url = serve("files", folder=str(folder), token="secret").url + "/meta/info.json"
    assert [get(url).status, get(url, Authorization="Bearer no").status] == [401, 403]
    assert get(url, Authorization="Bearer secret").data == b"{}"


def test_hub_repositories_for_the_real_client(hub: ServerProcess, folder: Path) -> None:
    first = hub.push("o/n", str(folder))
    (folder / "meta/info.json").write_bytes(b'{"fps": 2}')
    second = hub.push("o/n", str(folder))
    api = HfApi()
    assert api.dataset_info("o/n").sha == second != first
    assert api.dataset_info("o/n", revision=first, files_metadata=True).siblings[1].size == 2
    hub.set(page_size=2)
    paths = [entry.path for entry in api.list_repo_tree("o/n", repo_type="dataset", recursive=True)]
    assert sorted(paths) == [
        *(
            "data",
            "data/chunk-000",
            "data/chunk-000/file-000.parquet",
            "meta",
            "meta/info.json",
            "videos",
            "videos/a b.mp4",
        )
    ]
    found = api.get_paths_info("o/n", ["videos/a b.mp4", "no"], repo_type="dataset")
    assert [(entry.path, entry.size) for entry in found] == [("videos/a b.mp4", len(BODY))]
    assert Path(hf_hub_download("o/n", "meta/info.json", repo_type="dataset", revision=first)).read_bytes() == b"{}"
    local = Path(snapshot_download("o/n", repo_type="dataset"))
    assert local.name == second
    assert (local / "videos/a b.mp4").read_bytes() == BODY[::-1]
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info("o/n", revision="nope")
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("o/n", "meta/nope.json", repo_type="dataset")


def test_hub_file_system_reads_repositories_and_buckets(hub: ServerProcess, folder: Path) -> None:
    first = hub.push("o/n", str(folder))
    hub.put_bucket("o/b", str(folder))
    fs = HfFileSystem()
    for root in (f"datasets/o/n@{first}", "datasets/o/n", "buckets/o/b"):
        assert len(fs.find(root)) == 3
        assert fs.info(f"{root}/videos/a b.mp4")["size"] == len(BODY)
        with fs.open(f"{root}/videos/a b.mp4", block_size=100) as file:
            file.seek(1000)
            assert file.read(7) == BODY[::-1][1000:1007]
        assert fs.cat(f"{root}/data/chunk-000/file-000.parquet") == BODY
    assert HfApi().bucket_info("o/b").total_files == 3
    with pytest.raises(BucketNotFoundError):
        HfApi(token=ADA).bucket_info("o/nope")
    # The token stays with the Hub: the host of the signed URLs is another one.
    assert HfFileSystem(token=ADA).cat("datasets/o/n/data/chunk-000/file-000.parquet") == BODY
    assert any("authorization" in entry["headers"] for entry in hub.record())
    assert hub.cdn_record()
    assert not any("authorization" in entry["headers"] for entry in hub.cdn_record())


def test_hub_private_and_gated_repositories(hub: ServerProcess, folder: Path) -> None:
    hub.push("o/private", str(folder), private=True, users=["ada"])
    hub.push("o/gated", str(folder), gated=True, users=["ada"])
    for token in (False, BOB):
        with pytest.raises(RepositoryNotFoundError):
            HfApi(token=token).dataset_info("o/private")
    with pytest.raises(HfHubHTTPError, match="Invalid credentials"):
        HfApi(token="hf_wrong").dataset_info("o/private")
    assert HfApi(token=ADA).dataset_info("o/private").private
    for token in (False, BOB):
        assert HfApi(token=token).dataset_info("o/gated").gated == "manual"
        with pytest.raises(GatedRepoError):
            hf_hub_download("o/gated", "meta/info.json", repo_type="dataset", token=token)
    assert hf_hub_download("o/gated", "meta/info.json", repo_type="dataset", token=ADA)


def test_hub_signed_urls_expire(hub: ServerProcess, folder: Path) -> None:
    hub.push("o/n", str(folder))
    resolve = hub.url + "/datasets/o/n/resolve/main/videos/a%20b.mp4"
    signed = get(resolve).headers["Location"]
    assert get(signed, Range="bytes=0-3").data == BODY[::-1][:4]
    assert get(signed, Authorization="Bearer x").status == 400
    hub.revoke()
    assert get(signed).status == 403
    hub.set(lifetime=0.2)
    signed = get(resolve).headers["Location"]
    assert get(signed).status == 200
    time.sleep(0.3)
    assert get(signed).status == 403


def test_s3(s3_server: S3Server, folder: Path) -> None:
    obstore = pytest.importorskip("obstore")
    assert s3_server.upload(folder, "servers", "one") == "s3://servers/one"
    store = s3_server.store("servers")
    assert bytes(obstore.get_range(store, "one/videos/a b.mp4", start=3, length=4)) == BODY[::-1][3:7]
    assert obstore.head(store, "one/meta/info.json")["e_tag"]
    with pytest.raises(obstore.exceptions.PermissionDeniedError):
        obstore.head(s3_server.store("servers", secret="wrong"), "one/meta/info.json")


def test_the_proxy_takes_the_time_of_the_way(serve: Serve, folder: Path) -> None:
    files = serve("files", folder=str(folder))
    proxy = serve("proxy", target=files.url, rtt=0.1, bandwidth=len(BODY) / 0.2)
    url = proxy.url + "/data/chunk-000/file-000.parquet"
    begin = time.monotonic()
    assert get(url).data == BODY
    assert 0.38 < time.monotonic() - begin < BUSY * 0.4  # a round trip to connect, one to ask, and 0.2 s of bytes
    assert proxy.totals() == {"requests": 1, "bytes": len(BODY), "faults": {}}


def test_the_proxy_fails_as_it_is_told(serve: Serve, folder: Path) -> None:
    files = serve("files", folder=str(folder))
    proxy = serve("proxy", target=files.url)
    url = proxy.url + "/data/chunk-000/file-000.parquet"
    right = (206, BODY[1000:2000], f"bytes 1000-1999/{len(BODY)}")
    for kind in (kind for kind in EVERY_KIND if kind != "trickle"):
        proxy.fail(kind, times=1, retry_after="7" if kind == "429" else None)
        try:
            answer = get(url, timeout=0.3, Range="bytes=1000-1999")
            outcome = (answer.status, answer.data, answer.headers.get("Content-Range"))
        except urllib3.exceptions.HTTPError as error:
            outcome = type(error).__name__
        assert outcome != right, kind
        if kind == "429":
            assert answer.headers["Retry-After"] == "7"
        proxy.heal()
        answer = get(url, Range="bytes=1000-1999")
        assert (answer.status, answer.data, answer.headers["Content-Range"]) == right
    assert proxy.totals()["faults"] == {kind: 1 for kind in EVERY_KIND if kind != "trickle"}
    proxy.fail("trickle", times=1)
    with pytest.raises(urllib3.exceptions.ReadTimeoutError):
        get(url, timeout=0.05, Range="bytes=1000-1999")
    proxy.fail("500", every=5)
    assert [get(url).status for _ in range(10)] == [200, 200, 200, 200, 500] * 2
    proxy.die()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", proxy.port))


def test_servers_end_with_their_parent(folder: Path) -> None:
    server = ServerProcess("files", folder=str(folder))
    pid = server._process.pid
    assert server._process.stdin is not None
    server._process.stdin.close()
    assert server._process.wait(10) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    server._process.stdout.close()
