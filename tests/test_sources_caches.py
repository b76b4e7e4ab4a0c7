"""What is kept on this machine of a remote dataset, and how many bytes are read of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import Reference, check_all, indices, write
from remote import Places, stream
from servers.process import ServerProcess

from robostream import StreamingLeRobotDataset

LENGTHS = [20, 31, 17, 25, 40, 22, 19, 28]
FRAMES = list(range(sum(LENGTHS)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("root"), LENGTHS, episodes_per_video_file=3, texture="heavy")


@pytest.fixture
def server(places: Places, root: Path) -> ServerProcess:
    return places.serve("files", folder=str(root))


def one_epoch(
    server: ServerProcess, **settings: Any
) -> tuple[list[int], list[dict[str, Any]], StreamingLeRobotDataset]:
    """An epoch, and the requests for video and rows that it took; nothing of the next epoch is read ahead."""
    server.forget()
    dataset = stream({"root": server.url}, **settings)
    samples = iter(dataset)
    found = indices(next(samples) for _ in range(dataset.num_frames))
    dataset.close()
    return found, [entry for entry in server.record() if "/meta/" not in entry["target"]], dataset


def in_processes(count: int, server: ServerProcess, **settings: Any) -> None:
    """The same epoch in so many processes at once."""
    code = (
        "import sys, json; from remote import stream; from cases import indices\n"
        "url, settings, frames = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])\n"
        "assert sorted(indices(stream({'root': url}, **settings))) == list(range(frames))\n"
    )
    command = [sys.executable, "-c", code, server.url, json.dumps(settings), str(len(FRAMES))]
    folders = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": folders}
    running = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(count)]
    for process in running:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
        assert "not readable" not in said


# The index -------------------------------------------------------------------------------------------------------


def heads(requests: list[dict[str, Any]]) -> list[str]:
    """The videos of which the beginning was read, where their sample tables are."""
    ranges = ((entry["target"], entry["headers"].get("range", "")) for entry in requests)
    return sorted({target for target, span in ranges if target.endswith(".mp4") and span.startswith("bytes=0-")})


def test_sample_tables_are_read_once_on_a_machine(server: ServerProcess) -> None:
    first, requests, _ = one_epoch(server)
    assert len(heads(requests)) == 6
    again, requests, _ = one_epoch(server)
    assert again == first
    assert heads(requests) == []


def test_a_corrupt_index_is_made_anew(server: ServerProcess, root: Path, own_caches: Path) -> None:
    first, _, _ = one_epoch(server)
    kept = list((own_caches / "robostream").rglob("*.bin"))
    assert kept
    for number, path in enumerate(kept):
        data = path.read_bytes()
        path.write_bytes([b"", data[: len(data) // 2], data[:-1] + bytes([data[-1] ^ 1])][number % 3])
    again, _, dataset = one_epoch(server)
    assert again == first
    assert check_all([dataset[50]], Reference(root)) == [50]


def test_an_overwritten_file_has_an_index_of_its_own(places: Places, tmp_path: Path) -> None:
    root = write(tmp_path / "a", [20, 20], cameras=1)
    server = places.serve("files", folder=str(root))
    assert sorted(check_all(stream({"root": server.url}), Reference(root))) == list(range(40))
    write(tmp_path / "a", [20, 20], cameras=1, texture="heavy", seed=8, gop=5)
    assert sorted(check_all(stream({"root": server.url}), Reference(root))) == list(range(40))


def test_many_processes_fill_one_index(server: ServerProcess, own_caches: Path) -> None:
    in_processes(3, server)
    kept = list((own_caches / "robostream").rglob("*.bin"))
    assert len(kept) == 6
    assert not list((own_caches / "robostream").rglob("*.tmp"))


# The disk cache --------------------------------------------------------------------------------------------------


def held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.bin"))


def test_a_cache_serves_the_next_run(server: ServerProcess, tmp_path: Path) -> None:
    first, requests, _ = one_epoch(server, cache_dir=str(tmp_path / "cache"))
    read = sum(entry["bytes"] for entry in requests)
    again, requests, dataset = one_epoch(server, cache_dir=str(tmp_path / "cache"))
    assert again == first
    assert sum(entry["bytes"] for entry in requests) < 0.1 * read
    assert dataset.metrics()["cache_hits"] > 0


def test_a_cache_keeps_to_its_bound_and_to_its_own_files(server: ServerProcess, root: Path, tmp_path: Path) -> None:
    total = sum(path.stat().st_size for path in root.rglob("*.mp4"))
    folder = tmp_path / "cache"
    folder.mkdir()
    foreign = {folder / "mine.bin": b"a" * 1000, folder / "sub" / "notes.txt": b"b"}
    for path, data in foreign.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (1, 1))
    for _ in range(2):
        found, _, _ = one_epoch(server, cache_dir=str(folder), cache_bytes=total // 4)
        assert sorted(found) == FRAMES
        assert held(folder) < 1.2 * (total // 4) + 1000
    assert {path: path.read_bytes() for path in foreign} == foreign


def test_the_least_recently_used_goes_first(server: ServerProcess, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    one_epoch(server, cache_dir=str(folder), episodes=[0, 1, 2])
    first = set(folder.rglob("*.bin"))
    for path in first:
        os.utime(path, (time.time() - 1000,) * 2)
    one_epoch(server, cache_dir=str(folder), cache_bytes=held(folder), episodes=[5, 6, 7])
    later = set(folder.rglob("*.bin")) - first
    assert len(later) > 0
    assert len(first & set(folder.rglob("*.bin"))) < len(first) / 2


def test_a_damaged_cache_is_read_anew(server: ServerProcess, root: Path, tmp_path: Path) -> None:
    first, _, _ = one_epoch(server, cache_dir=str(tmp_path / "cache"))
    for path in (tmp_path / "cache").rglob("*.bin"):
        path.write_bytes(path.read_bytes()[:-3] + b"xyz")
    dataset = stream({"root": server.url}, cache_dir=str(tmp_path / "cache"))
    assert check_all(dataset, Reference(root)) == first


def test_many_processes_share_a_cache(server: ServerProcess, root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    bound = sum(path.stat().st_size for path in root.rglob("*.mp4")) // 3
    in_processes(3, server, cache_dir=str(folder), cache_bytes=bound)
    assert held(folder) < 1.4 * bound
    assert not list(folder.rglob("*.tmp"))


def test_a_cache_that_can_not_be_written_is_done_without(
    server: ServerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    found, _, _ = one_epoch(server, cache_dir=str(tmp_path / "file" / "cache"))
    assert sorted(found) == FRAMES
    assert caplog.text.count("can't be written") == 1


# Bytes -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files for each camera, of ten episodes each, and pictures that are large for what else is in them."""
    lengths = [60] * 20
    return write(
        tmp_path_factory.mktemp("large"), lengths, width=192, height=144, texture="heavy", crf=12, gop=10, cameras=2
    )


def distinct(requests: list[dict[str, Any]]) -> int:
    """Bytes that were asked for, counted once, however often: what is read ahead of the next epoch is there again."""
    spans: dict[str, set[tuple[int, int]]] = {}
    for entry in requests:
        if entry["method"] == "GET" and "range" in entry["headers"]:
            first, last = entry["headers"]["range"].removeprefix("bytes=").split("-")
            spans.setdefault(entry["target"], set()).add((int(first), int(last) + 1))
    total = 0
    for found in spans.values():
        reached = 0
        for start, stop in sorted(found):
            total += max(0, stop - max(start, reached))
            reached = max(reached, stop)
    return total


def test_an_epoch_reads_little_more_than_it_needs(places: Places, large: Path) -> None:
    server = places.serve("files", folder=str(large))
    dataset = stream({"root": server.url}, buffer_size=150)
    for _ in range(2):
        assert sorted(indices(dataset)) == list(range(1200))
    read = -1.0
    while read != dataset.metrics()["bytes_read"]:  # until nothing more is read ahead
        read = dataset.metrics()["bytes_read"]
        time.sleep(0.5)
    metrics = dataset.metrics()
    dataset.close()
    assert read <= 1.05 * metrics["bytes_needed"]
    assert read == sum(entry["bytes"] for entry in server.record() if entry["method"] == "GET")
    videos = sum(path.stat().st_size for path in large.rglob("*.mp4"))
    assert distinct(server.record()) <= 1.05 * videos
    assert metrics["requests"] == len(server.record())
    assert metrics["requests"] < 100 * read / videos


def test_a_tenth_of_the_episodes_reads_a_tenth_of_the_bytes(places: Places, large: Path) -> None:
    server = places.serve("files", folder=str(large))
    found, requests, _ = one_epoch(server, episodes=[4, 15])
    assert sorted(found) == [*range(240, 300), *range(900, 960)]
    videos = sum(path.stat().st_size for path in large.rglob("*.mp4"))
    assert distinct(requests) == pytest.approx(0.1 * videos, rel=0.2)  # with the index, and the rows


def test_one_camera_reads_one_cameras_bytes(places: Places, large: Path) -> None:
    server = places.serve("files", folder=str(large))
    _, requests, _ = one_epoch(server, cameras=["observation.images.cam1"])
    assert not [entry for entry in requests if "cam0" in entry["target"]]


def test_bytes_of_pictures_are_spread_over_few_requests(places: Places, large: Path) -> None:
    server = places.serve("files", folder=str(large))
    _, requests, _ = one_epoch(server, buffer_size=150)
    sizes = [entry["bytes"] for entry in requests if ".mp4" in entry["target"] and entry["method"] == "GET"]
    assert np.median(sizes) > 20_000
