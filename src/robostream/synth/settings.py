"""What a synthetic dataset looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .barcode import BITS, ROWS

Codec = Literal["av1", "h264", "hevc"]
PixFmt = Literal["yuv420p", "yuv444p", "yuv420p10le"]
Version = Literal["v3.0", "v2.1", "v2.0"]
Texture = Literal["light", "heavy"]


@dataclass(frozen=True)
class SynthSettings:
    """A synthetic dataset; the same settings write the same pictures and numbers.

    The last fields make datasets that contradict themselves, as damaged ones do. All of them leave the files
    readable; what disagrees is rows, pictures and metadata.
    """

    episodes: int | Sequence[int] = 4
    """How many episodes, or the length of each (frames)."""
    min_length: int = 40
    max_length: int = 80
    """Where `episodes` is a number, lengths are drawn from [min_length, max_length]."""
    cameras: int | Sequence[str] = 2
    """How many cameras (observation.images.cam0, ...), or their keys."""
    width: int = 128
    height: int = 96
    fps: int | Fraction = 30
    tasks: Sequence[str] = ("put the gripper on the target", "follow the target", "touch the red disc")
    """Episode e does task e % len(tasks)."""
    state_dim: int = 6
    action_dim: int = 4
    coded: bool = False
    """Puts (episode, frame) in the last two numbers of state and action, to check the pairing."""
    texture: Texture = "light"
    """Faint grain, or a strong one that takes nearly twice as long to decode."""
    seed: int = 0

    codec: Codec = "av1"
    gop: int = 2
    bframes: int = 0
    """B-frames between references (h264 and hevc; AV1 containers have no reordered packets)."""
    pix_fmt: PixFmt = "yuv420p"
    crf: int = 30
    faststart: bool = True
    """Whether `moov` comes before the pictures or after them."""

    version: Version = "v3.0"
    episodes_per_video_file: int | Sequence[int] | Mapping[str, int | Sequence[int]] = 10
    """Episodes in each MP4: one number, the count of every file, or either of them by camera key."""
    episodes_per_data_file: int | Sequence[int] = 10
    one_row_group_per_episode: bool = True
    chunks_size: int = 1000
    """Files in a chunk folder."""

    timestamps: Callable[[int, int], NDArray[np.float32]] | None = None
    """(episode, length) -> the rows' timestamps in seconds, in place of frame / fps."""
    video_frames: Callable[[int, int], int] | None = None
    """(episode, length) -> how many pictures the episode has, in place of one a row."""
    join_stretch: Fraction = Fraction(0)
    """Part of a frame by which each join inside an MP4 delays all that follows, unknown to the metadata."""
    float32_sums: bool = False
    """Writes from_timestamp as a running sum in float32."""
    declared_fps: int | None = None
    """The fps in info.json, which the rows' timestamps then follow; the video keeps `fps`."""

    def __post_init__(self) -> None:
        if self.width < BITS or self.height <= ROWS:
            raise ValueError(f"the barcode needs at least {BITS}x{ROWS + 1} pixels")
        if self.pix_fmt != "yuv444p" and (self.width % 2 or self.height % 2):
            raise ValueError(f"{self.pix_fmt} needs even picture sizes, got {self.width}x{self.height}")
        if self.codec == "av1" and (self.pix_fmt == "yuv444p" or self.bframes):
            raise ValueError("the AV1 encoder writes neither yuv444p nor reordered packets")
        if self.bframes and min(self.frame_counts) < self.bframes + 2:
            raise ValueError(
                f"with {self.bframes} B-frames, joined videos need episodes of at least {self.bframes + 2} frames"
            )
        if min(self.state_dim, self.action_dim) < (4 if self.coded else 2):
            raise ValueError("state and action need 2 numbers, 4 when coded")
        if not 0 <= self.join_stretch < 1:
            raise ValueError(f"join_stretch is a part of a frame, got {self.join_stretch}")

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Rows of each episode."""
        if not isinstance(self.episodes, int):
            return tuple(self.episodes)
        rng = np.random.default_rng(self.seed)
        return tuple(rng.integers(self.min_length, self.max_length, self.episodes, endpoint=True).tolist())

    @cached_property
    def frame_counts(self) -> tuple[int, ...]:
        """Pictures of each episode."""
        if self.video_frames is None:
            return self.lengths
        return tuple(self.video_frames(episode, length) for episode, length in enumerate(self.lengths))

    @cached_property
    def camera_keys(self) -> tuple[str, ...]:
        if isinstance(self.cameras, int):
            return tuple(f"observation.images.cam{number}" for number in range(self.cameras))
        return tuple(self.cameras)

    @cached_property
    def row_fps(self) -> int | Fraction:
        """The rate that info.json declares and the rows follow."""
        return self.fps if self.declared_fps is None else self.declared_fps

    @cached_property
    def data_files(self) -> list[range]:
        """The episodes of each Parquet file."""
        return self._split(self.episodes_per_data_file)

    def video_files(self, camera: str) -> list[range]:
        """The episodes of each MP4 of a camera."""
        counts = self.episodes_per_video_file
        return self._split(counts[camera] if isinstance(counts, Mapping) else counts)

    def place(self, file: int) -> tuple[int, int]:
        """(chunk_index, file_index) of a file counted over all chunks."""
        return divmod(file, self.chunks_size)

    def _split(self, counts: int | Sequence[int]) -> list[range]:
        total = len(self.lengths)
        if self.version != "v3.0":
            counts = 1
        if isinstance(counts, int):
            return [range(start, min(start + counts, total)) for start in range(0, total, counts)]
        ends = np.cumsum([0, *counts]).tolist()
        if ends[-1] != total:
            raise ValueError(f"files of {list(counts)} episodes do not add up to {total} episodes")
        return [range(start, end) for start, end in pairwise(ends)]


def fps_number(fps: int | Fraction) -> int | float:
    """fps as JSON writes it."""
    return int(fps) if fps == int(fps) else float(fps)
