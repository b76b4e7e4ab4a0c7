"""Puts a synthetic dataset on disk, in the layout of LeRobot v3.0, v2.1 or v2.0."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .settings import SynthSettings
from .stats import Stats, number_stats, picture_stats
from .tables import (
    Rows,
    episode_rows,
    task_of,
    write_episodes,
    write_info,
    write_json,
    write_rows,
    write_tasks,
)
from .video import Clip, encode_clip, join_clips

Progress = Callable[[int, int], None]
Samples = dict[str, tuple[NDArray[np.int64], int]]
"""Camera key -> histogram (3, 256) of the pictures looked at in one episode, and how many they were."""

V3_PATHS = {
    "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
    "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}
V2_PATHS = {
    "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
}


def write_dataset(root: Path, settings: SynthSettings, progress: Progress | None = None) -> None:
    """Writes the dataset under root; progress is called with (clips written, clips in all)."""
    rows = [episode_rows(settings, episode) for episode in range(len(settings.lengths))]
    samples = _write_videos(root, settings, progress)
    for number, episodes in enumerate(settings.data_files):
        path = root / _path(settings, "data_path", number, "")
        write_rows(path, settings, [rows[episode] for episode in episodes])
    stats = _stats(rows, samples)
    episode_stats = [_stats([rows[e]], [samples[e]]) for e in range(len(rows))]
    if settings.version == "v3.0":
        sizes = {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
        write_info(root, settings, V3_PATHS, sizes)
        write_json(root / "meta/stats.json", stats)
        write_tasks(root, settings)
        write_episodes(root, settings, episode_stats)
    else:
        _write_v2_meta(root, settings, stats, episode_stats)


def _write_videos(root: Path, settings: SynthSettings, progress: Progress | None) -> list[Samples]:
    """Encodes clips side by side, joins them in order, and gives what each episode's pictures look like."""
    samples: list[Samples] = [{} for _ in settings.lengths]
    total = len(settings.lengths) * len(settings.camera_keys)
    done = 0

    def finished(key: str, episodes: range, jobs: Sequence[Future[Clip]]) -> Iterator[Clip]:
        nonlocal done
        for episode, job in zip(episodes, jobs, strict=True):
            clip = job.result()
            samples[episode][key] = (clip.histogram, clip.sampled)
            yield clip
            done += 1
            if progress is not None:
                progress(done, total)

    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        files = []
        for camera, key in enumerate(settings.camera_keys):
            for number, episodes in enumerate(settings.video_files(key)):
                path = root / _path(settings, "video_path", number, key)
                jobs = [pool.submit(encode_clip, settings, camera, episode) for episode in episodes]
                files.append((path, key, episodes, jobs))
        while files:  # drops each file's clips once they are written
            path, key, episodes, jobs = files.pop(0)
            join_clips(path, finished(key, episodes, jobs), settings)
    finally:
        pool.shutdown(cancel_futures=True)
    return samples


def _path(settings: SynthSettings, template: str, number: int, camera: str) -> str:
    """A file's path by its number in order; in v2 that is the episode's."""
    chunk, file = settings.place(number)
    if settings.version == "v3.0":
        return V3_PATHS[template].format(video_key=camera, chunk_index=chunk, file_index=file)
    return V2_PATHS[template].format(video_key=camera, episode_chunk=chunk, episode_index=number)


def _stats(rows: Sequence[Rows], samples: Sequence[Samples]) -> dict[str, Stats]:
    """Statistics of every feature over some episodes."""
    stats = {}
    for key in samples[0]:
        histogram = np.sum([episode[key][0] for episode in samples], axis=0)
        stats[key] = picture_stats(histogram, sum(episode[key][1] for episode in samples))
    for name in rows[0]:
        stats[name] = number_stats(np.concatenate([episode[name] for episode in rows]))
    return stats


def _write_v2_meta(
    root: Path, settings: SynthSettings, stats: dict[str, Stats], episode_stats: Sequence[dict[str, Stats]]
) -> None:
    """meta/ of v2.1, and of v2.0, which has one stats.json in place of the statistics by episode."""
    episodes = len(settings.lengths)
    chunks = settings.place(episodes - 1)[0] + 1
    counts = {"total_videos": episodes * len(settings.camera_keys), "total_chunks": chunks}
    write_info(root, settings, V2_PATHS, counts)
    _write_lines(
        root / "meta/episodes.jsonl",
        [
            {"episode_index": episode, "tasks": [task_of(settings, episode)], "length": length}
            for episode, length in enumerate(settings.lengths)
        ],
    )
    tasks = [{"task_index": number, "task": task} for number, task in enumerate(settings.tasks)]
    _write_lines(root / "meta/tasks.jsonl", tasks)
    if settings.version == "v2.0":
        write_json(root / "meta/stats.json", stats)
    else:
        lines = [{"episode_index": episode, "stats": found} for episode, found in enumerate(episode_stats)]
        _write_lines(root / "meta/episodes_stats.jsonl", lines)


def _write_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
