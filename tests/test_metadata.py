"""Metadata of all versions: what it says, and what is said where it is wrong."""

from __future__ import annotations

import json
import pickle
import socket
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robostream.errors import MetadataError, SelectionError, UnsupportedVersionError
from robostream.metadata import DatasetMetadata, load_metadata, select_episodes
from robostream.metadata.info import exact_fps
from robostream.source import LocalSource

GOLDEN = Path(__file__).parent / "golden"
CAMERA, OTHER = "observation.images.top", "observation.images.wrist"
LENGTHS = [5, 3, 7, 2]

Change = Callable[[dict[str, Any]], object]


def _feature(dtype: str, *shape: int, **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "names": None, **more}


def _info(**changes: Any) -> dict[str, Any]:
    """A valid info.json of the v3.0 dataset below; a change to None removes the field."""
    info = {
        "codebase_version": "v3.0",
        "fps": 10,
        "robot_type": "arm",
        "features": {
            CAMERA: _feature("video", 8, 8, 3),
            OTHER: _feature("video", 8, 8, 3, video_info={"video.is_depth_map": True}),
            "observation.state": _feature("float32", 4),
            "action": _feature("float64", 2),
            "timestamp": _feature("float32", 1),
            "task_index": _feature("int64", 1),
        },
        "total_episodes": len(LENGTHS),
        "total_frames": sum(LENGTHS),
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "splits": {"train": "0:4"},
    }
    return {key: value for key, value in (info | changes).items() if value is not None}


def _episodes() -> dict[str, Any]:
    """The columns of its episodes table: two data files, and the cameras cut at different places."""
    stop = np.cumsum(LENGTHS)
    columns: dict[str, Any] = {
        "episode_index": [0, 1, 2, 3],
        "length": LENGTHS,
        "dataset_from_index": stop - LENGTHS,
        "dataset_to_index": stop,
        "data/chunk_index": [0, 0, 0, 1],
        "data/file_index": [0, 0, 1, 0],
        "stats/action/mean": [[0.0]] * 4,
    }
    for key, file, start in (
        (CAMERA, [0, 0, 0, 1], [0, 0.5, 0.8, 0]),
        (OTHER, [0, 1, 1, 1], [0, 0, 0.3, 1.0]),
    ):
        columns |= {
            f"videos/{key}/chunk_index": [0] * 4,
            f"videos/{key}/file_index": file,
            f"videos/{key}/from_timestamp": np.array(start, np.float64),
        }
    return columns


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def _write_table(path: Path, columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def _touch(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def write_v3(root: Path, info: dict[str, Any] | None = None, episodes: dict[str, Any] | None = None) -> Path:
    _write_json(root / "meta/info.json", info or _info())
    _write_table(root / "meta/episodes/chunk-000/file-000.parquet", episodes or _episodes())
    _write_table(root / "meta/tasks.parquet", {"task_index": [0], "task": ["pick"]})
    _touch(root, *(f"videos/{key}/chunk-000/file-000.mp4" for key in (CAMERA, OTHER)))
    return root


def write_v2(root: Path, lines: Sequence[str] | None = None, **changes: Any) -> Path:
    templates = {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    _write_json(root / "meta/info.json", _info(**({"codebase_version": "v2.1", **templates} | changes)))
    if lines is None:
        rows = [{"episode_index": i, "tasks": ["pick"], "length": n} for i, n in enumerate(LENGTHS)]
        lines = [json.dumps(row) for row in rows]
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "pick"}\n')
    _touch(root, *(f"videos/chunk-000/{key}/episode_000000.mp4" for key in (CAMERA, OTHER)))
    return root


def load(folder: Path, **settings: Any) -> DatasetMetadata:
    return load_metadata(LocalSource(folder), **settings)


def refusal(root: Path, kind: type[Exception] = MetadataError, **selection: Any) -> str:
    """The one-line message with which loading is refused."""
    with pytest.raises(kind) as caught:
        load(root, **selection)
    message = str(caught.value)
    assert "\n" not in message
    return message


# What is read --------------------------------------------------------------------------------------------


def test_v3_episodes_and_placements(tmp_path: Path) -> None:
    episodes = load(write_v3(tmp_path)).episodes
    assert episodes.length.tolist() == LENGTHS
    assert episodes.start.tolist() == [0, 5, 8, 15]
    assert episodes.data_files == [
        f"data/chunk-00{c}/file-00{f}.parquet" for c, f in ((0, 0), (0, 1), (1, 0))
    ]
    assert episodes.data_file.tolist() == [0, 0, 1, 2]
    top, wrist = episodes.videos[CAMERA], episodes.videos[OTHER]
    assert top.files == [f"videos/{CAMERA}/chunk-000/file-00{f}.mp4" for f in (0, 1)]
    assert (top.file.tolist(), wrist.file.tolist()) == ([0, 0, 0, 1], [0, 1, 1, 1])
    assert (top.base.tolist(), wrist.base.tolist()) == ([0, 5, 8, 0], [0, 0, 3, 10])
    assert (top.rows_in_file.tolist(), wrist.rows_in_file.tolist()) == ([15, 2], [5, 12])
    assert top.from_timestamp.tolist() == [0, 0.5, 0.8, 0]


def test_v3_rows_are_known_by_their_index_in_whatever_order_and_file(tmp_path: Path) -> None:
    expected = load(write_v3(tmp_path / "plain")).episodes
    columns = {name: list(values) for name, values in _episodes().items()}
    root = write_v3(tmp_path / "mixed")
    for number, rows in enumerate(([3, 1], [2, 0])):
        part = {name: [values[row] for row in rows] for name, values in columns.items()}
        _write_table(root / f"meta/episodes/chunk-000/file-00{number}.parquet", part)
    found = load(root).episodes
    for name in ("index", "length", "start", "data_file", "data_files"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    assert found.videos[OTHER].base.tolist() == expected.videos[OTHER].base.tolist()


def test_v3_pictures_may_be_stored_in_another_order_than_the_episodes(tmp_path: Path) -> None:
    columns = _episodes()
    columns[f"videos/{CAMERA}/from_timestamp"] = [1.0, 0.7, 0.0, 0.0]
    placement = load(write_v3(tmp_path, episodes=columns)).episodes.videos[CAMERA]
    assert placement.base.tolist() == [10, 7, 0, 0]


def test_v3_episode_indices_may_have_gaps(tmp_path: Path) -> None:
    meta = load(write_v3(tmp_path, episodes=_episodes() | {"episode_index": [2, 5, 6, 9]}))
    assert meta.episodes.index.tolist() == [2, 5, 6, 9]
    assert select_episodes(meta, [9, 5]).tolist() == [1, 3]
    with pytest.raises(SelectionError, match=r"\[0\].*2, 5…6, 9"):
        select_episodes(meta, [0])


def test_v3_foreign_files_are_never_counted_in(tmp_path: Path) -> None:
    root = write_v3(tmp_path)
    for stray in (
        "meta/episodes/file-000.parquet",
        "meta/episodes.parquet",
        "meta/episodes/chunk-000/copy.parquet",
    ):
        _write_table(root / stray, _episodes())
    _write_table(root / "data/chunk-001/file-007.parquet", {"other": [1]})
    _touch(root, f"videos/{CAMERA}/chunk-000/file-009.mp4")
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
    _write_json(root / "meta/stats.json", {"action": {"mean": [[1.5]], "count": [3]}})
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
    features = {"depth": _feature("image", 8, 8, 1, **flag), "rgb": _feature("image", 8, 8, 3, info=None)}
    meta = load(write_v3(tmp_path, _info(features=features)))
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
    _write_table(root / "meta/tasks.parquet", {"task_index": [0], "what": ["a"]})
    message = refusal(root)
    assert "tasks.parquet" in message
    assert "task_index, what" in message


# Formats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "way_out"),
    [
        ("v1.6", "convert_dataset_v1_to_v2.py"),
        ("2.3.0", "convert_dataset_v21_to_v30.py"),
        ("v4.0", "update robostream"),
        ("v3.1", "update robostream"),
        ("new", "lerobot"),
        (None, "lerobot"),
        (3.0, "lerobot"),
    ],
)
def test_other_versions_are_refused_in_one_line(tmp_path: Path, version: Any, way_out: str) -> None:
    message = refusal(write_v3(tmp_path, _info(codebase_version=version)), UnsupportedVersionError)
    assert f"codebase_version {version!r}" in message
    assert "v3.0, v2.1, v2.0" in message
    assert way_out in message


@pytest.mark.parametrize("version", ["3.0", "v3.0.1", "v3.0"])
def test_versions_with_and_without_a_letter(tmp_path: Path, version: str) -> None:
    assert load(write_v3(tmp_path, _info(codebase_version=version))).info.version == (3, 0)


def test_lance_is_refused_in_one_line(tmp_path: Path) -> None:
    message = refusal(write_v3(tmp_path, _info(storage_format="lance")), UnsupportedVersionError)
    assert "storage_format 'lance'" in message
    assert load(write_v3(tmp_path, _info(storage_format="parquet"))).total_episodes == 4


# info.json -----------------------------------------------------------------------------------------------


def test_no_dataset_says_what_a_root_looks_like(tmp_path: Path) -> None:
    message = refusal(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere/meta/info.json") in message
    assert "root is the folder that holds meta/info.json" in message


@pytest.mark.parametrize(("text", "words"), [("{", "malformed JSON"), ("[]", "expected a JSON object")])
def test_a_broken_info_is_named(tmp_path: Path, text: str, words: str) -> None:
    root = write_v3(tmp_path)
    (root / "meta/info.json").write_text(text)
    message = refusal(root)
    assert "info.json: " + words in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fps": 0}, "fps: must be a number above 0, not 0"),
        ({"fps": -30}, "fps: must be a number above 0, not -30"),
        ({"fps": "30"}, "fps: must be a number above 0, not '30'"),
        ({"fps": True}, "fps: must be a number above 0, not True"),
        ({"fps": float("nan")}, "fps: must be a number above 0, not nan"),
        ({"fps": None}, "fps: missing"),
        ({"features": None}, "features: missing"),
        ({"features": []}, "features: must be an object"),
        ({"features": {"action": 3}}, "features: action: must be an object"),
        ({"features": {"action": {"shape": [1]}}}, "features: action.dtype"),
        ({"features": {"action": {"dtype": "float32", "shape": ["a"]}}}, "features: action.shape"),
        ({"features": {"top": _feature("video", 1, info=[1])}}, "features: top.info"),
        ({"total_frames": None}, "total_frames: missing"),
        ({"total_frames": "17"}, "total_frames: "),
        ({"total_frames": 18}, "total_frames is 18, but the episodes' metadata amounts to 17"),
        ({"total_episodes": 5}, "total_episodes is 5, but the episodes' metadata amounts to 4"),
        ({"chunks_size": 0}, "chunks_size: "),
        ({"data_path": None}, "data_path: missing"),
        ({"data_path": "data/{chunk}.parquet"}, "data_path 'data/{chunk}.parquet': cannot be filled in"),
        ({"data_path": "data/{}.parquet"}, "{chunk_index}, {file_index}"),
        ({"data_path": "../{chunk_index}-{file_index}.parquet"}, "outside the dataset's root"),
        ({"data_path": "data/{chunk_index}.parquet"}, "same path for different files"),
        ({"video_path": "{video_key}/{episode_index}.mp4"}, "video_path '{video_key}/{episode_index}.mp4'"),
    ],
)
def test_bad_info_names_file_and_field(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    message = refusal(write_v3(tmp_path, _info(**changes)))
    assert "info.json: " in message
    assert words in message


def test_unknown_keys_are_warned_of_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"info\.json: unknown keys are ignored: later, new") as caught:
        load(write_v3(tmp_path, _info(new=1, later=2)))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(write_v3(tmp_path, _info(tools=[], data_files_size_in_mb=100, video_files_size_in_mb=200)))


# Episodes ------------------------------------------------------------------------------------------------


def _set(column: str, row: int, value: Any) -> Change:
    def change(columns: dict[str, Any]) -> None:
        columns[column] = list(columns[column])
        columns[column][row] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("length"), "the column 'length' is missing"),
        (lambda c: c.pop("data/file_index"), "the column 'data/file_index' is missing"),
        (lambda c: c.update(length=["5", "3", "7", "2"]), "'length' must hold integers, not string"),
        (lambda c: c.update(length=[5.0, 3.0, 7.0, 2.0]), "'length' must hold integers, not double"),
        (_set("dataset_from_index", 1, None), "'dataset_from_index' has 1 nulls"),
        (_set("length", 2, 0), "length of episode 2 is 0, which must be above 0"),
        (_set("length", 2, 6), "length of episode 2 is 6, which is not dataset_to_index"),
        (_set("episode_index", 2, -1), "episode_index of episode -1 is -1"),
        (_set("episode_index", 2, 1), "episode_index 1 comes twice"),
        (_set("data/file_index", 1, -1), "data/file_index of episode 1 is -1"),
        (_set("data/chunk_index", 1, 2**40), f"data/chunk_index of episode 1 is {2**40}"),
        (_set(f"videos/{CAMERA}/from_timestamp", 1, float("nan")), "from_timestamp of episode 1 is nan"),
        (lambda c: c.update({f"videos/{CAMERA}/from_timestamp": ["0"] * 4}), "must hold numbers, not string"),
        (
            lambda c: c.update(dataset_from_index=[0, 6, 9, 16], dataset_to_index=[5, 9, 16, 18]),
            "dataset_from_index of episode 1 is 6, which is not where the episode before it ends",
        ),
    ],
)
def test_bad_episodes_tables_name_file_and_field(tmp_path: Path, change: Change, words: str) -> None:
    columns = _episodes()
    change(columns)
    message = refusal(write_v3(tmp_path, episodes=columns))
    assert str(tmp_path / "meta/episodes/chunk-000/file-000.parquet") in message
    assert words in message


def test_an_episode_in_two_files_names_both(tmp_path: Path) -> None:
    root = write_v3(tmp_path)
    _write_table(root / "meta/episodes/chunk-001/file-000.parquet", _episodes())
    message = refusal(root)
    assert "chunk-001/file-000.parquet: episode_index 0 comes twice, first in " in message
    assert "chunk-000/file-000.parquet" in message


def test_a_truncated_or_absent_episodes_table_is_named(tmp_path: Path) -> None:
    root = write_v3(tmp_path)
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    assert f"{path}: not a readable Parquet file" in refusal(root)
    path.unlink()
    assert f"{root / 'meta/episodes'}: holds no chunk-XXX/file-YYY.parquet" in refusal(root)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"episode_index": 1, "length"', "malformed JSON"),
        ("7", "expected a JSON object"),
        ('{"length": 3}', "episode_index must be an integer from 0 up, not None"),
        ('{"episode_index": 1, "length": 0}', "length must be an integer above 0, not 0"),
        ('{"episode_index": 1, "length": "3"}', "length must be an integer above 0, not '3'"),
        ('{"episode_index": 0, "length": 3}', "episode_index 0 comes twice"),
    ],
)
def test_bad_episode_lines_are_named(tmp_path: Path, line: str, words: str) -> None:
    message = refusal(write_v2(tmp_path, ['{"episode_index": 0, "length": 5}', "", line]))
    assert "episodes.jsonl, line 3: " in message
    assert words in message


def test_v2_without_episodes(tmp_path: Path) -> None:
    assert "has no episodes" in refusal(write_v2(tmp_path, [], total_episodes=0, total_frames=0))
    (tmp_path / "meta/episodes.jsonl").unlink()
    assert f"{tmp_path / 'meta/episodes.jsonl'}: no such file" in refusal(tmp_path)


# Selection -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [write_v3, write_v2])
def test_a_camera_without_files_names_the_way_out(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    root = write(tmp_path)
    gone = next(path for path in root.rglob("*.mp4") if CAMERA in str(path))
    gone.unlink()
    message = refusal(root)
    assert f"the camera {CAMERA!r}" in message
    assert f"{gone} does not exist" in message
    assert f"cameras=['{OTHER}']" in message
    assert load(root, cameras=[OTHER]).camera_keys == [OTHER]
    assert load(root, cameras=[]).episodes.videos == {}


def test_a_camera_without_columns_names_the_way_out(tmp_path: Path) -> None:
    columns = _episodes()
    del columns[f"videos/{CAMERA}/file_index"]
    root = write_v3(tmp_path, episodes=columns)
    message = refusal(root)
    assert f"no column 'videos/{CAMERA}/file_index'" in message
    assert f"cameras=['{OTHER}']" in message
    assert list(load(root, cameras=[OTHER]).episodes.videos) == [OTHER]


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_cameras_without_a_video_path_are_refused(tmp_path: Path, version: str) -> None:
    if version == "v3.0":
        write_v3(tmp_path, _info(video_path=None))
    else:
        write_v2(tmp_path, video_path=None)
    message = refusal(tmp_path)
    assert "has no video_path" in message
    assert "cameras=[]" in message


def test_only_the_selected_episodes_need_their_files(tmp_path: Path) -> None:
    root = write_v3(tmp_path)
    for path in root.rglob("*.mp4"):
        path.rename(path.with_name("file-001.mp4"))
    assert "file-000.mp4 does not exist" in refusal(root)
    assert len(load(root, episodes=[3]).episodes) == 4
    assert "[9]" in refusal(root, SelectionError, episodes=[9])


def test_features_are_kept_by_name_with_the_index_columns(tmp_path: Path) -> None:
    root = write_v3(tmp_path)
    assert list(load(root, features=["action"]).features) == [
        CAMERA,
        OTHER,
        "action",
        "timestamp",
        "task_index",
    ]
    assert list(load(root, cameras=[], features=[]).features) == ["timestamp", "task_index"]


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        (
            {"cameras": ["top"]},
            f"cameras=['top']: unknown; the cameras of the dataset are: {CAMERA}, {OTHER}",
        ),
        ({"cameras": ["action"]}, "cameras=['action']: unknown"),
        ({"cameras": CAMERA}, "must be a list of keys, not a string"),
        ({"features": ["actions"]}, "features=['actions']: unknown"),
        ({"features": [CAMERA]}, "observation.state, action, timestamp, task_index"),
    ],
)
def test_unknown_keys_are_named_with_the_known(tmp_path: Path, selection: dict[str, Any], words: str) -> None:
    assert words in refusal(write_v3(tmp_path), SelectionError, **selection)


def test_language_columns_are_refused_with_the_way_out(tmp_path: Path) -> None:
    info = _info()
    info["features"]["language_events"] = _feature("language", 1)
    root = write_v3(tmp_path, info)
    message = refusal(root, SelectionError)
    assert "'language_events'" in message
    assert "features=['observation.state', 'action']" in message
    assert "language_events" not in load(root, features=["action"]).features


def test_episodes_are_selected_in_data_order(tmp_path: Path) -> None:
    meta = load(write_v3(tmp_path))
    assert select_episodes(meta, None).tolist() == [0, 1, 2, 3]
    for wanted in ([3, 1], (1, 3), np.array([3, 1]), range(1, 4, 2)):
        assert select_episodes(meta, wanted).tolist() == [1, 3]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("episodes", "words"),
    [
        ([], "episodes=[] selects nothing; the dataset has episodes 0…3"),
        ([2, 1, 1], "episodes=[1] are listed more than once"),
        ([-1, 2], "episodes=[-1] don't exist; the dataset has episodes 0…3"),
        ([99], "episodes=[99] don't exist"),
        (list(range(1, 100)), "… 86 more] don't exist"),
        ([1.0], "episodes=[1.0] must be a list of integers"),
        ([True], "episodes=[True] must be a list of integers"),
        (["1"], "episodes=['1'] must be a list of integers"),
        ([2**70], "must be a list of integers"),
    ],
)
def test_bad_episode_lists_are_named(tmp_path: Path, episodes: list[Any], words: str) -> None:
    meta = load(write_v3(tmp_path))
    with pytest.raises(SelectionError) as caught:
        select_episodes(meta, episodes)
    assert words in str(caught.value)


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
