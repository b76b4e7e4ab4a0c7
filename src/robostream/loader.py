"""`StreamLoader`: whole batches, made by threads in reused memory, with exact state."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

import torch
from typing_extensions import Self

from robostream import threads
from robostream.assemble import Batch, BufferPool, split
from robostream.checks import check_whole
from robostream.dataset import StreamingLeRobotDataset
from robostream.pipeline import Position
from robostream.state import State


@dataclass(frozen=True, eq=False)
class _Made:
    """A batch, and where the stream stands after it. copied: when its copy to the device is done."""

    batch: Batch
    after: Position
    copied: torch.cuda.Event | None = None


class StreamLoader:
    """Makes batches of a `StreamingLeRobotDataset` with threads of this process, without worker processes.

    Each `for` is one epoch (or the rest of one, after `load_state_dict`); with the dataset's `repeat=True`, one
    that never ends. Batches are dicts: tensors `[B, …]`, pictures `[B, (T,) C, H, W]`, strings as lists. The memory
    of a batch is used again once nothing refers to its tensors; a batch that is kept is never overwritten.

    Args:
        dataset: what to load; it is this loader's alone while it iterates.
        batch_size: samples in a batch, B.
        drop_last: leave out the last batch of an epoch if it is short.
        prefetch: batches made ahead.
        device: where batches go; copied asynchronously from pinned memory if it is a GPU.
        contiguous: pictures as contiguous memory. By default they are views of channels-last memory, which costs
            nothing to make and is what convolutions prefer.

    Raises:
        SettingError: a number is out of range.
    """

    def __init__(
        self,
        dataset: StreamingLeRobotDataset,
        batch_size: int = 64,
        *,
        drop_last: bool = False,
        prefetch: int = 2,
        device: str | torch.device | None = None,
        contiguous: bool = False,
    ) -> None:
        for name, value in (("batch_size", batch_size), ("prefetch", prefetch)):
            check_whole(name, value, least=1)
        self.dataset = dataset
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.prefetch = prefetch
        self.device = torch.device(device) if device is not None else None
        self._contiguous = contiguous
        self._buffers = BufferPool(pin_memory=self.device is not None and self.device.type == "cuda")
        self._after: Position | None = None

    def __len__(self) -> int:
        """Batches in the next epoch of this rank."""
        samples = len(self.dataset)
        return samples // self.batch_size if self.drop_last else math.ceil(samples / self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        handover = _Handover(self.prefetch)
        worker = threads.start(partial(self._produce, handover), "batches", handover.stop)
        finished = False
        try:
            while True:
                item = handover.get()
                if item is None:
                    finished = True
                    return
                if isinstance(item, BaseException):
                    raise item
                if item.copied is not None:
                    torch.cuda.current_stream(self.device).wait_event(item.copied)
                self._after = item.after
                yield item.batch
                del item  # its memory is free for the next batch as soon as the caller drops it
        finally:
            handover.stop()
            # In one of our own threads this is the garbage collector: then the worker ends the rest by itself.
            if not threading.current_thread().name.startswith("robostream"):
                if not finished:
                    self.dataset.close()
                worker.join()

    def _produce(self, handover: _Handover) -> None:
        last: BaseException | None = None
        try:
            with closing(self.dataset.batches(self.batch_size, self._buffers)) as batches:
                for batch in batches:
                    if self.drop_last and _size(batch) < self.batch_size:
                        continue
                    if not handover.put(self._finish(batch)):
                        return
                    del batch
        except BaseException as error:  # the consumer raises it
            last = error
        handover.put(last)

    def _finish(self, batch: Batch) -> _Made:
        """The last steps of a batch: transforms, layout, and the way to the device."""
        transform = self.dataset.image_transforms
        if transform is not None:
            samples = list(split(batch))
            for key in self.dataset.transformed_keys:
                batch[key] = torch.stack([transform(sample[key]) for sample in samples])
        if self._contiguous:
            batch = {k: v.contiguous() if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        after = self.dataset.position
        if self.device is None or self.device.type != "cuda":
            return _Made({k: self._to_device(v) for k, v in batch.items()}, after)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            moved = {k: self._to_device(v) for k, v in batch.items()}
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
        # The host memory is lent out again when `batch` is dropped, so hold on to it until the copy is done.
        copied.synchronize()
        return _Made(moved, after, copied)

    def _to_device(self, value: Any) -> Any:
        if self.device is None or not isinstance(value, torch.Tensor):
            return value
        return value.to(self.device, non_blocking=True)

    def state_dict(self) -> State:
        """Where this rank stands after the last batch that was handed over; JSON-able."""
        return self.dataset.state_at(self._after)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state: the next batch is the one that would have come next.

        Raises StateError, naming the difference, if the state belongs to another dataset, seed or setting.
        """
        self.dataset.load_state_dict(state)
        self._after = None

    def metrics(self) -> dict[str, float]:
        """Counters and stage timings so far; see `robostream.metrics.Metrics`."""
        return self.dataset.metrics()

    @property
    def memory_bound(self) -> int:
        """Bytes that this loader keeps to at most: decoded and coded pictures, rows, and batches."""
        pictures = sum(c.steps * c.frame_bytes * (1 if self._stays_uint8(c.key) else 5) for c in self.dataset.cameras)
        return self.dataset.memory_bound_of(self.batch_size) + (self.prefetch + 3) * self.batch_size * pictures

    def _stays_uint8(self, key: str) -> bool:
        return self.dataset.return_uint8 and self.dataset.features[key].is_video

    def close(self) -> None:
        """End all threads and free decoded pictures. Iterating again starts anew."""
        self.dataset.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _size(batch: Batch) -> int:
    return len(next(iter(batch.values())))


class _Handover:
    """Hands batches from the thread that makes them to the one that consumes them, a few ahead.

    Of simple queues only: those of `queue.Queue` are Python code, where an interrupt in the consumer may leave a lock
    taken for good.
    """

    def __init__(self, ahead: int) -> None:
        self.stopped = False
        self._items: queue.SimpleQueue[_Made | BaseException | None] = queue.SimpleQueue()
        self._permits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(ahead):
            self._permits.put(None)

    def stop(self) -> None:
        self.stopped = True

    def put(self, item: _Made | BaseException | None) -> bool:
        """Hand an item over once there is room; False if the consumer has stopped."""
        while not self.stopped:
            try:
                self._permits.get(timeout=0.1)
            except queue.Empty:
                continue
            self._items.put(item)
            return True
        return False

    def get(self) -> _Made | BaseException | None:
        item = self._items.get()
        self._permits.put(None)
        return item
