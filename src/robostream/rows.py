"""The Parquet rows of an episode: only the row groups and columns that are needed, as the arrays that samples use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from robostream.errors import DataFileError
from robostream.memo import Memo
from robostream.metadata import DatasetMetadata, Feature
from robostream.metrics import Metrics
from robostream.parquet import named, read_bounds, read_footer, read_group
from robostream.source import Source

Int = npt.NDArray[np.int64]
Column = npt.NDArray[Any]
Columns = dict[str, Column]

CLOCK = "timestamp/float64"  # the rows' clock as stored, before it is rounded to float32 for samples
ROW_BYTES = 64 << 20  # row groups kept
_FOOTERS = 64  # kept
_ORDER = ("episode_index", "frame_index")  # read to find an episode's rows, also where not asked for


@dataclass(frozen=True, eq=False)
class _File:
    """The footer of one data file: per row group, the lowest and highest episode_index in it (int64 [groups])."""

    metadata: pq.FileMetaData
    columns: frozenset[str]
    low: Int
    high: Int


@dataclass(frozen=True, eq=False)
class _Group:
    """One row group in memory, and where runs of one episode begin and end in it."""

    columns: Columns
    runs: dict[int, list[slice]]
    nbytes: int

    def rows_of(self, episode: int) -> list[Columns]:
        return [{k: v[run] for k, v in self.columns.items()} for run in self.runs.get(episode, ())]


class RowReader:
    """Reads episodes' rows.

    Args:
        meta: the dataset's metadata; its features say what is read.
        metrics: counts bytes_needed.
        memory_bytes: bound on the row groups kept, so that groups that hold many episodes are not read for each.
    """

    def __init__(self, meta: DatasetMetadata, metrics: Metrics, memory_bytes: int = ROW_BYTES) -> None:
        self._meta = meta
        self._source: Source = meta.source
        self.tabular = [f for f in meta.features.values() if not f.is_camera]
        self._tasks = np.array(sorted(meta.tasks), np.int64)
        self._metrics = metrics
        self._files: Memo[str, _File] = Memo(_FOOTERS, lambda _: 1)
        self._groups: Memo[tuple[str, int, str], _Group] = Memo(memory_bytes, lambda group: group.nbytes)

    def episode(self, row: int) -> Columns:
        """All tabular columns of the episode in row `row` of the episode table, and its CLOCK if it has one.

        Numbers are float32, int64 or bool of [length, *shape], with shape (1,) as [length]; strings are object
        arrays [length]. Raises DataFileError naming file and episode if rows, columns or tasks are missing.
        """
        parts = self._parts(row, "")
        columns = parts[0] if len(parts) == 1 else {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}
        index, length = int(self._meta.episodes.index[row]), int(self._meta.episodes.length[row])
        path = self._path(row)
        found = len(columns["episode_index"])
        if found != length:
            raise DataFileError(
                f"{self._source.describe(path)}: has {found} rows of episode {index}, the metadata says {length}"
            )
        if "task_index" in columns and len(self._tasks):
            unknown = columns["task_index"][~np.isin(columns["task_index"], self._tasks)]
            if len(unknown):
                raise DataFileError(
                    f"{self._source.describe(path)}: task_index {unknown[0]} of episode {index} is not among the "
                    f"dataset's tasks"
                )
        frame = columns.get("frame_index")
        if frame is not None and not np.array_equal(frame, np.arange(length)):
            order = np.argsort(frame, kind="stable")
            if not np.array_equal(frame[order], np.arange(length)):
                raise DataFileError(
                    f"{self._source.describe(path)}: the frame_index of episode {index} does not count from 0 to "
                    f"{length - 1}"
                )
            columns = {key: values[order] for key, values in columns.items()}
        return columns

    def images(self, row: int, key: str, frames: Int) -> list[bytes]:
        """The coded images of some frames of an episode (row `row` of the table), from an image column."""
        parts = self._parts(row, key)
        data = np.concatenate([part[key] for part in parts])
        frame = np.concatenate([part["frame_index"] for part in parts]) if "frame_index" in parts[0] else None
        if frame is not None:
            data = data[np.argsort(frame, kind="stable")]
        images: list[bytes | None] = data[frames].tolist()
        if None in images:
            frame_number = int(frames[images.index(None)])
            raise DataFileError(
                f"{self._source.describe(self._path(row))}: no image bytes in {key} of episode "
                f"{int(self._meta.episodes.index[row])}, frame {frame_number}"
            )
        return [image for image in images if image is not None]

    def _path(self, row: int) -> str:
        episodes = self._meta.episodes
        return episodes.data_files[int(episodes.data_file[row])]

    def _parts(self, row: int, image: str) -> list[Columns]:
        """The episode's rows, as views of each row group that has some."""
        path, index = self._path(row), int(self._meta.episodes.index[row])
        file = self._file(path)
        groups = np.flatnonzero((file.low <= index) & (index <= file.high)).tolist()
        parts = [part for group in groups for part in self._group(path, file, group, image).rows_of(index)]
        if not parts:
            raise DataFileError(
                f"{self._source.describe(path)}: has no rows of episode {index}, although the metadata places it there"
            )
        return parts

    def _file(self, path: str) -> _File:
        return self._files.get(path, lambda: self._read_file(path))

    def _read_file(self, path: str) -> _File:
        with named(self._source, path):
            file = self._describe(path, read_footer(self._source, path))
        self._check_columns(path, file)
        return file

    def _describe(self, path: str, metadata: pq.FileMetaData) -> _File:
        """Where episodes lie in a file. Groups without statistics may hold any episode."""
        names = metadata.schema.to_arrow_schema().names
        low = np.full(metadata.num_row_groups, np.iinfo(np.int64).min)
        high = np.full(metadata.num_row_groups, np.iinfo(np.int64).max)
        if "episode_index" in [metadata.schema.column(i).path for i in range(metadata.num_columns)]:
            for group, bounds in enumerate(read_bounds(self._source, path, metadata, "episode_index")):
                if bounds is not None:
                    low[group], high[group] = bounds
        return _File(metadata, frozenset(names), low, high)

    def _check_columns(self, path: str, file: _File) -> None:
        wanted = [f.key for f in self._meta.features.values() if not f.is_video]
        missing = [key for key in dict.fromkeys([*wanted, "episode_index"]) if key not in file.columns]
        if missing:
            raise DataFileError(
                f"{self._source.describe(path)}: column {missing[0]!r} is declared in info.json but missing. "
                f"Leave it out with features=[…], or repair the file; it has {sorted(file.columns)}"
            )

    def _group(self, path: str, file: _File, group: int, image: str) -> _Group:
        """One row group: its tabular columns, or one image column's bytes with what finds an episode in it."""
        return self._groups.get((path, group, image), lambda: self._read_group(path, file, group, image))

    def _read_group(self, path: str, file: _File, group: int, image: str) -> _Group:
        order = [key for key in _ORDER if key in file.columns]
        keys = [f"{image}.bytes"] if image else [f.key for f in self.tabular]
        columns = list(dict.fromkeys([*keys, *order]))
        table, needed = read_group(self._source, path, file.metadata, group, columns)
        self._metrics.add("bytes_needed", needed)
        return _make_group(self._convert(path, table, image, order))

    def _convert(self, path: str, table: pa.Table, image: str, order: Sequence[str]) -> Columns:
        where = self._source.describe(path)
        arrays = {key: _numbers(table[key], Feature(key, "int64", (1,)), where) for key in order}
        if image:
            data = pa.compute.struct_field(table[image].combine_chunks(), "bytes")
            arrays[image] = data.to_numpy(zero_copy_only=False)
            return arrays
        for feature in self.tabular:
            column = table[feature.key]
            if feature.is_string:
                arrays[feature.key] = np.array(column.to_pylist(), dtype=object)
            else:
                arrays[feature.key] = _numbers(column, feature, where)
        if "timestamp" in arrays:
            arrays[CLOCK] = table["timestamp"].to_numpy().astype(np.float64).reshape(-1)
        return arrays


def _make_group(columns: Columns) -> _Group:
    index = columns["episode_index"]
    begins = np.flatnonzero(np.diff(index, prepend=index[:1] - 1)).tolist()
    runs: dict[int, list[slice]] = {}
    for begin, end in zip(begins, [*begins[1:], len(index)], strict=True):
        runs.setdefault(int(index[begin]), []).append(slice(begin, end))
    weight = sum(
        sum(len(v or b"") for v in values) if values.dtype == object else values.nbytes for values in columns.values()
    )
    return _Group(columns, runs, weight)


def _numbers(column: pa.ChunkedArray, feature: Feature, where: str) -> Column:
    """A numeric column as samples have it: float32, int64 or bool, [rows, *shape], shape (1,) as [rows]."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    rows = len(array)
    while True:
        if array.null_count:
            raise DataFileError(f"{where}: column {feature.key!r} has {array.null_count} empty values")
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            lengths = np.diff(array.offsets.to_numpy())
            if len(lengths) and (lengths != lengths[0]).any():
                raise DataFileError(
                    f"{where}: column {feature.key!r} has lists of {lengths.min()} to {lengths.max()} values; only "
                    f"columns of one shape can be batched. Leave it out with features=[…]"
                )
            array = array.flatten()
        elif pa.types.is_fixed_size_list(array.type):
            array = array.flatten()
        else:
            break
    try:
        values = array.to_numpy(zero_copy_only=False)
        shape = () if feature.shape in ((), (1,)) else feature.shape
        values = values.reshape(rows, *shape)
    except (ValueError, pa.ArrowException) as error:
        raise DataFileError(
            f"{where}: column {feature.key!r} holds {array.type} × {len(array) // max(rows, 1)} a row, info.json "
            f"declares {feature.dtype} {feature.shape}"
        ) from error
    kind = values.dtype.kind
    if kind not in "fiub":
        raise DataFileError(f"{where}: column {feature.key!r} holds {array.type}, which is not a number")
    return np.ascontiguousarray(values, {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}[kind])
