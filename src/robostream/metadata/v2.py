"""The episodes of v2.1 and v2.0: `meta/episodes.jsonl`, and one Parquet and one MP4 file per episode."""

from __future__ import annotations

import numpy as np

from robostream.errors import MetadataError
from robostream.metadata.episodes import EpisodeTable, Int64, VideoPlacement
from robostream.metadata.files import read_json_lines
from robostream.metadata.info import INFO_PATH, Info
from robostream.metadata.paths import fill_template
from robostream.source import Source

_EPISODES = "meta/episodes.jsonl"


def read_episodes(source: Source, info: Info, video_keys: list[str]) -> tuple[EpisodeTable, dict[str, str]]:
    """Read the episodes, in whatever order the lines are.

    Returns the table, and for each camera that it cannot place the reason. Raises `MetadataError` naming
    file, line and field.
    """
    index, length = _read_lines(source)
    info_name = source.describe(INFO_PATH)
    names = [{"episode_chunk": i // info.chunks_size, "episode_index": i} for i in index.tolist()]
    own_file = np.arange(len(index), dtype=np.int32)
    data_files = fill_template(info.data_path, "data_path", info_name, names)
    videos: dict[str, VideoPlacement] = {}
    lost: dict[str, str] = {}
    if info.video_path is None:
        lost = dict.fromkeys(video_keys, f"{info_name} has no video_path")
    else:
        base = np.zeros_like(length)  # every episode has its own file
        start_s, until = np.zeros(len(index)), np.full(len(index), np.inf)
        for key in video_keys:
            camera_names = ({"video_key": key, **name} for name in names)
            files = fill_template(info.video_path, "video_path", info_name, camera_names)
            videos[key] = VideoPlacement(own_file, files, start_s, until, base, length)
    start = np.cumsum(length) - length
    return EpisodeTable(index, length, start, own_file, data_files, videos), lost


def _read_lines(source: Source) -> tuple[Int64, Int64]:
    """(index, length), both int64[N], by ascending index."""
    if not source.exists(_EPISODES):
        raise MetadataError(f"{source.describe(_EPISODES)}: no such file")
    lengths: dict[int, int] = {}
    for where, line in read_json_lines(source, _EPISODES):
        episode, length = line.get("episode_index"), line.get("length")
        if type(episode) is not int or episode < 0:
            raise MetadataError(f"{where}: episode_index must be an integer from 0 up, not {episode!r}")
        if type(length) is not int or length <= 0:
            raise MetadataError(f"{where}: length must be an integer above 0, not {length!r}")
        if episode in lengths:
            raise MetadataError(f"{where}: episode_index {episode} comes twice")
        lengths[episode] = length
    index = np.array(sorted(lengths), dtype=np.int64)
    return index, np.array([lengths[i] for i in index.tolist()], dtype=np.int64)
