"""Small datasets' metadata, written to be changed, and how loading refuses what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robostream.errors import MetadataError
from robostream.metadata import DatasetMetadata, load_metadata
from robostream.source import LocalSource

CAMERA, OTHER = "observation.images.top", "observation.images.wrist"
LENGTHS = [5, 3, 7, 2]


def feature_entry(dtype: str, *shape: int, **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "names": None, **more}


def valid_info(**changes: Any) -> dict[str, Any]:
    """A valid info.json of the v3.0 dataset below; a change to None removes the field."""
    info = {
        "codebase_version": "v3.0",
        "fps": 10,
        "robot_type": "arm",
        "features": {
            CAMERA: feature_entry("video", 8, 8, 3),
            OTHER: feature_entry("video", 8, 8, 3, video_info={"video.is_depth_map": True}),
            "observation.state": feature_entry("float32", 4),
            "action": feature_entry("float64", 2),
            "timestamp": feature_entry("float32", 1),
            "task_index": feature_entry("int64", 1),
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


def episode_columns() -> dict[str, Any]:
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


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_table(path: Path, columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def touch(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def write_v3(root: Path, info: dict[str, Any] | None = None, episodes: dict[str, Any] | None = None) -> Path:
    write_json(root / "meta/info.json", info or valid_info())
    write_table(root / "meta/episodes/chunk-000/file-000.parquet", episodes or episode_columns())
    write_table(root / "meta/tasks.parquet", {"task_index": [0], "task": ["pick"]})
    touch(root, *(f"videos/{key}/chunk-000/file-000.mp4" for key in (CAMERA, OTHER)))
    return root


def write_v2(root: Path, lines: Sequence[str] | None = None, **changes: Any) -> Path:
    templates = {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    write_json(root / "meta/info.json", valid_info(**({"codebase_version": "v2.1", **templates} | changes)))
    if lines is None:
        rows = [{"episode_index": i, "tasks": ["pick"], "length": n} for i, n in enumerate(LENGTHS)]
        lines = [json.dumps(row) for row in rows]
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "pick"}\n')
    touch(root, *(f"videos/chunk-000/{key}/episode_000000.mp4" for key in (CAMERA, OTHER)))
    return root


def load(folder: Path, **settings: Any) -> DatasetMetadata:
    return load_metadata(LocalSource(folder), **settings)


def refusal(root: Path, kind: type[Exception] = MetadataError, **selection: Any) -> str:
    """The one-line message with which loading is refused."""
    with pytest.raises(kind) as caught:
        load(root, **selection)
    message = str(caught.value)
    assert "\n" not in message, message
    return message
