"""The fetch stage: everything that a clip needs from the source, before anything is decoded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from robostream.consumer import ClipWork
from robostream.errors import RobostreamError, SourceError
from robostream.index import VideoIndex
from robostream.metadata import DatasetMetadata
from robostream.metrics import Metrics
from robostream.pictures import MISSING, Clock, EpisodeVideo, Matched, match_pictures
from robostream.plan import Bool, Int
from robostream.rows import CLOCK, Columns, RowReader
from robostream.video import CodedClip, fetch_clip
from robostream.windows import window_rows

log = logging.getLogger("robostream")

_READERS = 24  # cameras read at once over a network, for all clips
_MATCHES = 1 << 16  # episodes and cameras whose first picture is remembered

Pin = Callable[[str, int, Int, Int], Int]
"""(camera, episode, frames, uses) → slots, int64, of pictures that are decoded already and are now held; else −1."""


@dataclass(frozen=True, eq=False)
class Camera:
    """One camera as it is read. shape: (height, width, channels). offsets: int64 [T], its window; None without."""

    key: str
    is_video: bool
    shape: tuple[int, int, int]
    offsets: Int | None

    @property
    def steps(self) -> int:
        return 1 if self.offsets is None else len(self.offsets)

    @property
    def frame_bytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.shape[2]


@dataclass(eq=False)
class CameraPart:
    """One camera's part of a fetched clip.

    frames: int64 [K], rows of the episode whose pictures are needed, ascending. uses: int64 [K], how many window
    steps of pending samples show each. index: int64 [n, T], which of `frames` each sample shows. slots: int64 [K],
    where pictures lie that were decoded before, else −1.
    read: int64 [R], which of `frames` were read from the source: either `images`, an image file for each, or
    `coded`, with `picture`: int64 [R], which of its pictures each frame shows.
    """

    camera: Camera
    frames: Int
    uses: Int
    index: Int
    slots: Int
    read: Int
    images: list[bytes] = field(default_factory=list)
    coded: CodedClip | None = None
    picture: Int = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def coded_bytes(self) -> int:
        return (self.coded.bytes_read if self.coded else 0) + sum(map(len, self.images))

    def drop_bytes(self) -> None:
        self.images, self.coded = [], None


@dataclass(eq=False)
class FetchedClip:
    """A clip with its rows and bytes. samples: int64 [n], the episode's rows to deliver from it. valid: bool [n].

    where: names the episode, for messages.
    """

    work: ClipWork
    where: str
    samples: Int
    valid: Bool
    rows: Columns
    cameras: list[CameraPart]

    @property
    def coded_bytes(self) -> int:
        """Bytes that its pictures hold before they are decoded."""
        return sum(part.coded_bytes for part in self.cameras)


class ClipFetcher:
    """Fetches clips. Safe to share between threads.

    Args:
        meta: the dataset. selected: int64 [M], rows of its episode table that the plan's episodes stand for.
        cameras: what is decoded. tolerance_s, clock: how pictures are matched to rows.
        skip: leave out what has no picture or can't be read, instead of raising.
        pin: finds pictures that are decoded already.
    """

    def __init__(
        self,
        meta: DatasetMetadata,
        selected: Int,
        cameras: Sequence[Camera],
        *,
        tolerance_s: float,
        clock: Clock,
        skip: bool,
        metrics: Metrics,
        pin: Pin | None = None,
    ) -> None:
        self.meta = meta
        self.selected = selected
        self.cameras = list(cameras)
        self.index = VideoIndex(meta.source)
        self.reader = RowReader(meta, metrics)
        self._tolerance_s = tolerance_s
        self._clock: Clock = clock
        self._skip = skip
        self._metrics = metrics
        self._pin = pin
        self._fps: Fraction = meta.info.fps
        self._lock = threading.Lock()
        # Over a network the cameras of a clip are read at once.
        self._pool = ThreadPoolExecutor(_READERS, "robostream-camera") if meta.source.is_remote else None
        self._noticed: set[str] = set()
        self._first_pictures: dict[tuple[int, str], int] = {}

    def fetch(self, work: ClipWork) -> FetchedClip:
        """Read a clip's rows and coded pictures. Raises a RobostreamError that names file, episode and frame."""
        episode = int(self.meta.episodes.index[self.selected[work.episode]])
        where = f"episode {episode}"
        samples = work.start + np.flatnonzero(work.pending)
        valid = np.ones(len(samples), bool)
        with self._metrics.timed("fetch_s"):
            try:
                self._begin_tables(int(self.selected[work.episode]))
                rows = self.reader.episode(int(self.selected[work.episode]))
                plans = [self._camera(work, rows, camera, samples, valid) for camera in self.cameras]
                parts = self._read_all(plans, int(self.selected[work.episode]))
                return FetchedClip(work, where, samples, valid, rows, parts)
            except RobostreamError as error:
                if not self._skip or isinstance(error, SourceError):
                    raise
                self.warn_once(where, f"{error} Left out {len(samples)} samples of {where}; metrics() counts all.")
                return FetchedClip(work, where, samples, np.zeros(len(samples), bool), {}, [])

    def close(self) -> None:
        """End the threads of the cameras, without waiting for reads under way; nothing can be fetched any more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def warn_once(self, kind: str, message: str) -> None:
        if self._first_time(kind):
            log.warning("%s", message)

    def _first_time(self, kind: str) -> bool:
        with self._lock:
            known = kind in self._noticed
            self._noticed.add(kind)
        return not known

    def _begin_tables(self, row: int) -> None:
        """Begin to read the tables that an episode needs, while its rows are read."""
        if self._pool is None:
            return
        for path in (self._path(row, camera.key) for camera in self.cameras if camera.is_video):
            if path not in self.index:
                self._pool.submit(copy_context().run, self.index.table, path)  # who needs it meets its error

    def _read_all(self, plans: list[tuple[CameraPart, Int | int | None]], row: int) -> list[CameraPart]:
        """Read the pictures of all cameras."""
        needed = [(part, pictures) for part, pictures in plans if len(part.read)]
        if self._pool is None:
            for part, pictures in needed:
                self._read(part, row, pictures)
        else:
            jobs = [self._pool.submit(copy_context().run, self._read, part, row, pictures) for part, pictures in needed]
            for job in jobs:
                job.result()
        return [part for part, _ in plans]

    def _camera(
        self, work: ClipWork, rows: Columns, camera: Camera, samples: Int, valid: Bool
    ) -> tuple[CameraPart, Int | int | None]:
        """What is to be read for a camera, and which picture of its video belongs to each row, as `_match` tells."""
        row = int(self.selected[work.episode])
        pictures = self._match(row, rows, camera) if camera.is_video else None
        if camera.offsets is None:
            shown = samples[:, None]
        else:
            shown, _ = window_rows(samples, camera.offsets, int(self.meta.episodes.length[row]))
        if isinstance(pictures, np.ndarray):
            complete = (pictures[shown] != MISSING).all(axis=1)
            valid &= complete
            shown = np.where(complete[:, None], shown, shown[:1, :1])
        if camera.offsets is None and valid.all():  # each sample shows a picture of its own
            frames, index = samples, np.arange(len(samples))[:, None]
            uses = np.ones(len(samples), np.int64)
        else:
            frames = np.unique(shown[valid])
            index = np.searchsorted(frames, shown).clip(0, max(len(frames) - 1, 0))
            uses = np.bincount(index[valid].ravel(), minlength=len(frames)).astype(np.int64)
        slots = np.full(len(frames), -1, np.int64)
        if self._pin is not None:
            slots = self._pin(camera.key, work.episode, frames, uses)
        return CameraPart(camera, frames, uses, index, slots, np.flatnonzero(slots < 0)), pictures

    def _read(self, part: CameraPart, row: int, pictures: Int | int | None) -> None:
        key, frames = part.camera.key, part.frames[part.read]
        if pictures is None:
            part.images = self.reader.images(row, key, frames)
            return
        if isinstance(pictures, int):
            wanted, part.picture = pictures + frames, np.arange(len(frames))
        else:
            wanted, part.picture = np.unique(pictures[frames], return_inverse=True)
        path = self._path(row, key)
        part.coded = fetch_clip(self.meta.source, path, self.index.table(path), wanted)
        self._metrics.add("bytes_needed", part.coded.bytes_needed)  # images were counted with their rows

    def _path(self, row: int, key: str) -> str:
        placement = self.meta.episodes.videos[key]
        return placement.files[int(placement.file[row])]

    def _match(self, row: int, rows: Columns, camera: Camera) -> Int | int:
        """The picture of each row of an episode, int64 [length]; or only that of the first if they simply count on."""
        known = self._first_pictures.get((row, camera.key))
        if known is not None:
            return known
        positions = self._match_all(row, rows, camera).positions
        if (np.diff(positions) != 1).any() or positions[0] == MISSING:
            return positions
        if len(self._first_pictures) >= _MATCHES:
            self._first_pictures.clear()
        return self._first_pictures.setdefault((row, camera.key), int(positions[0]))

    def _match_all(self, row: int, rows: Columns, camera: Camera) -> Matched:
        placement = self.meta.episodes.videos[camera.key]
        path = self._path(row, camera.key)
        video = EpisodeVideo(
            name=self.meta.source.describe(path),
            episode=int(self.meta.episodes.index[row]),
            length=int(self.meta.episodes.length[row]),
            base=int(placement.base[row]),
            rows_in_file=int(placement.rows_in_file[placement.file[row]]),
            from_timestamp=float(placement.from_timestamp[row]),
            until=float(placement.until[row]),
        )
        table = self.index.table(path)
        matched = match_pictures(video, table, rows.get(CLOCK), self._fps, self._tolerance_s, self._clock)
        if matched.problem is not None:
            if not self._skip:
                raise matched.problem
            self.warn_once(video.name, f"{matched.problem} Left out the rows without a picture.")
        if matched.drifted:
            if self._first_time(f"drift of {row}"):
                self._metrics.add("episodes_drifted")
            self.warn_once(
                "drift",
                f"{video.name}: the video's clock drifts from the rows' by more than tolerance_s, but the file has as "
                f"many pictures as rows, so pictures are taken in order. Said once; metrics() counts them.",
            )
        return matched
