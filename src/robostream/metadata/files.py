"""Reading one metadata file: JSON, JSON lines, Parquet columns. Every failure names the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from robostream.errors import MetadataError
from robostream.parquet import PARQUET_ERRORS
from robostream.source import Source


def read_json(source: Source, path: str) -> dict[str, Any]:
    """The object in a JSON file. Raises `MetadataError` where it is malformed or no object."""
    return _parse_object(source.read(path), source.describe(path))


def read_json_lines(source: Source, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects in a JSON-lines file, each with "FILE, line N" for messages. Blank lines are skipped."""
    name = source.describe(path)
    for number, line in enumerate(source.read(path).splitlines(), start=1):
        if line.strip():
            where = f"{name}, line {number}"
            yield where, _parse_object(line, where)


@contextmanager
def open_parquet(source: Source, path: str) -> Iterator[pq.ParquetFile]:
    """An open Parquet file. `MetadataError` where it is truncated or no Parquet file, on reading it too."""
    with source.open(path) as handle:
        try:
            yield pq.ParquetFile(handle, pre_buffer=True)
        except PARQUET_ERRORS as error:
            raise MetadataError(f"{source.describe(path)}: not a readable Parquet file: {error}") from error


def read_columns(file: pq.ParquetFile, columns: list[str]) -> pa.Table:
    """The named columns of a Parquet file, and no others."""
    # `columns` also matches dotted names that begin alike, hence the second selection.
    return file.read(columns=columns).select(columns)


def _parse_object(text: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise MetadataError(f"{where}: malformed JSON: {error}") from error
    if not isinstance(value, dict):
        raise MetadataError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value
