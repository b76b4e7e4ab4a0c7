"""The tasks: `meta/tasks.parquet` (v3.0) or `meta/tasks.jsonl` (v2.x)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from robostream.errors import MetadataError
from robostream.metadata.files import open_parquet, read_columns, read_json_lines
from robostream.source import Source

_PARQUET = "meta/tasks.parquet"
_LINES = "meta/tasks.jsonl"


def load_tasks(source: Source) -> dict[int, str]:
    """task_index → text; empty where the dataset has no tasks file.

    The rows' order means nothing. Raises `MetadataError` for missing columns, wrong kinds, and one index with
    two texts.
    """
    if source.exists(_PARQUET):
        rows = _parquet_rows(source)
    elif source.exists(_LINES):
        rows = _json_rows(source)
    else:
        return {}
    tasks: dict[int, str] = {}
    for where, index, text in rows:
        if type(index) is not int or not isinstance(text, str):
            raise MetadataError(f"{where}: task_index {index!r} with task {text!r}: not an integer and a text")
        if tasks.setdefault(index, text) != text:
            raise MetadataError(f"{where}: task_index {index} is both {tasks[index]!r} and {text!r}")
    return tasks


def _json_rows(source: Source) -> Iterator[tuple[str, Any, Any]]:
    for where, line in read_json_lines(source, _LINES):
        yield where, line.get("task_index"), line.get("task")


def _parquet_rows(source: Source) -> Iterator[tuple[str, Any, Any]]:
    name = source.describe(_PARQUET)
    with open_parquet(source, _PARQUET) as file:
        text = _text_column(file.schema_arrow, name)
        table = read_columns(file, ["task_index", text])
    for index, task in zip(table["task_index"].to_pylist(), table[text].to_pylist(), strict=True):
        yield name, index, task


def _text_column(schema: pa.Schema, name: str) -> str:
    """The column that holds the texts: the pandas index, under whatever name it was stored."""
    pandas = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    index = [column for column in pandas.get("index_columns", []) if isinstance(column, str)]
    candidates = [column for column in (*index, "task", "__index_level_0__") if column in schema.names]
    candidates = [column for column in candidates if column != "task_index"]
    if "task_index" not in schema.names or not candidates:
        raise MetadataError(
            f"{name}: needs the column 'task_index', and the texts as 'task' or as the pandas index; "
            f"it has {', '.join(schema.names)}"
        )
    return candidates[0]
