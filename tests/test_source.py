"""The local source: ranges, listings, and errors that name the file."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from robostream.errors import DataFileError
from robostream.source import LocalSource


@pytest.fixture
def source(tmp_path: Path) -> LocalSource:
    (tmp_path / "data" / "chunk-000").mkdir(parents=True)
    (tmp_path / "data" / "chunk-000" / "b.bin").write_bytes(bytes(range(100)))
    (tmp_path / "data" / "a.bin").write_bytes(b"")
    return LocalSource(tmp_path)


def test_reads_whole_files_and_ranges_in_the_order_asked(source: LocalSource) -> None:
    path = "data/chunk-000/b.bin"
    assert source.stat(path).size == 100
    assert source.read(path) == bytes(range(100))
    assert source.read_ranges(path, [90, 3, 5], [10, 1, 0]) == [bytes(range(90, 100)), b"\x03", b""]
    with source.open(path) as file:
        file.seek(50)
        assert file.read(2) == bytes([50, 51])


def test_lists_files_at_any_depth_relative_to_the_root(source: LocalSource, tmp_path: Path) -> None:
    assert source.list("data") == ["data/a.bin", "data/chunk-000/b.bin"]
    assert source.list("videos") == []
    os.symlink(tmp_path / "data" / "chunk-000", tmp_path / "data" / "chunk-001")
    assert "data/chunk-001/b.bin" in source.list("data")


def test_only_files_exist(source: LocalSource) -> None:
    assert source.exists("data/a.bin")
    assert not source.exists("data")
    assert not source.exists("data/c.bin")


@pytest.mark.parametrize("call", ["stat", "read", "open"])
def test_a_missing_file_is_named(source: LocalSource, tmp_path: Path, call: str) -> None:
    with pytest.raises(DataFileError, match="no such file") as caught:
        getattr(source, call)("data/c.bin")
    assert str(tmp_path / "data" / "c.bin") in str(caught.value)
    with pytest.raises(DataFileError, match=r"c\.bin: no such file"):
        source.read_ranges("data/c.bin", [0], [1])


def test_a_folder_in_place_of_a_file_is_an_error(source: LocalSource) -> None:
    with pytest.raises(DataFileError, match="data: "):
        source.read("data")


def test_a_short_read_names_file_wanted_and_got(source: LocalSource) -> None:
    with pytest.raises(DataFileError, match=r"b\.bin: wanted 20 bytes at 90, got 10"):
        source.read_ranges("data/chunk-000/b.bin", [0, 90], [10, 20])


def test_short_system_calls_are_continued(source: LocalSource, monkeypatch: pytest.MonkeyPatch) -> None:
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, start: pread(fd, min(n, 7), start))
    assert source.read_ranges("data/chunk-000/b.bin", [10], [50]) == [bytes(range(10, 60))]


def test_pickles(source: LocalSource) -> None:
    assert pickle.loads(pickle.dumps(source)).read("data/a.bin") == b""


def test_a_relative_root_survives_a_change_of_folder(
    source: LocalSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = LocalSource("data")
    monkeypatch.chdir("/")
    assert relative.exists("a.bin")
    assert relative.describe("a.bin") == str(tmp_path / "data" / "a.bin")
