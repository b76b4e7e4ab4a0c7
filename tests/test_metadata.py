"""Metadata of all versions: what is read from it."""

from __future__ import annotations

import json
import pickle
import socket
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from metadata_files import (
    CAMERA,
    LENGTHS,
    OTHER,
    episode_columns,
    feature_entry,
    load,
    refusal,
    touch,
    valid_info,
    write_json,
    write_table,
    write_v2,
    write_v3,
)

from robostream.errors import MetadataError, SelectionError
from robostream.metadata import select_episodes
from robostream.metadata.info import exact_fps

GOLDEN = Path(__file__).parent / "golden"


# What is read --------------------------------------------------------------------------------------------


def test_v3_episodes_and_placements(tmp_path: Path) -> None:
    episodes = load(write_v3(tmp_path)).episodes
    assert episodes.length.tolist() == LENGTHS
    assert episodes.start.tolist() == [0, 5, 8, 15]
    assert episodes.data_files == [f"data/chunk-00{c}/file-00{f}.parquet" for c, f in ((0, 0), (0, 1), (1, 0))]
    assert episodes.data_file.tolist() == [0, 0, 1, 2]
    top, wrist = episodes.videos[CAMERA], episodes.videos[OTHER]
    assert top.files == [f"videos/{CAMERA}/chunk-000/file-00{f}.mp4" for f in (0, 1)]
    assert (top.file.tolist(), wrist.file.tolist()) == ([0, 0, 0, 1], [0, 1, 1, 1])
    assert (top.base.tolist(), wrist.base.tolist()) == ([0, 5, 8, 0], [0, 0, 3, 10])
    assert (top.rows_in_file.tolist(), wrist.rows_in_file.tolist()) == ([15, 2], [5, 12])
    assert top.from_timestamp.tolist() == [0, 0.5, 0.8, 0]


def test_v3_rows_are_known_by_their_index_in_whatever_order_and_file(tmp_path: Path) -> None:
    expected = load(write_v3(tmp_path / "plain")).episodes
    columns = {name: list(values) for name, values in episode_columns().items()}
    root = write_v3(tmp_path / "mixed")
    for number, rows in enumerate(([3, 1], [2, 0])):
        part = {name: [values[row] for row in rows] for name, values in columns.items()}
        write_table(root / f"meta/episodes/chunk-000/file-00{number}.parquet", part)
    found = load(root).episodes
    for name in ("index", "length", "start", "data_file", "data_files"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    assert found.videos[OTHER].base.tolist() == expected.videos[OTHER].base.tolist()


def test_v3_pictures_may_be_stored_in_another_order_than_the_episodes(tmp_path: Path) -> None:
    columns = episode_columns()
    columns[f"videos/{CAMERA}/from_timestamp"] = [1.0, 0.7, 0.0, 0.0]
    placement = load(write_v3(tmp_path, episodes=columns)).episodes.videos[CAMERA]
    assert placement.base.tolist() == [10, 7, 0, 0]


def test_v3_episode_indices_may_have_gaps(tmp_path: Path) -> None:
    meta = load(write_v3(tmp_path, episodes=episode_columns() | {"episode_index": [2, 5, 6, 9]}))
    assert meta.episodes.index.tolist() == [2, 5, 6, 9]
    assert select_episodes(meta.episodes, [9, 5]).tolist() == [1, 3]
    with pytest.raises(SelectionError, match=r"\[0\].*2, 5…6, 9"):
        select_episodes(meta.episodes, [0])


def test_v3_foreign_files_are_never_counted_in(tmp_path: Path) -> None:
    root = write_v3(tmp_path)
    for stray in (
        "meta/episodes/file-000.parquet",
        "meta/episodes.parquet",
        "meta/episodes/chunk-000/copy.parquet",
    ):
        write_table(root / stray, episode_columns())
    write_table(root / "data/chunk-001/file-007.parquet", {"other": [1]})
    touch(root, f"videos/{CAMERA}/chunk-000/file-009.mp4")
    episodes = load(root).episodes
    assert len(episodes) == 4
    assert len(episodes.data_files) == 3
    assert len(episodes.videos[CAMERA].files) == 2


def test_v2_has_one_file_per_episode(tmp_path: Path) -> None:
    episodes = load(write_v2(tmp_path, chunks_size=2)).episodes
    assert episodes.length.tolist() == LENGTHS
    assert episodes.start.tolist() == [0, 5, 8, 15]
    assert [episodes.data_files[i] for i in episodes.data_file] == [
        f"data/chunk-00{i // 2}/episode_00000{i}.parquet" for i in range(4)
    ]
    placement = episodes.videos[CAMERA]
    assert placement.files[placement.file[3]] == f"videos/chunk-001/{CAMERA}/episode_000003.mp4"
    assert placement.base.tolist() == placement.from_timestamp.tolist() == [0] * 4
    assert placement.rows_in_file.tolist() == LENGTHS


@pytest.mark.parametrize("version", ["v2.0", "2.1", "v2.1"])
def test_v2_lines_may_be_in_any_order(tmp_path: Path, version: str) -> None:
    lines = [f'{{"episode_index": {i}, "length": {LENGTHS[i]}}}' for i in (2, 0, 3, 1)]
    root = write_v2(tmp_path, ["", *lines, ""], codebase_version=version)
    assert load(root).episodes.length.tolist() == LENGTHS


def test_attributes_as_lerobots(tmp_path: Path) -> None:
    meta = load(write_v3(tmp_path), repo_id="me/data", revision="main", root=tmp_path)
    assert (meta.repo_id, meta.revision, meta.root, meta.robot_type) == ("me/data", "main", tmp_path, "arm")
    assert (meta.fps, meta.total_episodes, meta.total_frames) == (10, 4, 17)
    assert isinstance(meta.fps, int)
    assert meta.camera_keys == meta.video_keys == [CAMERA, OTHER]
    assert (meta.image_keys, meta.depth_keys) == ([], [OTHER])
    assert meta.shapes["action"] == (2,)
    assert meta.names["action"] is None
    feature = meta.features["action"]
    assert (feature["dtype"], feature["shape"], "names" in feature) == ("float64", (2,), True)
    assert set(dict(feature)) == {"dtype", "shape", "names", "info"}


def test_stats_are_read_on_first_use(tmp_path: Path) -> None:
    root = write_v3(tmp_path)
    assert load(root).stats is None
    (root / "meta/stats.json").write_text("{")
    broken = load(root)
    with pytest.raises(MetadataError, match=r"stats\.json: malformed JSON"):
        _ = broken.stats
    write_json(root / "meta/stats.json", {"action": {"mean": [[1.5]], "count": [3]}})
    stats = load(root).stats
    assert stats is not None
    assert stats["action"]["mean"].shape == (1, 1)


@pytest.mark.parametrize(
    ("declared", "exact"),
    [
        (30, Fraction(30)),
        (20.0, Fraction(20)),
        (29.97002997, Fraction(30000, 1001)),
        (29.97, Fraction(30000, 1001)),
        (23.976, Fraction(24000, 1001)),
        (12.5, Fraction(25, 2)),
        (0.1, Fraction(1, 10)),
    ],
)
def test_fps_is_exact(declared: float, exact: Fraction) -> None:
    assert exact_fps(declared) == exact


@pytest.mark.parametrize(
    "flag",
    [
        {"info": {"is_depth_map": True}},
        {"info": {"video.is_depth_map": True}},
        {"video_info": {"video.is_depth_map": True}},
    ],
)
def test_depth_flags(tmp_path: Path, flag: dict[str, Any]) -> None:
    features = {"depth": feature_entry("image", 8, 8, 1, **flag), "rgb": feature_entry("image", 8, 8, 3, info=None)}
    meta = load(write_v3(tmp_path, valid_info(features=features)))
    assert (meta.depth_keys, meta.image_keys) == (["depth"], ["depth", "rgb"])


def test_pickles(tmp_path: Path) -> None:
    meta = load(write_v3(tmp_path))
    again = pickle.loads(pickle.dumps(meta))
    assert again.info.fps == Fraction(10)
    assert again.episodes.videos[CAMERA].base.tolist() == [0, 5, 8, 0]


def test_a_local_root_makes_no_network_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("network call")

    for name in ("connect", "connect_ex", "sendto", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert load(write_v3(tmp_path)).total_frames == 17


# Tasks ---------------------------------------------------------------------------------------------------


def _pandas_tasks(index: str | None, column: str) -> pa.Table:
    table = pa.table({"task_index": [2, 0], column: ["place", "pick"]})
    metadata = {"index_columns": [index or {"kind": "range"}]}
    return table.replace_schema_metadata({"pandas": json.dumps(metadata)})


@pytest.mark.parametrize(
    "table",
    [
        _pandas_tasks("__index_level_0__", "__index_level_0__"),
        _pandas_tasks("task", "task"),
        _pandas_tasks("instruction", "instruction"),
        _pandas_tasks("task_index", "task"),
        _pandas_tasks(None, "task"),
        pa.table({"task_index": [2, 0], "__index_level_0__": ["place", "pick"]}),
    ],
)
def test_tasks_are_looked_up_by_index(tmp_path: Path, table: pa.Table) -> None:
    root = write_v3(tmp_path)
    pq.write_table(table, root / "meta/tasks.parquet")
    assert load(root).tasks == {0: "pick", 2: "place"}


def test_tasks_in_lines_or_nowhere(tmp_path: Path) -> None:
    root = write_v3(tmp_path)
    (root / "meta/tasks.parquet").unlink()
    assert load(root).tasks == {}
    (root / "meta/tasks.jsonl").write_text('{"task_index": 3, "task": "b"}\n\n{"task_index": 1, "task": "a"}')
    assert load(root).tasks == {1: "a", 3: "b"}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"task_index": 1, "task"', "malformed JSON"),
        ('{"task_index": "1", "task": "a"}', "task_index '1'"),
        ('{"task_index": 1}', "task None"),
        ('{"task_index": 0, "task": "else"}', "0 is both 'pick' and 'else'"),
    ],
)
def test_bad_task_lines_are_named(tmp_path: Path, line: str, words: str) -> None:
    root = write_v2(tmp_path)
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "pick"}\n' + line)
    message = refusal(root)
    assert "tasks.jsonl, line 2: " in message
    assert words in message


def test_a_tasks_table_without_texts_names_its_columns(tmp_path: Path) -> None:
    root = write_v3(tmp_path)
    write_table(root / "meta/tasks.parquet", {"task_index": [0], "what": ["a"]})
    message = refusal(root)
    assert "tasks.parquet" in message
    assert "task_index, what" in message


# Datasets written by lerobot -----------------------------------------------------------------------------


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="no golden datasets here")
@pytest.mark.parametrize("name", ["av1_multifile", "h264_bframes", "h264_gop30", "images_png", "no_camera"])
def test_golden_datasets(name: str) -> None:
    expected = json.loads((GOLDEN / name / "expected.json").read_text())
    meta = load(GOLDEN / name / "dataset")
    assert meta.fps == expected["fps"]
    assert meta.episodes.length.tolist() == expected["episode_lengths"]
    assert meta.total_frames == expected["total_frames"]
    assert set(meta.tasks) == {0, 1, 2}
    assert meta.stats is not None
    for placement in meta.episodes.videos.values():
        assert all(meta.source.exists(path) for path in placement.files)
        assert placement.rows_in_file.sum() == meta.total_frames
    for index, sample in expected["plain"].items():
        episode = int(np.searchsorted(meta.episodes.start, int(index), side="right")) - 1
        assert sample["task"]["value"] == meta.tasks[episode % 3]
        assert set(sample) == {*meta.features, "task"}
