"""The disk cache: bounded, shared by processes, and careful with what is not its own."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from pathlib import Path

import pytest

from robostream.diskcache import DiskCache, cache_home


def content_of(key: str, size: int = 1000) -> bytes:
    return random.Random(key).randbytes(size)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.bin"))


def test_gives_back_what_was_put(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "new", 1 << 20)
    assert cache.get("a") is None
    cache.put("a", b"one")
    cache.put("b", b"")
    cache.put("a", b"two")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (b"two", b"", None)
    assert DiskCache(tmp_path / "new", 1 << 20).get("a") == b"two"


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "of another key"])
def test_damaged_entries_count_as_absent_and_are_made_anew(tmp_path: Path, damage: str) -> None:
    cache = DiskCache(tmp_path, 1 << 20)
    cache.put("a", content_of("a"))
    (path,) = files_in(tmp_path)
    data = path.read_bytes()
    if damage == "of another key":
        cache.put("b", content_of("b"))
        data = next(other for other in files_in(tmp_path) if other != path).read_bytes()
        path.write_bytes(data)
    else:
        path.write_bytes({"flip": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:-1], "empty": b""}[damage])
    assert cache.get("a") is None
    assert not path.exists()
    cache.put("a", content_of("a"))
    assert cache.get("a") == content_of("a")


def test_keeps_to_its_bound_and_drops_what_was_not_used(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 20_000)
    for number in range(60):
        cache.put(f"{number}", content_of(f"{number}"))
        assert cache.get("0") == content_of("0")  # in use throughout
        for path in files_in(tmp_path):  # file times may be coarse: make every step older than the next
            stat = path.stat()
            os.utime(path, (stat.st_atime, stat.st_mtime - 10))
    held = sum(path.stat().st_size for path in files_in(tmp_path))
    assert 12_000 < held <= 20_000 * 17 / 16 + 1016
    assert cache.get("59") == content_of("59")
    assert cache.get("1") is None
    cache.put("huge", b"x" * 20_001)
    assert cache.get("huge") is None


def test_never_deletes_what_it_did_not_write(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 5_000)
    cache.put("a", content_of("a"))
    inside = files_in(tmp_path)[0].parent
    strangers = [
        tmp_path / "mine.bin",
        tmp_path / "robostream-v1" / "notes.txt",
        inside / "thesis.bin",
        inside / "x.tmp",
    ]
    for stranger in strangers:
        stranger.write_bytes(b"x" * 10_000)
        os.utime(stranger, (0, 0))
    for number in range(30):
        cache.put(f"{number}", content_of(f"{number}"))
    assert [stranger.read_bytes() for stranger in strangers] == [b"x" * 10_000] * 4


def test_what_a_killed_process_left_half_written_goes_after_an_hour(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 5_000)
    cache.put("a", content_of("a"))
    folder = files_in(tmp_path)[0].parent
    old, new = (folder / f"{'0' * 40}.{pid}.1.tmp" for pid in (1, 2))
    for path, age in ((old, 4000), (new, 0)):
        path.write_bytes(b"x")
        os.utime(path, (time.time() - age,) * 2)
    for number in range(10):
        cache.put(f"{number}", content_of(f"{number}"))
    assert not old.exists()
    assert new.exists()


def work(folder: Path, seed: int) -> None:
    cache, rng = DiskCache(folder, 30_000), random.Random(seed)
    for _ in range(300):
        key = f"{rng.randrange(100)}"
        found = cache.get(key)
        assert found is None or found == content_of(key)
        if found is None:
            cache.put(key, content_of(key))


def test_many_processes_share_a_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=work, args=(tmp_path, seed)) for seed in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert sum(path.stat().st_size for path in files_in(tmp_path)) <= 30_000 * (1 + 4 / 16) + 4_000


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = DiskCache(tmp_path / "file", 1 << 20)
    cache.put("a", b"x")
    cache.put("b", b"x")
    assert cache.get("a") is None
    assert [record.getMessage().count("nothing is cached") for record in caplog.records] == [1]


def test_the_home_of_caches_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ROBOSTREAM_CACHE", raising=False)
    assert cache_home() == tmp_path / "robostream"
    monkeypatch.setenv("ROBOSTREAM_CACHE", str(tmp_path / "own"))
    assert cache_home() == tmp_path / "own"
