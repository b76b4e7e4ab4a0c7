"""What a run has finished, so that the next one goes on: a file of JSON lines in the new dataset's folder."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from robostream.errors import SettingError

NAME = ".robostream-transcode.jsonl"


class Journal:
    """Opens or begins the journal of a folder. Safe to share between threads.

    The first line says of what dataset and with which settings the files are made; each further line is one finished
    file. Raises SettingError if the folder holds something else, or files of another source or other settings.
    """

    def __init__(self, out: Path, header: dict[str, Any]) -> None:
        self._path = out / NAME
        self._out = out
        self._lock = threading.Lock()
        self._done: dict[str, dict[str, Any]] = {}
        if self._path.is_file():
            self._read(header)
        else:
            self._begin(header)

    def finished(self, path: str, min_psnr: float) -> dict[str, Any] | None:
        """What is known of a finished file, if it is there, whole, and as close to its source as is asked for now."""
        record = self._done.get(path)
        file = self._out / path
        if (
            record is None
            or not file.is_file()
            or file.stat().st_size != record["bytes"]
            or record["min_psnr"] < min_psnr
        ):
            return None
        return record

    def add(self, path: str, record: dict[str, Any]) -> None:
        """Note a finished file; its name has its bytes already."""
        with self._lock:
            self._done[path] = record
            with self._path.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"file": path, **record}) + "\n")
                lines.flush()
                os.fsync(lines.fileno())

    def _begin(self, header: dict[str, Any]) -> None:
        if self._out.exists() and (not self._out.is_dir() or any(self._out.iterdir())):
            raise SettingError(f"{self._out} is not empty and was not made by transcode; give a new folder")
        self._out.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(header) + "\n", encoding="utf-8")

    def _read(self, header: dict[str, Any]) -> None:
        lines = self._path.read_text(encoding="utf-8").splitlines()
        records = [record for line in lines if (record := _parsed(line)) is not None]
        if not records or "file" in records[0]:
            raise SettingError(f"{self._path} is damaged; delete {self._out} and begin anew")
        begun = json.loads(json.dumps(header))
        for key in begun:
            if records[0].get(key) != begun[key]:
                raise SettingError(
                    f"{self._out} was begun with another {key}: {records[0].get(key)} instead of {begun[key]}. Go on "
                    "with the same, or give a new folder"
                )
        self._done = {record.pop("file"): record for record in records[1:] if "file" in record}
        if lines and _parsed(lines[-1]) is None:  # the last line was being written when the run was ended
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
