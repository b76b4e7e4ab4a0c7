"""The metadata of one dataset, whatever its version."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robostream.errors import MetadataError
from robostream.metadata import v2, v3
from robostream.metadata.episodes import EpisodeTable, Int64, check_totals
from robostream.metadata.files import read_json
from robostream.metadata.info import INFO_PATH, Feature, Info, load_info
from robostream.metadata.selection import select_episodes, select_features
from robostream.metadata.tasks import load_tasks
from robostream.source import Source

_STATS = "meta/stats.json"

Stats = dict[str, dict[str, npt.NDArray[Any]]]


@dataclass(frozen=True, eq=False)
class DatasetMetadata:
    """What is known of a dataset before any of its rows or pictures is read.

    features: those selected, in declared order. episodes: all of them, selected or not. tasks: task_index →
    text. The other attributes are those that users of lerobot's `LeRobotDatasetMetadata` call.
    """

    source: Source
    info: Info
    features: dict[str, Feature]
    episodes: EpisodeTable
    tasks: Mapping[int, str]
    repo_id: str | None = None
    revision: str | None = None
    root: Path | None = None

    @cached_property
    def stats(self) -> Stats | None:
        """feature → name ("mean", "std", …) → array, of `meta/stats.json`, read on first use, or None."""
        if not self.source.exists(_STATS):
            return None
        stats: Stats = {}
        for key, values in read_json(self.source, _STATS).items():
            if not isinstance(values, dict):
                raise MetadataError(f"{self.source.describe(_STATS)}: {key}: must be an object")
            stats[key] = {name: np.array(value) for name, value in values.items()}
        return stats

    @property
    def fps(self) -> int | float:
        """Frames per second: an int where it is whole. `info.fps` is the exact value."""
        return int(self.info.fps) if self.info.fps.denominator == 1 else float(self.info.fps)

    @property
    def robot_type(self) -> str | None:
        return self.info.robot_type

    @property
    def total_episodes(self) -> int:
        return self.info.total_episodes

    @property
    def total_frames(self) -> int:
        return self.info.total_frames

    @property
    def names(self) -> dict[str, Any]:
        return {key: feature.names for key, feature in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: feature.shape for key, feature in self.features.items()}

    @property
    def camera_keys(self) -> list[str]:
        return [key for key, feature in self.features.items() if feature.is_camera]

    @property
    def video_keys(self) -> list[str]:
        return [key for key, feature in self.features.items() if feature.is_video]

    @property
    def image_keys(self) -> list[str]:
        return [key for key, feature in self.features.items() if feature.is_image]

    @property
    def depth_keys(self) -> list[str]:
        return [key for key, feature in self.features.items() if feature.is_depth]


def load_metadata(
    source: Source,
    *,
    cameras: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    episodes: Sequence[int] | None = None,
    skip: bool = False,
    repo_id: str | None = None,
    revision: str | None = None,
    root: Path | None = None,
) -> DatasetMetadata:
    """Read and check a dataset's metadata; the cost is one file or a few, and nothing per frame.

    cameras, features: the camera and the other features to keep; None keeps all (index columns always stay).
    episodes: those that will be read, by index; None means all. The table holds all of them all the same, but
    only the first one of these must have its video files; with `skip`, any of them.
    repo_id, revision, root (of a local folder): where the dataset is from, kept for the user.
    Raises `MetadataError` for metadata that is missing or contradicts itself, `UnsupportedVersionError` for
    other formats, `SelectionError` for an unknown camera, feature or episode.
    """
    info = load_info(source)
    kept = select_features(info.features, cameras, features)
    video_keys = [key for key, feature in kept.items() if feature.is_video]
    read_episodes = v3.read_episodes if info.version >= (3, 0) else v2.read_episodes
    table, lost = read_episodes(source, info, video_keys)
    check_totals(table, info.total_episodes, info.total_frames, source.describe(INFO_PATH))
    meta = DatasetMetadata(source, info, kept, table, load_tasks(source), repo_id, revision, root)
    selected = select_episodes(meta.episodes, episodes)
    _check_cameras(meta, selected if skip else selected[:1], lost)
    return meta


def _check_cameras(meta: DatasetMetadata, rows: Int64, lost: dict[str, str]) -> None:
    """Refuse cameras that are declared but have no pictures, judged by the files of these rows of the episode table."""

    def is_there(paths: list[str]) -> bool:
        return any(map(meta.source.exists, paths))

    paths = {key: place.paths(rows) for key, place in meta.episodes.videos.items()}
    with ThreadPoolExecutor(max(1, len(paths))) as pool:
        there = list(pool.map(is_there, paths.values()))
    for key in itertools.compress(paths, [not yes for yes in there]):
        lost[key] = f"{meta.source.describe(paths[key][0])} does not exist"
    if lost:
        key, reason = next(iter(lost.items()))
        rest = [k for k in meta.camera_keys if k not in lost]
        raise MetadataError(
            f"the camera {key!r} is declared but has no video: {reason}; to read the dataset without it, "
            f"pass cameras={rest}"
        )
