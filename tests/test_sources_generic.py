"""Any filesystem of fsspec as a source: the same samples, and the same errors where it fails or changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from cases import CAM0, Reference, check_all, indices, video_path, write
from cases import stream as stream_local
from remote import fresh_name, stream

from robostream.errors import AccessError, DataFileError, MetadataError, SettingError, SourceChangedError
from robostream.source import generic

LENGTHS = [20] * 6


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "a", LENGTHS, cameras=1, episodes_per_video_file=6)


@pytest.fixture
def url(root: Path) -> Iterator[str]:
    name = fresh_name()
    memory = fsspec.filesystem("memory")
    memory.put(str(root), f"/{name}", recursive=True)
    yield f"memory://{name}"
    memory.rm(f"/{name}", recursive=True)


def path_at(url: str, root: Path) -> str:
    """The video's path in the filesystem."""
    return f"/{url.removeprefix('memory://')}/{video_path(root, CAM0).relative_to(root).as_posix()}"


def test_samples_are_those_of_the_folder(url: str, root: Path) -> None:
    dataset = stream({"root": url}, buffer_size=40)
    local = stream_local(root, buffer_size=40)
    for _ in range(2):
        assert check_all(dataset, Reference(root)) == indices(local)
    metrics = dataset.metrics()
    assert metrics["bytes_read"] >= metrics["bytes_needed"] > 0
    assert metrics["requests"] > 0


@pytest.mark.parametrize("same_size", [False, True])
def test_a_replaced_file_is_noticed(url: str, root: Path, monkeypatch: pytest.MonkeyPatch, same_size: bool) -> None:
    monkeypatch.setattr(generic, "_LOOK_AGAIN_S", 0.0)
    dataset = stream({"root": url}, buffer_size=10, fetch_bytes=1)
    samples = iter(dataset)
    next(samples)
    memory, path = fsspec.filesystem("memory"), path_at(url, root)
    memory.pipe_file(path, memory.cat_file(path) + (b"" if same_size else b"\0" * 8))
    with pytest.raises(SourceChangedError, match=r"\.mp4: the file was replaced"):
        list(samples)


def test_a_missing_file_is_named(url: str, root: Path) -> None:
    dataset = stream({"root": url})
    fsspec.filesystem("memory").rm_file(path_at(url, root))
    with pytest.raises(DataFileError, match=r"memory://.*\.mp4: no such file"):
        list(dataset)
    with pytest.raises(MetadataError, match=r"memory://nowhere/meta/info\.json"):
        stream({"root": "memory://nowhere"})


def test_refused_access_ends_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> bytes:
        raise PermissionError("key=s3cr3t")

    dataset = stream({"root": url})
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", refuse)
    with pytest.raises(AccessError, match=r"memory://.*access refused") as caught:
        list(dataset)
    assert "s3cr3t" not in str(caught.value)
    assert dataset.metrics().get("retries", 0) == 0


def test_unknown_schemes_and_options_are_refused() -> None:
    with pytest.raises(SettingError, match="nosuch"):
        stream({"root": "nosuch://bucket/folder"})
