"""The data of a training job: endless batches for this rank, and where the whole job stands."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
from accelerate.utils import gather_object
from policy import ACTION
from torch.utils.data import DataLoader

from robostream import StreamingLeRobotDataset, StreamLoader, merge_states
from robostream.errors import StateError
from robostream.metadata import DatasetMetadata

Batch = dict[str, Any]
State = dict[str, Any]


class Batches(Protocol):
    """Endless batches of one rank."""

    def __iter__(self) -> Iterator[Batch]: ...

    def state(self) -> State:
        """Where this rank stands after the last batch that it was given."""

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of a whole job."""


class ThreadBatches:
    """From `StreamLoader`: threads of this process, epoch after epoch without a gap. The faster way."""

    def __init__(self, dataset: StreamingLeRobotDataset, batch_size: int, device: torch.device) -> None:
        self._loader = StreamLoader(dataset, batch_size, device=device)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._loader)

    def state(self) -> State:
        return self._loader.state_dict()

    def resume(self, state: Mapping[str, Any]) -> None:
        self._loader.load_state_dict({key: state[key] for key in ("epoch", "consumed", "fingerprint")})


class WorkerBatches:
    """From PyTorch's `DataLoader` and its worker processes. They run ahead, so this loop counts the batches."""

    def __init__(self, dataset: StreamingLeRobotDataset, batch_size: int, workers: int, device: torch.device) -> None:
        self._dataset, self._size, self._workers, self._device = dataset, batch_size, workers, device
        self._loader: DataLoader[Any] = DataLoader(
            dataset, batch_size, num_workers=workers, pin_memory=device.type == "cuda"
        )
        self._epoch, self._count = 0, 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            for batch in self._loader:
                self._count += 1
                yield {k: v.to(self._device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
            self._epoch, self._count = self._epoch + 1, 0

    def state(self) -> State:
        state = self._dataset.state_after(
            self._count, batch_size=self._size, num_workers=self._workers, epoch=self._epoch
        )
        return {**state, **self._layout, "batches": self._count}

    @property
    def _layout(self) -> dict[str, int]:
        return {"ranks": self._dataset.world_size, "workers": self._workers, "batch_size": self._size}

    def resume(self, state: Mapping[str, Any]) -> None:
        saved = {key: state.get(key) for key in self._layout}
        if saved != self._layout:  # what each worker has handed over could not be told from a count then
            raise SystemExit(
                f"--loader workers goes on only as it was saved ({saved}, now {self._layout}); use --loader threads"
            )
        self._dataset.load_state_dict(state)
        self._epoch, self._count = int(state["epoch"]), int(state["batches"])


def source_of(options: Namespace) -> dict[str, Any]:
    """Where the dataset is."""
    return {"repo_id": options.repo_id, "root": options.root, "data_files_root": options.data_files_root}


def open_dataset(
    options: Namespace, meta: DatasetMetadata, episodes: list[int] | None, **settings: Any
) -> StreamingLeRobotDataset:
    """The dataset of the options, with chunks of actions; its rank comes from Accelerate."""
    steps = [step / meta.fps for step in range(options.n_action_steps)]
    return StreamingLeRobotDataset(
        **source_of(options),
        episodes=episodes,
        delta_timestamps={ACTION: steps} if ACTION in meta.features else None,
        return_uint8=True,
        buffer_size=options.buffer_size,
        video_decoder_cache_size=options.video_decoder_cache_size,
        seed=options.seed,
        **settings,
    )


def split_episodes(meta: DatasetMetadata, held_out: int) -> tuple[list[int] | None, list[int]]:
    """(episodes to train on, episodes held out): the last ones are held out. None: all."""
    if not held_out:
        return None, []
    known = meta.episodes.index.tolist()
    if not 0 < held_out < len(known):
        raise SystemExit(f"--val_episodes {held_out}: the dataset has {len(known)} episodes")
    return known[:-held_out], known[-held_out:]


def training_batches(
    options: Namespace, meta: DatasetMetadata, episodes: list[int] | None, device: torch.device
) -> tuple[StreamingLeRobotDataset, Batches]:
    """What this rank trains on."""
    shared = {"num_streams": options.num_streams, "even": options.even}
    if options.loader == "threads":
        threads = options.num_workers or None
        dataset = open_dataset(options, meta, episodes, repeat=True, num_threads=threads, **shared)
        return dataset, ThreadBatches(dataset, options.batch_size, device)
    if not options.num_workers or not options.even:
        raise SystemExit("--loader workers needs --num_workers of at least 1, and --even")
    dataset = open_dataset(options, meta, episodes, **shared)
    return dataset, WorkerBatches(dataset, options.batch_size, options.num_workers, device)


def job_state(batches: Batches) -> State | None:
    """Where the whole job stands, from all ranks; None in the few steps in which they are in different epochs."""
    try:
        return merge_states(gather_object([batches.state()]))
    except StateError:
        return None
