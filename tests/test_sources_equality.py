"""From every kind of source a dataset streams to the same samples, bit for bit and in the same order."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import ACTION, CAM0, CAM1, STATE, Reference, check_all, data_path, indices, video_path, write
from cases import stream as stream_local
from remote import KINDS, Places, stream
from servers.process import ServerProcess
from servers.s3 import S3Server
from test_golden import GOLDEN, IDS, check, expected

from robostream import StreamLoader
from robostream.errors import DataFileError, RobostreamError, UnsupportedVersionError

LENGTHS = [14, 23, 9, 30, 18]
WINDOWS = {CAM0: [-0.2, 0.0], CAM1: [0.0, 0.1, 0.2], STATE: [-0.3, 0.0], ACTION: [0.0, 0.5]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("golden", GOLDEN, ids=IDS)
def test_golden_datasets(places: Places, golden: Path, kind: str) -> None:
    want, arrays = expected(golden), np.load(golden / "expected.npz")
    place = places.put(kind, golden / "dataset")
    for view in ("plain", "windowed"):
        windows = want["delta_timestamps"] if view == "windowed" else None
        dataset = stream(place, delta_timestamps=windows, buffer_size=40)
        seen = []
        for sample in dataset:
            seen.append(int(sample["index"]))
            if seen[-1] in want["indices"]:
                check(sample, want[view][str(seen[-1])], arrays, f"{view}/{seen[-1]}")
        assert seen == indices(stream_local(golden / "dataset", delta_timestamps=windows, buffer_size=40))
        metrics = dataset.metrics()
        assert metrics["requests"] > 0
        assert metrics["bytes_read"] >= metrics["bytes_needed"] > 0
        assert metrics.get("retries", 0) == 0


@pytest.mark.parametrize("kind", ["http", "s3", "hub", "bucket"])
def test_windows_epochs_and_random_access(places: Places, tmp_path: Path, kind: str) -> None:
    root = write(tmp_path, LENGTHS, episodes_per_video_file=2, episodes_per_data_file=2)
    reference = Reference(root)
    local = stream_local(root, delta_timestamps=WINDOWS, buffer_size=30)
    dataset = stream(places.put(kind, root), delta_timestamps=WINDOWS, buffer_size=30)
    for _ in range(2):
        assert check_all(dataset, reference, WINDOWS) == indices(local)
    check_all([dataset[i] for i in (0, 40, 93)], reference, WINDOWS)
    loader = StreamLoader(stream(places.put(kind, root), episodes=[3, 1]), batch_size=8)
    assert sorted(indices(loader)) == [*range(14, 37), *range(46, 76)]
    loader.close()


@pytest.mark.parametrize("version", ["v2.1", "v2.0"])
@pytest.mark.parametrize("kind", ["http", "hub", "bucket"])
def test_older_formats(places: Places, tmp_path: Path, kind: str, version: str) -> None:
    root = write(tmp_path, [8, 11], version=version)
    assert sorted(check_all(stream(places.put(kind, root)), Reference(root))) == list(range(19))


@pytest.mark.parametrize("kind", ["http", "s3", "hub", "bucket"])
def test_a_movie_box_at_the_end(places: Places, tmp_path: Path, kind: str) -> None:
    root = write(tmp_path, [12, 15], faststart=False, width=320, height=240, texture="heavy", crf=5)
    dataset = stream(places.put(kind, root))
    assert check_all([dataset[20]], Reference(root)) == [20]
    # Of two files, the head, the tail and a clip.
    assert dataset.metrics()["bytes_read"] < 0.5 * 2 * video_path(root).stat().st_size


@pytest.mark.parametrize("kind", ["http", "s3", "hub", "bucket"])
@pytest.mark.parametrize("what", ["missing", "truncated"])
def test_a_damaged_file_is_named(places: Places, tmp_path: Path, kind: str, what: str) -> None:
    root = write(tmp_path, [12, 15], episodes_per_video_file=1, episodes_per_data_file=1)
    if what == "missing":
        video_path(root, CAM1, 1).unlink()
        name = "videos/observation.images.cam1/chunk-000/file-001.mp4"
    else:
        data = data_path(root, 1).read_bytes()
        data_path(root, 1).write_bytes(data[: len(data) // 2])
        name = "data/chunk-000/file-001.parquet"
    place = places.put(kind, root)
    with pytest.raises(DataFileError, match=name):
        list(stream(place))


@pytest.mark.parametrize(("kind", "version"), [("http", "v1.6"), ("s3", "2.3.0"), ("hub", "v4.0"), ("bucket", "v1.6")])
def test_unknown_versions_are_refused_in_one_line(places: Places, tmp_path: Path, kind: str, version: str) -> None:
    root = write(tmp_path, [4])
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps({**info, "codebase_version": version}))
    with pytest.raises(UnsupportedVersionError, match=version) as caught:
        stream(places.put(kind, root))
    assert "\n" not in str(caught.value)


def test_a_local_root_opens_no_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write(tmp_path, LENGTHS)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for named in ({}, {"repo_id": "o/n", "revision": "v1"}, {"data_files_root": root}):
        assert sorted(indices(stream_local(root, **named))) == list(range(94))


def test_metadata_here_and_data_elsewhere(places: Places, tmp_path: Path, hub: ServerProcess) -> None:
    root = write(tmp_path / "whole", [10, 12])
    place = places.put("http", root)
    bare = tmp_path / "bare"
    bare.mkdir()
    (root / "meta").rename(bare / "meta")
    with pytest.raises(RobostreamError, match=r"info\.json"):
        stream(place)
    dataset = stream({"root": bare, "data_files_root": place["root"]})
    assert sorted(indices(dataset)) == list(range(22))


def test_s3_objects_whose_names_look_odd(s3_server: S3Server, tmp_path: Path) -> None:
    root = write(tmp_path / "a", [10])
    place = {"root": s3_server.upload(root, "datasets", "with space/ä+%20"), "storage_options": s3_server.options}
    assert sorted(indices(stream(place))) == list(range(10))
