"""The episodes as columns: where each one's rows and pictures are. Filled by the readers of each version."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robostream.errors import MetadataError

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class VideoPlacement:
    """Where the pictures of one camera are, for N episodes.

    file: int32[N], into `files`. files: paths relative to the root. from_timestamp: float64[N], seconds
    inside the file. until: float64[N], where the next episode in the file begins; infinite for its last.
    base: int64[N], rows of the episodes stored before this one in its file. rows_in_file: int64[len(files)],
    rows of all episodes stored in the file.
    """

    file: Int32
    files: list[str]
    from_timestamp: Float64
    until: Float64
    base: Int64
    rows_in_file: Int64

    def paths(self, rows: Int64) -> list[str]:
        """The files of these rows of the table, each once, in order."""
        return [self.files[file] for file in dict.fromkeys(self.file[rows].tolist())]


@dataclass(frozen=True, eq=False)
class EpisodeTable:
    """One row per episode, by ascending episode index. `index` need not be 0, 1, 2…

    index: int64[N]. length: int64[N], rows. start: int64[N], the episode's first row in the dataset.
    data_file: int32[N], into `data_files`, the paths relative to the root. videos: per camera in MP4 files.
    """

    index: Int64
    length: Int64
    start: Int64
    data_file: Int32
    data_files: list[str]
    videos: dict[str, VideoPlacement]

    def __len__(self) -> int:
        return len(self.index)


def place_video(file: Int32, files: list[str], from_timestamp: Float64, length: Int64) -> VideoPlacement:
    """Put the episodes of each file in line, by from_timestamp and then by episode index."""
    order = np.lexsort((from_timestamp, file))  # stable, and the rows come by episode index
    rows_in_file = np.zeros(len(files), np.int64)
    np.add.at(rows_in_file, file, length)
    rows_before_file = np.cumsum(rows_in_file) - rows_in_file
    base = np.empty_like(length)
    base[order] = np.cumsum(length[order]) - length[order] - rows_before_file[file[order]]
    until = np.full(len(file), np.inf)
    followed = file[order][:-1] == file[order][1:]
    until[order[:-1][followed]] = from_timestamp[order[1:][followed]]
    return VideoPlacement(file, files, from_timestamp, until, base, rows_in_file)


def check_totals(episodes: EpisodeTable, total_episodes: int, total_frames: int, info_name: str) -> None:
    """Raise `MetadataError` where `info.json` and the episodes disagree on totals, or there are none."""
    for field, declared, found in (
        ("total_episodes", total_episodes, len(episodes)),
        ("total_frames", total_frames, int(episodes.length.sum())),
    ):
        if declared != found:
            raise MetadataError(
                f"{info_name}: {field} is {declared}, but the episodes' metadata amounts to {found}: "
                "one of the two is out of date"
            )
    if len(episodes) == 0:
        raise MetadataError(f"{info_name}: the dataset has no episodes")
