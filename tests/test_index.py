"""The index of videos: kept on disk, stored beside a dataset, and made anew where it does not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import fsspec
import numpy as np
import pytest
from cases import CAM0, video_path, write
from typer.testing import CliRunner

from robostream.cli import app
from robostream.errors import DataFileError
from robostream.index import STORED_PATH, VideoIndex
from robostream.mp4 import SampleTable
from robostream.source import LocalSource, RetryPolicy
from robostream.source.generic import FsspecStore
from robostream.source.remote import RemoteSource

LENGTHS = [12, 7, 9]
FILES = [f"videos/{CAM0}/chunk-000/file-{number:03d}.mp4" for number in range(3)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write(tmp_path / "data", LENGTHS, episodes_per_video_file=1)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROBOSTREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def remote(root: Path) -> RemoteSource:
    """The folder through fsspec, as a remote source is read."""
    return RemoteSource(FsspecStore(f"file://{root}", {}), RetryPolicy(deadline_s=5))


def check(table: SampleTable, root: Path, path: str) -> None:
    local = VideoIndex(LocalSource(root)).table(path)
    assert (table.codec, table.width, table.moov_at_head) == (local.codec, local.width, local.moov_at_head)
    for name in ("offset", "size", "dts", "pts", "keyframe", "presented"):
        np.testing.assert_array_equal(getattr(table, name), getattr(local, name), err_msg=name)


def read_anew(root: Path, path: str = FILES[0]) -> int:
    """Bytes that a fresh process-like source and index read for a table, which must be right."""
    source = remote(root)
    check(VideoIndex(source).table(path), root, path)
    return int(source.board.snapshot().get("bytes_read", 0))


def test_a_table_is_read_once_and_then_comes_from_the_cache(root: Path) -> None:
    assert read_anew(root) > 0
    assert read_anew(root) == 0
    assert read_anew(root, FILES[1]) > 0


def test_a_file_that_was_replaced_is_indexed_anew(root: Path) -> None:
    read_anew(root)
    shutil.copy(root / FILES[1], root / FILES[0])
    assert read_anew(root) > 0
    assert read_anew(root) == 0


@pytest.mark.parametrize("keep", [0, 10, -1])
def test_a_damaged_entry_is_made_anew(root: Path, cache: Path, keep: int) -> None:
    read_anew(root)
    (entry,) = cache.rglob("*.bin")
    entry.write_bytes(entry.read_bytes()[:keep])
    assert read_anew(root) > 0
    assert read_anew(root) == 0


def test_an_entry_that_is_no_movie_is_made_anew(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = VideoIndex(remote(root))
    stat = remote(root).stat(FILES[0])
    assert index._cache is not None
    index._cache.put(f"file://{root}/{FILES[0]} {stat.size} {stat.etag}", b"headnonsense")
    check(index.table(FILES[0]), root, FILES[0])
    assert "made anew" in caplog.text


def test_a_local_folder_needs_no_cache(root: Path, cache: Path) -> None:
    VideoIndex(LocalSource(root)).table(FILES[0])
    assert not cache.exists()


def test_a_damaged_video_is_named_and_not_kept(root: Path, cache: Path) -> None:
    video_path(root, CAM0, 0).write_bytes(b"no video at all")
    with pytest.raises(DataFileError, match=r"file-000\.mp4: not an MP4"):
        VideoIndex(remote(root)).table(FILES[0])
    assert not list(cache.rglob("*.bin"))


# Made ahead ------------------------------------------------------------------------------------------------------


def command(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["index", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def url(root: Path) -> str:
    """The dataset at a URL."""
    fsspec.filesystem("memory").put(str(root), f"/{root.parent.name}", recursive=True)
    return f"memory://{root.parent.name}"


def test_the_command_fills_the_cache(root: Path, url: str) -> None:
    assert "6 of 2 cameras" in command(url)
    source = RemoteSource(FsspecStore(url, {}), RetryPolicy())
    check(VideoIndex(source).table(FILES[0]), root, FILES[0])
    assert source.board.snapshot().get("bytes_read", 0) == 0


def test_a_stored_index_is_used_by_all_who_open_the_dataset(root: Path, cache: Path) -> None:
    assert "6 of 2 cameras" in command(root, "--store")
    assert (root / STORED_PATH).is_file()
    index = VideoIndex(remote(root))
    for path in FILES:
        check(index.table(path), root, path)
    assert not list(cache.rglob("*.bin"))  # nothing had to be read from a video


def test_a_stored_index_of_another_version_of_a_file_is_left_aside(root: Path, cache: Path) -> None:
    command(root, "--store")
    shutil.copy(root / FILES[1], root / FILES[0])
    index = VideoIndex(remote(root))
    check(index.table(FILES[0]), root, FILES[0])
    check(index.table(FILES[2]), root, FILES[2])
    assert len(list(cache.rglob("*.bin"))) == 1


@pytest.mark.parametrize("content", [b"", b"PAR1 not really PAR1", b"x" * 100_000])
def test_a_stored_index_that_is_damaged_is_left_aside_with_a_warning(
    root: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (root / STORED_PATH).write_bytes(content)
    check(VideoIndex(remote(root)).table(FILES[0]), root, FILES[0])
    assert "is left aside" in caplog.text


def test_the_command_says_where_an_index_can_be_written(root: Path, url: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["index", str(root)])
    assert (result.exit_code, "pass --store" in result.output) == (1, True)
    result = CliRunner().invoke(app, ["index", url, "--store"])
    assert (result.exit_code, "--out" in result.output) == (1, True)
    command(root, "--out", tmp_path / "index.parquet")
    assert (tmp_path / "index.parquet").stat().st_size > 0
