"""From what a user asked for to the stages that deliver it: everything is settled here, once, before data flows."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from robostream.assemble import Assembler, BufferPool, Sample, sample_bytes, split
from robostream.checks import check_whole
from robostream.consumer import ClipWork, ConsumerOrder
from robostream.decode import VideoDecoder, decode_part
from robostream.decode_direct import make_decoder
from robostream.errors import DataFileError, MetadataError, PictureMatchError, SelectionError, SettingError
from robostream.fetch import Camera, ClipFetcher, Pin
from robostream.index import INDEX_BYTES, VideoIndex
from robostream.metadata import DatasetMetadata, Feature
from robostream.metrics import Metrics
from robostream.mp4 import SampleTable
from robostream.open_batches import OpenBatches
from robostream.pictures import Clock
from robostream.pipeline import Pipeline, PipelineSettings
from robostream.plan import Int, Plan, PlanSettings
from robostream.pool import FramePool
from robostream.prefetch import PrefetchSettings
from robostream.rows import ROW_BYTES
from robostream.sizing import Room, Sizes, longest_clip, reach, room, settle
from robostream.windows import Window

_MOST_CLIPS_AHEAD = 1024  # however small they are


def decoder_factory(backend: str) -> Callable[[], VideoDecoder]:
    """What makes a decoder of this backend: "pyav" or "torchcodec". Raises SettingError if it can't be used here."""
    if backend == "pyav":
        return make_decoder
    if backend != "torchcodec":
        raise SettingError(f"video_backend={backend!r} must be 'pyav' or 'torchcodec'")
    from robostream.decode_torchcodec import TorchcodecDecoder, check_torchcodec

    check_torchcodec()
    return TorchcodecDecoder


@dataclass(frozen=True)
class Settings:
    """What a user asked for, checked. Sizes in frames, memory in bytes; both for one rank."""

    seed: int
    shuffle: bool
    even: bool
    buffer_size: int
    num_streams: int | None
    clip_frames: int | None
    memory_bytes: int | None
    tolerance_s: float
    clock: Clock
    skip: bool
    return_uint8: bool
    fetch_bytes: int

    def __post_init__(self) -> None:
        check_whole("seed", self.seed)
        for name in ("buffer_size", "fetch_bytes"):
            check_whole(name, getattr(self, name), least=1)
        if self.num_streams is not None:
            check_whole("num_streams", self.num_streams, least=1)
        if self.memory_bytes is not None and self.memory_bytes < 0:
            raise SettingError(f"memory_bytes={self.memory_bytes} must not be negative")
        if not self.tolerance_s >= 0:
            raise SettingError(f"tolerance_s={self.tolerance_s} must not be negative")


@dataclass(frozen=True)
class Share:
    """Which part of the work a consumer does: consumer `index` of `count`, in a job of `world` ranks."""

    index: int
    count: int
    world: int

    @property
    def per_rank(self) -> int:
        return self.count // self.world


@dataclass(frozen=True, eq=False)
class Blueprint:
    """Everything that is known before data flows.

    meta: the dataset. selected: int64 [M], rows of its episode table. windows: by key.
    """

    meta: DatasetMetadata
    selected: Int
    windows: Mapping[str, Window]
    settings: Settings
    make_decoder: Callable[[], VideoDecoder]

    @cached_property
    def lengths(self) -> Int:
        """int64 [M]: frames of each selected episode."""
        lengths: Int = self.meta.episodes.length[self.selected]
        return lengths

    @cached_property
    def tables(self) -> dict[str, SampleTable]:
        """The sample table of the first file of each video camera, of the first readable one with `skip`; read on
        first use."""
        index = VideoIndex(self.meta.source)
        rows = self.selected if self.settings.skip else self.selected[:1]

        def first(paths: list[str]) -> SampleTable:
            for path in paths:
                with contextlib.suppress(DataFileError):
                    return index.table(path)
            return index.table(paths[0])  # none can be read: raises what is wrong with the first

        videos = self.meta.episodes.videos
        paths = [placement.paths(rows) for placement in videos.values()]
        with ThreadPoolExecutor(max(1, len(paths))) as pool:
            return dict(zip(videos, pool.map(first, paths), strict=True))

    @cached_property
    def cameras(self) -> list[Camera]:
        """What is decoded. The size of a video is what its file says, whatever info.json declares."""
        cameras = []
        for feature in self.meta.features.values():
            if feature.is_camera:
                if feature.is_depth:
                    raise SelectionError(
                        f"{feature.key!r} is a depth map, which is not read here; leave it out with cameras=[…]"
                    )
                table, window = self.tables.get(feature.key), self.windows.get(feature.key)
                shape = (table.height, table.width, 3) if table else _image_shape(feature)
                cameras.append(Camera(feature.key, feature.is_video, shape, window.offsets if window else None))
        return cameras

    @cached_property
    def sizes(self) -> Sizes:
        settings = self.settings
        return settle(self.cameras, self.tables, buffer_size=settings.buffer_size, clip_frames=settings.clip_frames)

    def plan(self, share: Share) -> Plan:
        """The plan of the whole job. With `num_streams` it is the same whatever the number of consumers."""
        settings, sizes = self.settings, self.sizes
        streams = settings.num_streams or share.count
        if streams % share.count:
            raise SettingError(
                f"num_streams={streams} must be a multiple of the number of consumers, {share.count} (ranks × workers)"
            )
        if settings.num_streams and streams > max(share.count, int(self.lengths.sum())):
            raise SettingError(f"num_streams={streams} is more than the dataset has frames, {int(self.lengths.sum())}")
        # With an explicit num_streams the windows are shared out over the whole job, so that the order does not
        # depend on the number of ranks; else each rank has its own.
        part = streams if settings.num_streams else share.per_rank
        return Plan(
            self.lengths,
            PlanSettings(
                seed=settings.seed,
                shuffle=settings.shuffle,
                num_streams=streams,
                clip_frames=sizes.clip_frames,
                unit_frames=sizes.unit_frames,
                clip_window=sizes.clip_window // part,
                sample_window=min(max(1, settings.buffer_size // part), max(1, int(self.lengths.sum()))),
                even=settings.even,
            ),
        )

    def fingerprint(self, plan: Plan) -> dict[str, Any]:
        """What the order depends on: two runs with equal fingerprints have equal orders."""
        episodes = np.stack([self.meta.episodes.index[self.selected], self.lengths])
        windows = {key: window.offsets.tolist() for key, window in sorted(self.windows.items())}
        return {
            "episodes": hashlib.blake2b(episodes.tobytes(), digest_size=8).hexdigest(),
            "num_episodes": len(self.selected),
            "num_frames": plan.total,
            "windows": hashlib.blake2b(repr(windows).encode(), digest_size=8).hexdigest(),
            **asdict(plan.settings),
        }

    def streams(self, plan: Plan, share: Share) -> list[int]:
        return list(range(share.index, plan.settings.num_streams, share.count))

    def rooms(self, plan: Plan, share: Share, ahead: int, batch_size: int) -> dict[str, Room]:
        """Memory of each camera's pool."""
        picture = sum(camera.frame_bytes for camera in self.cameras)
        kept = (self.settings.memory_bytes or 0) // max(1, picture * share.per_rank)
        return {
            camera.key: room(
                camera,
                clip_frames=self.sizes.clip_frames,
                window=plan.settings.sample_window if plan.settings.shuffle else 0,
                batch=batch_size,
                lanes=plan.settings.num_streams // share.count,
                ahead=ahead,
                # Batches are opened a whole window ahead of the consumer, however little of them is decoded.
                spare=2 + ahead if self._is_direct(camera) else 2,
                kept=min(kept, plan.total),
            )
            for camera in self.cameras
        }

    def ring(self, plan: Plan, ahead: int, batch_size: int) -> int:
        """Samples of one stream that are pending at most: those in the window and a batch that is not whole yet."""
        return 2 * plan.settings.sample_window + (4 + ahead) * longest_clip(self.sizes.clip_frames) + batch_size

    def memory_bound(self, share: Share, threads: int, batch_size: int = 1) -> int:
        """Bytes that one consumer keeps to at most: decoded pictures, coded clips, file indices, rows and the numbers
        of pending samples, with their windows."""
        plan, ahead = self.plan(share), threads + 2
        rooms = self.rooms(plan, share, ahead, batch_size)
        decoded = sum(rooms[camera.key].budget * camera.frame_bytes for camera in self.cameras)
        prefetch = self.prefetch(threads)
        coded = min(prefetch.clips * prefetch.clip_bytes, prefetch.coded_bytes) + threads * prefetch.clip_bytes
        pending = self.ring(plan, ahead, batch_size) * (plan.settings.num_streams // share.count)
        return decoded + coded + INDEX_BYTES + ROW_BYTES + pending * sample_bytes(self.meta, self.windows, self.cameras)

    def prefetch(self, threads: int) -> PrefetchSettings:
        """What a consumer with so many decoding threads reads ahead.

        A disk needs a few clips ahead. A network needs many reads under way, and memory to ride out its pauses.
        """
        coded = sum(float(np.mean(table.size)) for table in self.tables.values())
        longest = self.sizes.clip_frames * 3 // 2 + max((reach(camera) for camera in self.cameras), default=0)
        source, clips = self.meta.source, threads + 2
        if source.is_remote:
            # Clips ahead hold pictures that were kept for them, which must not fill the pool.
            clips = source.parallel if self.settings.memory_bytes else _MOST_CLIPS_AHEAD
        return PrefetchSettings(
            threads=source.parallel,
            clips=clips,
            coded_bytes=self.settings.fetch_bytes,
            next_epoch=threads + 2,
            clip_bytes=int(longest * coded) + 1,
        )

    def fetcher(self, metrics: Metrics, pin: Pin | None = None) -> ClipFetcher:
        settings = self.settings
        return ClipFetcher(
            self.meta,
            self.selected,
            self.cameras,
            tolerance_s=settings.tolerance_s,
            clock=settings.clock,
            skip=settings.skip,
            metrics=metrics,
            pin=pin,
        )

    def _is_direct(self, camera: Camera) -> bool:
        """Whether each picture is shown once, by a sample whose turn is known: then it needs no pool."""
        return camera.offsets is None and not self.settings.memory_bytes and not self.settings.skip

    def pipeline(
        self,
        order: ConsumerOrder,
        share: Share,
        *,
        batch_size: int,
        across_epochs: bool,
        threads: int,
        buffers: BufferPool,
        metrics: Metrics,
    ) -> Pipeline:
        """Start the threads of one consumer."""
        plan = order.plan
        ahead = threads + 2
        keep = bool(self.settings.memory_bytes)
        rooms = self.rooms(plan, share, ahead, batch_size)
        pools = {
            camera.key: FramePool(camera.shape, rooms[camera.key].capacity, rooms[camera.key].budget, keep)
            for camera in self.cameras
            if not self._is_direct(camera)
        }
        direct = [camera for camera in self.cameras if self._is_direct(camera)]
        limit = 2 + max((-(-rooms[camera.key].budget // batch_size) for camera in direct), default=0)
        buffers.spare = max(buffers.spare, limit * len(direct))
        lock = threading.RLock()

        def pin(camera: str, episode: int, frames: Int, uses: Int) -> Int:
            with lock:
                return pools[camera].pin(episode, frames, uses)

        ring = self.ring(plan, ahead, batch_size)
        assembler = Assembler(
            self.meta,
            self.windows,
            self.cameras,
            pools,
            slots=ring * len(order.streams),
            return_uint8=self.settings.return_uint8,
        )
        return Pipeline(
            order,
            self.fetcher(metrics, pin if keep else None),
            assembler,
            pools,
            OpenBatches(direct, batch_size, limit, buffers),
            buffers,
            self.make_decoder,
            PipelineSettings(
                batch_size=batch_size,
                across_epochs=across_epochs,
                threads=threads,
                prefetch=self.prefetch(threads),
                ring=ring,
                skip=self.settings.skip,
            ),
            metrics,
            lock,
        )

    def look(self, episode: int, frame: int) -> Sample:
        """One sample, read and decoded for itself alone. episode: position among the selected ones."""
        skip = self.settings.skip
        pools = {c.key: FramePool(c.shape, c.steps, c.steps, keep=False) for c in self.cameras}
        assembler = Assembler(
            self.meta, self.windows, self.cameras, pools, slots=1, return_uint8=self.settings.return_uint8
        )
        clip = self._looker.fetch(ClipWork(0, 0, 0, 0, episode, frame, frame + 1, np.ones(1, bool)))
        if skip and not clip.valid.all():
            raise PictureMatchError(f"{clip.where}, frame {frame} can't be read; the log has the reason")
        decoder = self.make_decoder()
        for part in clip.cameras:
            pool = pools[part.camera.key]
            part.slots[:] = pool.allocate(episode, part.frames, part.uses)
            decode_part(decoder, part, np.arange(len(part.frames)), pool.pictures(part.slots), clip.where)
        ring = np.zeros(1, np.int64)
        assembler.admit(clip, ring)
        return next(split(assembler.gather(ring, BufferPool(), {})))

    @cached_property
    def _looker(self) -> ClipFetcher:
        return self.fetcher(Metrics())

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process; what holds locks stays behind."""
        return {key: value for key, value in self.__dict__.items() if key != "_looker"}


def _image_shape(feature: Feature) -> tuple[int, int, int]:
    """(height, width, channels) of a camera whose shape may be declared in either order."""
    names = [str(name).lower() for name in feature.names] if isinstance(feature.names, (list, tuple)) else []
    if len(feature.shape) != 3:
        raise MetadataError(f"info.json: {feature.key!r} has shape {list(feature.shape)}, not three sizes")
    first = names[:1] in (["channels"], ["channel"], ["c"]) or (not names and feature.shape[0] in (1, 3))
    a, b, c = feature.shape
    return (b, c, a) if first else (a, b, c)
