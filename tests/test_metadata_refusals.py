"""Metadata of all versions: what is refused, and what is said of it; what of a dataset is selected."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metadata_files import (
    CAMERA,
    OTHER,
    episode_columns,
    feature_entry,
    load,
    refusal,
    valid_info,
    write_table,
    write_v2,
    write_v3,
)

from robostream.errors import SelectionError, UnsupportedVersionError
from robostream.metadata import select_episodes

Change = Callable[[dict[str, Any]], object]


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
    message = refusal(write_v3(tmp_path, valid_info(codebase_version=version)), UnsupportedVersionError)
    assert f"codebase_version {version!r}" in message
    assert "v3.0, v2.1, v2.0" in message
    assert way_out in message


@pytest.mark.parametrize("version", ["3.0", "v3.0.1", "v3.0"])
def test_versions_with_and_without_a_letter(tmp_path: Path, version: str) -> None:
    assert load(write_v3(tmp_path, valid_info(codebase_version=version))).info.version == (3, 0)


def test_lance_is_refused_in_one_line(tmp_path: Path) -> None:
    message = refusal(write_v3(tmp_path, valid_info(storage_format="lance")), UnsupportedVersionError)
    assert "storage_format 'lance'" in message
    assert load(write_v3(tmp_path, valid_info(storage_format="parquet"))).total_episodes == 4


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
        ({"features": {}}, "features: must not be empty"),
        ({"features": {"action": 3}}, "features: action: must be an object"),
        ({"features": {"action": {"shape": [1]}}}, "features: action.dtype"),
        ({"features": {"action": {"dtype": "float32", "shape": ["a"]}}}, "features: action.shape"),
        ({"features": {"top": feature_entry("video", 1, info=[1])}}, "features: top.info"),
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
    message = refusal(write_v3(tmp_path, valid_info(**changes)))
    assert "info.json: " in message
    assert words in message


def test_unknown_keys_are_warned_of_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"info\.json: unknown keys are ignored: later, new") as caught:
        load(write_v3(tmp_path, valid_info(new=1, later=2)))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(write_v3(tmp_path, valid_info(tools=[], data_files_size_in_mb=100, video_files_size_in_mb=200)))


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
    columns = episode_columns()
    change(columns)
    message = refusal(write_v3(tmp_path, episodes=columns))
    assert str(tmp_path / "meta/episodes/chunk-000/file-000.parquet") in message
    assert words in message


def test_an_episode_in_two_files_names_both(tmp_path: Path) -> None:
    root = write_v3(tmp_path)
    write_table(root / "meta/episodes/chunk-001/file-000.parquet", episode_columns())
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
    columns = episode_columns()
    del columns[f"videos/{CAMERA}/file_index"]
    root = write_v3(tmp_path, episodes=columns)
    message = refusal(root)
    assert f"no column 'videos/{CAMERA}/file_index'" in message
    assert f"cameras=['{OTHER}']" in message
    assert list(load(root, cameras=[OTHER]).episodes.videos) == [OTHER]


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_cameras_without_a_video_path_are_refused(tmp_path: Path, version: str) -> None:
    if version == "v3.0":
        write_v3(tmp_path, valid_info(video_path=None))
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
    info = valid_info()
    info["features"]["language_events"] = feature_entry("language", 1)
    root = write_v3(tmp_path, info)
    message = refusal(root, SelectionError)
    assert "'language_events'" in message
    assert "features=['observation.state', 'action']" in message
    assert "language_events" not in load(root, features=["action"]).features


def test_episodes_are_selected_in_data_order(tmp_path: Path) -> None:
    meta = load(write_v3(tmp_path))
    assert select_episodes(meta.episodes, None).tolist() == [0, 1, 2, 3]
    for wanted in ([3, 1], (1, 3), np.array([3, 1]), range(1, 4, 2)):
        assert select_episodes(meta.episodes, wanted).tolist() == [1, 3]  # type: ignore[arg-type]


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
        select_episodes(meta.episodes, episodes)
    assert words in str(caught.value)
