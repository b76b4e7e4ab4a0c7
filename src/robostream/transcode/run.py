"""The whole of it: every video file re-encoded and checked, then the rest, and `info.json` last."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robostream.errors import SelectionError, SettingError
from robostream.index import VideoIndex
from robostream.metadata import DatasetMetadata, load_metadata
from robostream.metadata.info import INFO_PATH
from robostream.source import LocalSource
from robostream.transcode.check import check_index, check_pictures
from robostream.transcode.encode import encode_file, watched
from robostream.transcode.journal import Journal
from robostream.transcode.metadata import copy_files, other_files, part_of, write_info
from robostream.transcode.reader import read_pictures
from robostream.transcode.settings import TranscodeSettings
from robostream.video import Int

Progress = Callable[[int, int], None]
"""Called with (pictures done, pictures in all); each counts twice: once encoded, once checked."""


@dataclass(frozen=True)
class Summary:
    """What a run came to. kept: files that an earlier run had finished. min_psnr, mean_psnr: in dB, over all files.

    copied: video files of depth cameras, which are not re-encoded.
    """

    files: int
    kept: int
    copied: int
    pictures: int
    bytes_before: int
    bytes_after: int
    min_psnr: float
    mean_psnr: float


@dataclass(frozen=True, eq=False)
class _Job:
    """One video file. starts: int64, where its episodes begin. rows: of its episodes together."""

    camera: str
    path: str
    starts: Int
    rows: int


class _Stopped(Exception):
    """Another file failed, or the user ended the run."""


def transcode(
    root: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: TranscodeSettings,
    *,
    cameras: Sequence[str] | None = None,
    threads: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Summary:
    """Re-encode the videos of the dataset in `root` into a dataset in `out`.

    A run that was ended goes on where it stopped when it is called again. At most `threads` unfinished files exist at
    a time. `out` has its info.json only when all is done. cameras: the keys of those to keep; None for all.

    Raises SettingError if `out` is in use for something else or the settings can't work, DecodeError or DataFileError
    if a file can't be read or its copy fails the check; the finished files stay.
    """
    source, target = LocalSource(root), Path(out).expanduser().absolute()
    _check_apart(source.root.resolve(), target.resolve())
    meta = load_metadata(source, cameras=cameras)
    jobs, depth = _jobs(meta)
    if not jobs:
        raise SelectionError(f"{source.root}: no cameras in video files to re-encode")
    digest = hashlib.sha256(source.read(INFO_PATH)).hexdigest()[:16]
    begun = {"source": str(source.root), "info": digest, "cameras": meta.camera_keys, "settings": settings.to_json()}
    journal = Journal(target, begun)
    run = _Run(meta, target, settings, journal, jobs, threads or os.cpu_count() or 1, progress)
    results = run.all()
    copy_files(source, target, [*depth, *other_files(source, meta.episodes.data_files)])
    sizes = {job.camera: tuple(result["size"]) for job, result in zip(jobs, results, strict=True)}
    write_info(source, target, settings, sizes, meta.camera_keys)
    return _summary(source, jobs, results, run.kept, len(depth))


def _check_apart(source: Path, out: Path) -> None:
    if out == source:
        raise SettingError(f"{out} is the dataset itself; give a new folder beside it")
    if source in out.parents or out in source.parents:
        raise SettingError(f"{out} and {source} lie inside of each other; give a folder beside the dataset")


def _jobs(meta: DatasetMetadata) -> tuple[list[_Job], list[str]]:
    """The files to re-encode, and those of depth cameras, which are copied."""
    jobs, depth = [], []
    for key, placement in meta.episodes.videos.items():
        if key in meta.depth_keys:
            depth += placement.files
            continue
        for number, path in enumerate(placement.files):
            starts = np.sort(placement.base[placement.file == number])
            jobs.append(_Job(key, path, starts, int(placement.rows_in_file[number])))
    return jobs, depth


class _Run:
    """The work on all files, several at a time."""

    def __init__(
        self,
        meta: DatasetMetadata,
        out: Path,
        settings: TranscodeSettings,
        journal: Journal,
        jobs: list[_Job],
        threads: int,
        progress: Progress,
    ) -> None:
        self._meta = meta
        self._source = meta.source
        self._index = VideoIndex(meta.source)
        self._out = out
        self._settings = settings
        self._journal = journal
        self._jobs = jobs
        self._progress = progress
        self._total = 2 * sum(job.rows for job in jobs)
        self._done = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        left = sum(journal.finished(job.path, settings.min_psnr) is None for job in jobs)
        self.kept = len(jobs) - left
        self._workers = max(1, min(threads, left))
        self._encoder_threads = max(1, threads // self._workers)

    def all(self) -> list[dict[str, Any]]:
        """The journal's record of each job. The first error ends the others and is raised."""
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="transcode")
        futures = [pool.submit(self._one, job) for job in self._jobs]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            failed = [future.exception() for future in futures if future.done() and future.exception() is not None]
            if failed:
                raise next((error for error in failed if not isinstance(error, _Stopped)), failed[0])  # type: ignore[misc]
            return [future.result() for future in futures]
        finally:
            self._stop.set()
            pool.shutdown(cancel_futures=True)

    def _one(self, job: _Job) -> dict[str, Any]:
        record = self._journal.finished(job.path, self._settings.min_psnr)
        if record is not None:
            self._count(2 * job.rows)
            return record
        target = self._out / job.path
        target.parent.mkdir(parents=True, exist_ok=True)
        part = part_of(target)
        try:
            record = self._make(job, part)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
        self._journal.add(job.path, record)
        return record

    def _make(self, job: _Job, part: Path) -> dict[str, Any]:
        table = self._index.table(job.path)
        name = self._source.describe(job.path)
        size = self._settings.size(name, table.width, table.height)
        counted = len(table.presented) == job.rows
        encode_file(
            part,
            watched(read_pictures(self._source, job.path, table, size), self._count),
            table,
            self._settings,
            size=size,
            fps=table.frame_rate or self._meta.info.fps,
            keyframes=job.starts if counted else job.starts[:1],
            threads=self._encoder_threads,
        )
        copy = LocalSource(part.parent)
        made = VideoIndex(copy).table(part.name)
        check_index(str(part), table, made, self._settings.codec, size, self._settings.gop)
        checked = check_pictures(
            str(self._out / job.path),
            watched(read_pictures(self._source, job.path, table, size), self._count),
            read_pictures(copy, part.name, made),
            self._settings.min_psnr,
        )
        return {"bytes": part.stat().st_size, "size": list(size), **asdict(checked)}

    def _count(self, pictures: int = 1) -> None:
        if self._stop.is_set():
            raise _Stopped
        with self._lock:
            self._done += pictures
            self._progress(min(self._done, self._total), self._total)


def _summary(source: LocalSource, jobs: list[_Job], results: list[dict[str, Any]], kept: int, copied: int) -> Summary:
    pictures = sum(result["pictures"] for result in results)
    return Summary(
        files=len(jobs),
        kept=kept,
        copied=copied,
        pictures=pictures,
        bytes_before=sum(source.stat(job.path).size for job in jobs),
        bytes_after=sum(result["bytes"] for result in results),
        min_psnr=min((result["min_psnr"] for result in results), default=float("inf")),
        mean_psnr=sum(result["mean_psnr"] * result["pictures"] for result in results) / max(1, pictures),
    )
