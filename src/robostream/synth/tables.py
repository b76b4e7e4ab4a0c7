"""Everything of a dataset that is not pictures: info, rows, tasks and episodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .scene import episode_motion
from .settings import SynthSettings, fps_number
from .stats import Stats, stats_columns

Rows = dict[str, NDArray[Any]]
"""Column -> (length,) or (length, dims), in the order of the Parquet file."""

INDEX_COLUMNS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}


def episode_rows(settings: SynthSettings, episode: int) -> Rows:
    """The rows of one episode."""
    length = settings.lengths[episode]
    motion = episode_motion(settings, episode)
    frames = np.arange(length)
    if settings.timestamps is None:
        timestamps = (frames / float(settings.row_fps)).astype(np.float32)
    else:
        timestamps = np.asarray(settings.timestamps(episode, length), dtype=np.float32)
    return {
        "observation.state": motion.state[:length],
        "action": motion.action[:length],
        "timestamp": timestamps,
        "frame_index": frames,
        "episode_index": np.full(length, episode),
        "index": sum(settings.lengths[:episode]) + frames,
        "task_index": np.full(length, episode % len(settings.tasks)),
    }


def write_info(root: Path, settings: SynthSettings, paths: dict[str, str], extra: dict[str, Any]) -> None:
    """meta/info.json, with the path templates and what else the version has."""
    episodes = len(settings.lengths)
    info = {
        "codebase_version": settings.version,
        "fps": fps_number(settings.row_fps),
        "features": _features(settings),
        "total_episodes": episodes,
        "total_frames": sum(settings.lengths),
        "total_tasks": len(settings.tasks),
        "chunks_size": settings.chunks_size,
        **extra,
        **paths,
        **({} if settings.camera_keys else {"video_path": None}),
        "robot_type": "synthetic",
        "splits": {"train": f"0:{episodes}"},
    }
    write_json(root / "meta/info.json", info)


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False), encoding="utf-8")


def write_rows(path: Path, settings: SynthSettings, episodes: Sequence[Rows]) -> None:
    """One data file holding the rows of some episodes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = [pa.table({name: _column(values) for name, values in rows.items()}) for rows in episodes]
    schema = tables[0].schema.with_metadata({"huggingface": json.dumps(_huggingface(settings))})
    with pq.ParquetWriter(path, schema) as writer:
        if settings.one_row_group_per_episode:
            for table in tables:
                writer.write_table(table.cast(schema))
        else:
            writer.write_table(pa.concat_tables(tables).cast(schema))


def write_tasks(root: Path, settings: SynthSettings) -> None:
    """meta/tasks.parquet: the tasks are the index of a pandas frame."""
    tasks = list(settings.tasks)
    text = {"name": "task", "field_name": "task", "pandas_type": "unicode", "numpy_type": "object"}
    number = {"name": "task_index", "field_name": "task_index", "pandas_type": "int64", "numpy_type": "int64"}
    names = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object"}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [{**names, "metadata": {"encoding": "UTF-8"}}],
        "columns": [{**number, "metadata": None}, {**text, "metadata": None}],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.2.0",
    }
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": pa.array(tasks)})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), root / "meta/tasks.parquet")


def write_episodes(root: Path, settings: SynthSettings, stats: Sequence[dict[str, Stats]]) -> None:
    """meta/episodes: where the rows and pictures of each episode are, and its statistics."""
    count = len(settings.lengths)
    ends = np.cumsum(settings.lengths).tolist()
    columns: dict[str, list[Any]] = {
        "episode_index": list(range(count)),
        "tasks": [[task_of(settings, episode)] for episode in range(count)],
        "length": list(settings.lengths),
    }
    columns |= _places("data", settings, settings.data_files)
    columns |= {"dataset_from_index": [0, *ends[:-1]], "dataset_to_index": ends}
    for camera in settings.camera_keys:
        files = settings.video_files(camera)
        columns |= _places(f"videos/{camera}", settings, files)
        starts, stops = _video_times(settings, files)
        columns |= {f"videos/{camera}/from_timestamp": starts, f"videos/{camera}/to_timestamp": stops}
    columns |= stats_columns(stats)
    columns |= {"meta/episodes/chunk_index": [0] * count, "meta/episodes/file_index": [0] * count}
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def task_of(settings: SynthSettings, episode: int) -> str:
    return settings.tasks[episode % len(settings.tasks)]


def _places(prefix: str, settings: SynthSettings, files: Sequence[range]) -> dict[str, list[Any]]:
    places = [settings.place(number) for number, episodes in enumerate(files) for _ in episodes]
    chunks, numbers = (list(part) for part in zip(*places, strict=True))
    return {f"{prefix}/chunk_index": chunks, f"{prefix}/file_index": numbers}


def _video_times(settings: SynthSettings, files: Sequence[range]) -> tuple[list[float], list[float]]:
    """Where each episode starts and stops inside its MP4, in seconds."""
    number = np.float32 if settings.float32_sums else np.float64
    starts, stops = [], []
    for episodes in files:
        durations = [settings.frame_counts[episode] / float(settings.fps) for episode in episodes]
        sums = np.cumsum([0.0, *durations], dtype=number).tolist()
        starts += sums[:-1]
        stops += sums[1:]
    return starts, stops


def _features(settings: SynthSettings) -> dict[str, Any]:
    features: dict[str, Any] = {
        camera: {
            "dtype": "video",
            "shape": [settings.height, settings.width, 3],
            "names": ["height", "width", "channels"],
            "info": _video_info(settings),
        }
        for camera in settings.camera_keys
    }
    for name, letter, dims in _vectors(settings):
        names = [f"{letter}{number}" for number in range(dims)]
        features[name] = {"dtype": "float32", "shape": [dims], "names": names}
    for name, dtype in INDEX_COLUMNS.items():
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    return features


def _vectors(settings: SynthSettings) -> list[tuple[str, str, int]]:
    return [("observation.state", "s", settings.state_dim), ("action", "a", settings.action_dim)]


def _video_info(settings: SynthSettings) -> dict[str, Any]:
    depth_flag = "is_depth_map" if settings.version == "v3.0" else "video.is_depth_map"
    return {
        "video.height": settings.height,
        "video.width": settings.width,
        "video.codec": settings.codec,
        "video.pix_fmt": settings.pix_fmt,
        "video.fps": fps_number(settings.fps),
        "video.channels": 3,
        "has_audio": False,
        "video.g": settings.gop,
        "video.crf": settings.crf,
        depth_flag: False,
    }


def _huggingface(settings: SynthSettings) -> dict[str, Any]:
    """The columns as the `datasets` library describes them in a file's metadata."""

    def value(dtype: str) -> dict[str, str]:
        return {"dtype": dtype, "_type": "Value"}

    vectors = {
        name: {"feature": value("float32"), "length": dims, "_type": "List"} for name, _, dims in _vectors(settings)
    }
    return {"info": {"features": vectors | {name: value(dtype) for name, dtype in INDEX_COLUMNS.items()}}}


def _column(values: NDArray[Any]) -> Any:
    """A Parquet column: (rows,) as numbers, (rows, dims) as lists of fixed size."""
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
