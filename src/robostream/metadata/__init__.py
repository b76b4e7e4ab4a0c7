"""A dataset's metadata: info, features, episodes, tasks and stats of v3.0, v2.1 and v2.0 behind one type."""

from robostream.metadata.dataset import DatasetMetadata, load_metadata
from robostream.metadata.episodes import EpisodeTable, VideoPlacement
from robostream.metadata.info import Feature, Info
from robostream.metadata.selection import select_episodes

__all__ = [
    "DatasetMetadata",
    "EpisodeTable",
    "Feature",
    "Info",
    "VideoPlacement",
    "load_metadata",
    "select_episodes",
]
