"""`StreamingLeRobotDataset`: the public face. It ties the stages together and leaves the work to them."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from robostream.assemble import Batch, BufferPool, Sample, split
from robostream.build import Blueprint, Settings, Share, decoder_factory
from robostream.checks import check_whole, sample_index
from robostream.consumer import ConsumerOrder
from robostream.decode_device import check_decode_device
from robostream.distributed import resolve_rank
from robostream.epochs import EpochCounter
from robostream.errors import SettingError, StateError
from robostream.fetch import Camera
from robostream.machine import cores
from robostream.metadata import DatasetMetadata, Feature, load_metadata, select_episodes
from robostream.metrics import Board
from robostream.pipeline import Pipeline, Position
from robostream.plan import Plan
from robostream.running import RunningPipeline
from robostream.source import Access, RetryPolicy, open_source
from robostream.state import State, make_state, read_state, worker_shares
from robostream.windows import resolve_windows

Transform = Callable[[torch.Tensor], torch.Tensor]
Windows = Mapping[str, Sequence[float]]

_BLOCK = 8  # samples gathered at once for sample-wise iteration
_MAX_WORKERS = 1024


class StreamingLeRobotDataset(IterableDataset[Sample]):
    """Streams a LeRobot dataset (v3.0, v2.1, v2.0), each frame exact and decoded once.

    A drop-in for `lerobot.datasets.StreamingLeRobotDataset`: lerobot's arguments come first, in its order. A sample
    is what lerobot's map-style `LeRobotDataset[i]` returns for the same frame; see `docs/samples.md`.

    Works in a `torch.utils.data.DataLoader` with any number of workers, started by fork or spawn, persistent or
    not: the samples are split over the workers. `StreamLoader` is faster: it makes whole batches with threads.

    Each iteration is the next epoch, in another order. With `shuffle=False` the order is that of the dataset.

    Args:
        repo_id: name of the dataset on the Hugging Face Hub. With `root` it is a label only.
        root: folder of the dataset, or URL. With a local folder no network is used.
        episodes: indices of the episodes to use; None for all. They come in the dataset's order.
        image_transforms: called with each RGB picture, [C, H, W] or [T, C, H, W], after windows are stacked.
        delta_timestamps: for each key, offsets in seconds from the frame; each must be a multiple of 1/fps. Or a
            function that makes them of the dataset's metadata.
        tolerance_s: how far offsets may lie from multiples of 1/fps, and pictures' times from rows' times.
        revision: tag, branch or commit on the Hub; by default its main branch. `meta.revision` is the commit that it
            meant when the dataset was opened, which is read throughout.
        force_cache_sync: fetch the Hub's metadata again.
        streaming: accepted for lerobot's sake; this class always streams.
        buffer_size: the shuffle window in decoded frames, for each rank, shared out among its workers. With
            `num_streams`, for the whole job. Memory grows with it: about this many frames of each camera.
        max_num_shards: accepted for lerobot's sake; data is split by streams, not by files.
        seed: of the order. The same on all ranks.
        rng: its next integer is the seed, if given.
        shuffle: whether to shuffle.
        return_uint8: video pictures as uint8 instead of float32 in [0, 1]: a quarter of the memory traffic. Images
            stored in Parquet stay float32, as in lerobot.
        rank, world_size: of this process; by default from Accelerate, torch.distributed or the environment.
        video_decoder_cache_size: accepted for lerobot's sake; nothing is sought, so there is no decoder to cache.
        data_files_root: folder or URL from which data/ and videos/ are read, with the metadata of `root` or
            `repo_id`, or without either its own; see `docs/sources.md`.
        video_decode_device: "cpu". `robostream diagnose` says what a GPU could decode.
        cameras: the camera keys to use; None for all.
        features: the other keys to use; index columns always stay.
        timestamps: "check" holds the rows' clock against the video's; "index" takes picture k for row k.
        on_error: "raise", or "skip" to leave out what can't be read, counted in `metrics()` and logged once.
        video_backend: "pyav" or "torchcodec"; the pixels are the same.
        memory_bytes: keep decoded pictures for the next epoch, within this memory for each rank. A dataset that
            fits is decoded once.
        clip_frames: frames that are decoded as a unit; by default from keyframe spacing and windows.
        num_streams: how many sequences the plan has; a multiple of ranks × workers, which is the default. Fix it
            to get the same order on any number of ranks.
        even: all ranks yield equally many samples; what is left over is skipped, other samples each epoch.
        repeat: go on to the next epoch without an end.
        num_threads: decoding threads; by default one for each core, shared out among workers.
        repo_type: "dataset", or "bucket" where `repo_id` names a bucket of the Hub.
        token: of the Hub; by default the one that is stored or in HF_TOKEN; False for none.
        storage_options: for the source that a URL names, as fsspec takes them: credentials, endpoints, headers.
        cache_dir: keep the byte ranges that were read from a remote source here; by default they are not kept.
        cache_bytes: bound of `cache_dir`; the least recently used ranges go first.
        retry: how patient reads of remote sources are.
        fetch_bytes: coded video that each consumer reads ahead of its decoding from a remote source, at most.

    Raises:
        AccessError, SourceUnavailableError, SourceChangedError: a remote source refuses, fails, or changes.
        MetadataError, UnsupportedVersionError: the dataset is broken, or of another format.
        SelectionError: `episodes`, `cameras` or `features` ask for what is not there.
        WindowError: an offset is not a multiple of 1/fps, or of an unknown key.
        SettingError: an argument's value can't work.
    """

    def __init__(
        self,
        repo_id: str | None = None,
        root: str | os.PathLike[str] | None = None,
        episodes: Sequence[int] | None = None,
        image_transforms: Transform | None = None,
        delta_timestamps: Windows | Callable[[DatasetMetadata], Windows | None] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        streaming: bool = True,
        buffer_size: int = 1000,
        max_num_shards: int = 16,
        seed: int = 42,
        rng: np.random.Generator | None = None,
        shuffle: bool = True,
        return_uint8: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        video_decoder_cache_size: int | None = None,
        data_files_root: str | os.PathLike[str] | None = None,
        video_decode_device: str = "cpu",
        *,
        cameras: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        timestamps: Literal["check", "index"] = "check",
        on_error: Literal["raise", "skip"] = "raise",
        video_backend: Literal["pyav", "torchcodec"] = "pyav",
        memory_bytes: int | None = None,
        clip_frames: int | None = None,
        num_streams: int | None = None,
        even: bool = False,
        repeat: bool = False,
        num_threads: int | None = None,
        repo_type: Literal["dataset", "bucket"] = "dataset",
        token: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int = 10 << 30,
        retry: RetryPolicy | None = None,
        fetch_bytes: int = 256 << 20,
    ) -> None:
        super().__init__()
        _one_of("timestamps", timestamps, ("check", "index"))
        _one_of("on_error", on_error, ("raise", "skip"))
        check_decode_device(video_decode_device)
        if image_transforms is not None and not callable(image_transforms):
            raise SettingError(f"image_transforms={image_transforms!r} can't be called")
        if num_threads is not None:
            check_whole("num_threads", num_threads, least=1)
        self.repo_id = repo_id
        self.image_transforms = image_transforms
        self.repeat = repeat
        self.num_threads = num_threads
        self.rank, self.world_size = resolve_rank(rank, world_size)
        settings = Settings(
            seed=seed if rng is None else int(rng.integers(2**31)),
            shuffle=shuffle,
            even=even,
            buffer_size=buffer_size,
            num_streams=num_streams,
            clip_frames=clip_frames,
            memory_bytes=memory_bytes,
            tolerance_s=tolerance_s,
            clock=timestamps,
            skip=on_error == "skip",
            return_uint8=return_uint8,
            fetch_bytes=fetch_bytes,
        )
        opened = open_source(
            repo_id=repo_id,
            revision=revision,
            repo_type=repo_type,
            root=root,
            data_files_root=data_files_root,
            access=Access(
                token, storage_options or {}, retry or RetryPolicy(), cache_dir, cache_bytes, force_cache_sync
            ),
        )
        self.meta: DatasetMetadata = load_metadata(
            opened.source,
            cameras=cameras,
            features=features,
            episodes=episodes,
            skip=on_error == "skip",
            repo_id=repo_id,
            revision=opened.revision or revision,
            root=opened.folder,
        )
        if callable(delta_timestamps):
            delta_timestamps = delta_timestamps(self.meta)
        windows = resolve_windows(delta_timestamps, self.meta.features, self.meta.info.fps, tolerance_s)
        self.blueprint = Blueprint(
            self.meta, select_episodes(self.meta.episodes, episodes), windows, settings, decoder_factory(video_backend)
        )
        self.blueprint.plan(self._share())  # refuses what cannot work before any data flows
        self._epochs = EpochCounter()
        self._resume_left: torch.Tensor = torch.zeros(_MAX_WORKERS, dtype=torch.bool)
        self._in_workers: torch.Tensor = torch.zeros(1, dtype=torch.bool)
        for shared in (self._resume_left, self._in_workers):
            shared.share_memory_()  # type: ignore[no-untyped-call]
        self._board = Board()
        self._metrics = self._board.metrics()
        self._buffers = BufferPool()  # for iteration sample by sample
        self._pipeline: RunningPipeline | None = None
        self._resume: State | None = None
        self._block = Position(0, ())  # where the block of samples began that is being handed out
        self._handed = 0

    # What lerobot's class has, too ---------------------------------------------------------------------------------

    @property
    def fps(self) -> int | float:
        return self.meta.fps

    @property
    def num_frames(self) -> int:
        """Frames of the selected episodes, over all ranks."""
        return int(self.blueprint.lengths.sum())

    @property
    def num_episodes(self) -> int:
        """Selected episodes."""
        return len(self.blueprint.selected)

    @property
    def features(self) -> dict[str, Feature]:
        return self.meta.features

    @property
    def delta_timestamps(self) -> dict[str, list[float]]:
        """Offsets in seconds, by key, as they are used."""
        return {k: (w.offsets / float(self.meta.info.fps)).tolist() for k, w in self.blueprint.windows.items()}

    def __len__(self) -> int:
        """Samples that this rank yields in the next epoch."""
        epoch = self._epochs.next()
        return self._order(self._worker_share(0, 1), Position(epoch, ())).epoch_length(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the next one to be iterated, in this process and in DataLoader workers."""
        check_whole("epoch", epoch, least=0)
        self._epochs.set(epoch)
        self._resume = None

    # Iteration -----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Sample]:
        """The samples of this rank's (and worker's) next epoch; with `repeat`, of all epochs from there on."""
        # With samples left out, a block says too little of where each of its samples stood.
        size = 1 if self.blueprint.settings.skip else _BLOCK
        # Begun now, not at the first sample: all workers must be at the same epoch, also those that are never asked.
        return self._samples(self.batches(size, self._buffers))

    def _samples(self, batches: Iterator[Batch]) -> Iterator[Sample]:
        transform = self.image_transforms
        for batch in batches:
            for k, sample in enumerate(split(batch)):
                if transform is not None:
                    self._transform(sample, transform)
                self._handed = k + 1
                yield sample

    def batches(self, size: int, buffers: BufferPool) -> Generator[Batch, None, None]:
        """Batches of `size` samples in order; the last of an epoch may be short."""
        return self._batches(self._start(size, buffers))

    def _batches(self, pipeline: Pipeline) -> Generator[Batch, None, None]:
        epoch = pipeline.position.epoch
        finished = False
        try:
            while True:
                self._block, self._handed = pipeline.position, 0
                batch = pipeline.take()
                if batch is None:
                    finished = True
                    return
                if self.repeat and pipeline.position.epoch != epoch:
                    epoch = pipeline.position.epoch
                    self._epochs.begun(epoch)
                yield batch
                del batch  # else its memory would be taken while the next one is made
        finally:
            # A finished epoch leaves its threads at work on the next one; anything else ends them.
            if not finished:
                self.close()

    def _start(self, size: int, buffers: BufferPool) -> Pipeline:
        """The pipeline of this process, at the start of its next epoch (or where a loaded state says)."""
        if self._metrics.pid != os.getpid():
            self._metrics = self._board.metrics()
        share = self._share()
        share, start = self._resumed(share) or (share, Position(self._epochs.next(), ()))
        self._epochs.begun(start.epoch)
        self._in_workers[0] = get_worker_info() is not None
        running = self._pipeline
        if running is not None and running.continues(share, start, size, buffers):
            return running.pipeline
        self.close()
        order = self._order(share, start)
        self._check_not_empty(order.plan)
        pipeline = self.blueprint.pipeline(
            order,
            share,
            batch_size=size,
            across_epochs=self.repeat,
            threads=self.num_threads or _threads(),
            buffers=buffers,
            metrics=self._metrics,
        )
        self._pipeline = RunningPipeline(pipeline, share, self)
        return pipeline

    def _resumed(self, share: Share) -> tuple[Share, Position] | None:
        """Where a loaded state says to begin, once for each worker; None afterwards."""
        worker = self._worker()
        if self._resume is None or not self._resume_left[worker]:
            return None
        self._resume_left[worker] = False
        # Workers take turns, and a new DataLoader begins with worker 0: it goes on with whose turn it was.
        workers = share.per_rank
        share = self._worker_share((worker + int(self._resume.get("turn", 0))) % workers, workers)
        plan = self.blueprint.plan(share)
        epoch, consumed = read_state(
            self._resume, self.blueprint.fingerprint(plan), self.blueprint.streams(plan, share)
        )
        return share, Position(epoch, tuple(consumed))

    def _check_not_empty(self, plan: Plan) -> None:
        streams = plan.settings.num_streams
        if self.blueprint.settings.even and plan.total < streams:
            raise SettingError(
                f"even=True leaves nothing of {plan.total} samples over {streams} streams (ranks × workers)"
            )

    def _order(self, share: Share, start: Position) -> ConsumerOrder:
        plan = self.blueprint.plan(share)
        streams = self.blueprint.streams(plan, share)
        return ConsumerOrder(plan, streams, start.epoch, start.consumed or [0] * len(streams))

    def _worker(self) -> int:
        info = get_worker_info()
        return info.id if info else 0

    def _share(self) -> Share:
        info = get_worker_info()
        return self._worker_share(info.id, info.num_workers) if info else self._worker_share(0, 1)

    def _worker_share(self, worker: int, workers: int) -> Share:
        """The share of one of this rank's workers."""
        return Share(self.rank * workers + worker, self.world_size * workers, self.world_size)

    def _transform(self, sample: Sample, transform: Transform) -> None:
        for key in self.transformed_keys:
            sample[key] = transform(sample[key])

    @property
    def transformed_keys(self) -> list[str]:
        """The cameras that `image_transforms` is for."""
        return [camera.key for camera in self.blueprint.cameras]

    # Random access ---------------------------------------------------------------------------------------------------

    def __getitem__(self, index: int) -> Sample:
        """Sample `index` in dataset order (0 … num_frames − 1). A clip is decoded for it: for a look, not to train.

        Raises IndexError outside, TypeError for what is no integer, and what iteration raises.
        """
        index = sample_index(index)
        total = self.num_frames
        if not -total <= index < total:
            raise IndexError(f"index {index} is outside of {total} frames")
        index %= total
        ends = np.cumsum(self.blueprint.lengths)
        episode = int(np.searchsorted(ends, index, "right"))
        frame = index - int(ends[episode] - self.blueprint.lengths[episode])
        sample = self.blueprint.look(episode, frame)
        if self.image_transforms is not None:
            self._transform(sample, self.image_transforms)
        return sample

    # State ---------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """Where the running iteration stands; the start of the next epoch if there is none."""
        if self._pipeline is not None:
            return self._pipeline.pipeline.position
        return Position(self._epochs.next(), ())

    def state_dict(self) -> State:
        """Where this process stands after the last sample that it yielded; JSON-able.

        Raises StateError where DataLoader workers do the iterating: only they know, and they run ahead of the
        training loop. `StreamLoader` and torchdata's `StatefulDataLoader` know; with a plain DataLoader, use
        `state_after`.
        """
        if get_worker_info() is None and self._pipeline is None and self._in_workers[0]:
            raise StateError(
                "DataLoader workers iterate this dataset, and they run ahead of the training loop. Take the state from "
                "StreamLoader or torchdata's StatefulDataLoader, or use dataset.state_after(batches, …)"
            )
        if self._pipeline is None or not self._handed:
            return self.state_at()
        order = self._order(self._pipeline.share, self._block)
        return self.state_at(Position(*order.after(self._handed)))

    def state_at(self, position: Position | None = None) -> State:
        """The state of this process's streams at a position; by default where it stands now."""
        if position is None and self._resume is not None and self._resume_left[self._worker()]:
            return self._resume
        position = position or self.position
        share = self._pipeline.share if self._pipeline is not None else self._share()
        plan = self.blueprint.plan(share)
        streams = self.blueprint.streams(plan, share)
        consumed = position.consumed or [0] * len(streams)
        return make_state(self.blueprint.fingerprint(plan), position.epoch, streams, consumed)

    def state_after(self, batches: int, *, batch_size: int, num_workers: int, epoch: int) -> State:
        """The state of this rank after a plain DataLoader with workers handed over `batches` batches of an epoch.

        The count is the training loop's; for an epoch that was begun from a state, it counts from the epoch's start.
        """
        shares = (self._worker_share(worker, num_workers) for worker in range(num_workers))
        orders = [self._order(share, Position(epoch, ())) for share in shares]
        lengths = [order.epoch_length(epoch) for order in orders]
        counts, turn = worker_shares(batches, [-(-length // batch_size) for length in lengths])
        taken: dict[int, int] = {}
        for order, count, length in zip(orders, counts, lengths, strict=True):
            taken |= zip(order.streams, order.after(min(count * batch_size, length))[1], strict=True)
        state = make_state(self.blueprint.fingerprint(orders[0].plan), epoch, list(taken), list(taken.values()))
        return {**state, "workers": num_workers, "turn": turn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at a saved state. Raises StateError, naming the difference, if it is of another
        dataset, seed or setting."""
        if not isinstance(state, Mapping):
            raise StateError(f"this is not a state of robostream: {state!r}")
        info = get_worker_info()
        workers = int(state.get("workers", 1)) if info is None else info.num_workers
        worker = self._worker()
        share = self._worker_share(worker, workers)
        plan = self.blueprint.plan(share)
        epoch, _ = read_state(state, self.blueprint.fingerprint(plan), self.blueprint.streams(plan, share))
        self.close()
        self._resume = dict(state)
        self._epochs.set(epoch)
        self._resume_left[slice(None) if info is None else worker] = True

    # The rest --------------------------------------------------------------------------------------------------------

    @property
    def cameras(self) -> list[Camera]:
        """The cameras that are decoded."""
        return self.blueprint.cameras

    @property
    def return_uint8(self) -> bool:
        return self.blueprint.settings.return_uint8

    @property
    def memory_bound(self) -> int:
        """Bytes that one consumer of this dataset keeps to at most, besides the batches that are handed out."""
        return self.memory_bound_of(1)

    def memory_bound_of(self, batch_size: int) -> int:
        """The same for a consumer that makes batches of this size."""
        return self.blueprint.memory_bound(self._share(), self.num_threads or _threads(), batch_size)

    def metrics(self) -> dict[str, float]:
        """Counters and stage timings so far, of this process and its DataLoader workers; see `robostream.metrics`."""
        return self._board.snapshot() | self.meta.source.board.snapshot()

    def close(self) -> None:
        """End all threads and free decoded pictures. Iterating again starts anew."""
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy for another process: threads and counts stay behind."""
        return {**self.__dict__, "_pipeline": None, "_metrics": None, "_buffers": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._metrics, self._buffers = self._board.metrics(), BufferPool()


def _threads() -> int:
    """Decoding threads: the cores that this process may use, shared out among DataLoader workers."""
    info = get_worker_info()
    return max(1, cores() // (info.num_workers if info else 1))


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingError(f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}")
