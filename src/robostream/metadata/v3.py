"""The episodes of v3.0: `meta/episodes/chunk-XXX/file-YYY.parquet`, many episodes per data and video file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from robostream.errors import MetadataError
from robostream.metadata.episodes import EpisodeTable, Int32, Int64, VideoPlacement, place_video
from robostream.metadata.files import open_parquet, read_columns
from robostream.metadata.info import INFO_PATH, Info
from robostream.metadata.paths import fill_template
from robostream.source import Source

_FOLDER = "meta/episodes"
_FILE = re.compile(_FOLDER + r"/chunk-\d+/file-\d+\.parquet")
_COLUMNS = [
    "episode_index",
    "length",
    "dataset_from_index",
    "dataset_to_index",
    "data/chunk_index",
    "data/file_index",
]
_READERS = 4  # files read at once: hides a remote source's latency; each may have a footer of many megabytes
_PROBES = 16  # files looked for at once where they can't be listed
_MAX_NUMBER = 2**31 - 1  # of a chunk or file; keeps a pair of them within int64

Columns = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class _Rows:
    """The needed columns of all files, in one order; `file` says where each row was read."""

    columns: Columns
    file: npt.NDArray[np.intp]
    files: list[str]

    def ints(self, name: str) -> Int64:
        return self.columns[name].astype(np.int64, copy=False)

    def refuse(self, bad: npt.NDArray[np.bool_], field: str, reason: str) -> None:
        """Raise for the first row that is `bad`, naming file, field and episode."""
        if bad.any():
            row = int(bad.argmax())
            value, episode = self.columns[field][row], self.columns["episode_index"][row]
            raise MetadataError(f"{self.files[self.file[row]]}: {field} of episode {episode} is {value}, {reason}")


def read_episodes(source: Source, info: Info, video_keys: list[str]) -> tuple[EpisodeTable, dict[str, str]]:
    """Read the episodes table, and of it only the columns that are needed.

    Returns the table, and for each camera that it cannot place the reason. Files beside the
    chunk-XXX/file-YYY pattern are not part of a dataset and are ignored.
    Raises `MetadataError` naming file and field.
    """
    rows, lost = _read_rows(source, video_keys)
    _check_rows(rows)
    info_name = source.describe(INFO_PATH)
    data_file, pairs = _unique_files(rows, "data")
    data_files = fill_template(info.data_path, "data_path", info_name, pairs)
    videos: dict[str, VideoPlacement] = {}
    if info.video_path is None:
        lost |= dict.fromkeys(video_keys, f"{info_name} has no video_path")
    else:
        placed = [key for key in video_keys if key not in lost]
        videos = {key: _place_camera(rows, key, info.video_path, info_name) for key in placed}
    index, length, start = (rows.ints(name) for name in ("episode_index", "length", "dataset_from_index"))
    return EpisodeTable(index, length, start, data_file, data_files, videos), lost


def _place_camera(rows: _Rows, key: str, template: str, info_name: str) -> VideoPlacement:
    file, pairs = _unique_files(rows, f"videos/{key}")
    names: Iterable[dict[str, int | str]] = ({"video_key": key, **pair} for pair in pairs)
    files = fill_template(template, "video_path", info_name, names)
    from_timestamp = rows.columns[f"videos/{key}/from_timestamp"].astype(np.float64, copy=False)
    return place_video(file, files, from_timestamp, rows.ints("length"))


def _read_rows(source: Source, video_keys: list[str]) -> tuple[_Rows, dict[str, str]]:
    paths = _find_files(source)
    if not paths:
        raise MetadataError(f"{source.describe(_FOLDER)}: holds no chunk-XXX/file-YYY.parquet")
    with ThreadPoolExecutor(min(_READERS, len(paths))) as pool:
        parts = list(pool.map(lambda path: _read_file(source, path, video_keys), paths))
    lost: dict[str, str] = {}
    for _, part_lost in parts:
        lost = part_lost | lost
    file = np.repeat(np.arange(len(paths)), [len(part["episode_index"]) for part, _ in parts])
    names = [name for name in parts[0][0] if not any(name in _video_columns(key) for key in lost)]
    columns = {name: np.concatenate([part.pop(name) for part, _ in parts]) for name in names}
    index = columns["episode_index"]
    if (index[1:] < index[:-1]).any():
        order = np.argsort(index, kind="stable")
        file, columns = file[order], {name: column[order] for name, column in columns.items()}
    return _Rows(columns, file, [source.describe(path) for path in paths]), lost


def _find_files(source: Source) -> list[str]:
    """The files of the table, in the order of their names."""
    listed = source.list(_FOLDER)
    if listed is not None:
        return [path for path in listed if _FILE.fullmatch(path)]
    found: list[str] = []
    for chunk in itertools.count():
        files = _probe(source, chunk)
        found += files
        if not files:
            return found
    raise AssertionError("unreachable")


def _probe(source: Source, chunk: int) -> list[str]:
    """The files of a chunk, up to the first number that is not there: for servers that can't list."""
    found: list[str] = []
    step = 1
    with ThreadPoolExecutor(_PROBES) as pool:
        while True:
            names = [f"{_FOLDER}/chunk-{chunk:03d}/file-{len(found) + i:03d}.parquet" for i in range(step)]
            there = list(pool.map(source.exists, names))
            found += itertools.compress(names, itertools.accumulate(there, min))
            if not all(there):
                return found
            step = min(2 * step, _PROBES)


def _read_file(source: Source, path: str, video_keys: list[str]) -> tuple[Columns, dict[str, str]]:
    """The needed columns of one file, and the cameras for which it has no columns."""
    name, lost = source.describe(path), {}
    with open_parquet(source, path) as file:
        stored = set(file.schema_arrow.names)
        for column in _COLUMNS:
            if column not in stored:
                raise MetadataError(f"{name}: the column {column!r} is missing")
        wanted = list(_COLUMNS)
        for key in video_keys:
            absent = [column for column in _video_columns(key) if column not in stored]
            if absent:
                lost[key] = f"{name} has no column {absent[0]!r}"
            else:
                wanted += _video_columns(key)
        table = read_columns(file, wanted)
    return {column: _to_numpy(table[column], column, name) for column in wanted}, lost


def _video_columns(key: str) -> list[str]:
    return [f"videos/{key}/{field}" for field in ("chunk_index", "file_index", "from_timestamp")]


def _to_numpy(values: pa.ChunkedArray, column: str, name: str) -> npt.NDArray[np.generic]:
    is_time = column.endswith("/from_timestamp")
    right = pa.types.is_integer(values.type) or (is_time and pa.types.is_floating(values.type))
    if not right:
        kind = "numbers" if is_time else "integers"
        raise MetadataError(f"{name}: the column {column!r} must hold {kind}, not {values.type}")
    if values.null_count:
        raise MetadataError(f"{name}: the column {column!r} has {values.null_count} nulls")
    array: npt.NDArray[np.generic] = values.to_numpy()
    return array


def _check_rows(rows: _Rows) -> None:
    index, length = rows.ints("episode_index"), rows.ints("length")
    start, stop = rows.ints("dataset_from_index"), rows.ints("dataset_to_index")
    rows.refuse(index < 0, "episode_index", "which must not be negative")
    again = np.flatnonzero(index[1:] == index[:-1])
    if again.size:
        first, second = (rows.files[rows.file[again[0] + k]] for k in (0, 1))
        raise MetadataError(f"{second}: episode_index {index[again[0]]} comes twice, first in {first}")
    rows.refuse(length <= 0, "length", "which must be above 0")
    rows.refuse(length != stop - start, "length", "which is not dataset_to_index - dataset_from_index")
    due = np.cumsum(length) - length
    rows.refuse(start != due, "dataset_from_index", "which is not where the episode before it ends")
    for name in rows.columns:
        if name.endswith("/from_timestamp"):
            times = rows.columns[name].astype(np.float64, copy=False)
            rows.refuse(~(np.isfinite(times) & (times >= 0)), name, "which is no time in seconds")
        elif name.endswith(("/chunk_index", "/file_index")):
            numbers = rows.ints(name)
            rows.refuse((numbers < 0) | (numbers > _MAX_NUMBER), name, "which is no number of a file")


def _unique_files(rows: _Rows, prefix: str) -> tuple[Int32, list[dict[str, int]]]:
    """The distinct (chunk, file) pairs, and int32[N] into them: paths are made per file, not per episode."""
    chunk, file = rows.ints(f"{prefix}/chunk_index"), rows.ints(f"{prefix}/file_index")
    width = int(file.max(initial=0)) + 1
    codes, inverse = np.unique(chunk * width + file, return_inverse=True)
    pairs = [{"chunk_index": int(code) // width, "file_index": int(code) % width} for code in codes]
    return inverse.astype(np.int32), pairs
