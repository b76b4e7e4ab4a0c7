"""Rows and decoded pictures → samples and batches, by plain memory copies.

When a clip is admitted, its samples are written to a ring: the numbers of each sample, its windows and masks, and
the pool slots of its pictures. A batch is then one gather per key, whatever clips its samples come from.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from robostream.fetch import Camera, FetchedClip
from robostream.memory import scattered
from robostream.metadata import DatasetMetadata
from robostream.plan import Int
from robostream.pool import FramePool
from robostream.windows import Window, window_rows

Array = npt.NDArray[Any]
Batch = dict[str, Any]
Sample = dict[str, Any]

_POINTER = 8  # bytes, of what is no number
_BOOKKEEPING = 9  # bytes, of `valid` and `clip`

_Loans = list[tuple[Array, "weakref.ref[Array]"]]


class BufferPool:
    """Arrays that are used again once nothing refers to them any more.

    A caller that keeps a batch keeps its memory: what it holds is never written to again.

    Args:
        pin_memory: page-locked memory, from which a GPU can copy by itself.

    Attributes:
        spare: arrays of a kind that are kept while nobody uses them.
    """

    def __init__(self, pin_memory: bool = False) -> None:
        self.spare = 8
        self._pin = pin_memory
        self._lock = threading.Lock()
        # Memory, and what it was last lent as, the oldest loan first. No callbacks tell when a loan is over: an
        # interrupt that came while one ran would be lost.
        self._loans: defaultdict[tuple[tuple[int, ...], str], _Loans] = defaultdict(list)

    def get(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        """An array with undefined contents."""
        key = (shape, np.dtype(dtype).str)
        with self._lock:
            loans = self._loans[key]
            # As a rule, what was lent first comes back first.
            over = next((i for i, (_, lent) in enumerate(loans) if lent() is None), None)
            base = self._allocate(shape, np.dtype(dtype)) if over is None else loans.pop(over)[0]
            array: Array = base.view()
            loans.append((base, weakref.ref(array)))
            if over is not None:
                self._trim(loans)
        return array

    def _trim(self, loans: _Loans) -> None:
        """Give memory back where much lies idle, as it does when a caller drops what it kept for long."""
        idle = next((i for i, (_, lent) in enumerate(loans) if lent() is not None), 0)
        if idle > self.spare:
            del loans[: idle - self.spare]

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if not self._pin:
            return scattered(shape, dtype)
        pinned: Array = torch.empty(shape, dtype=_TORCH[dtype], pin_memory=True).numpy()
        return pinned


_TORCH = {
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.bool_): torch.bool,
}


def sample_bytes(meta: DatasetMetadata, windows: Mapping[str, Window], cameras: Sequence[Camera]) -> int:
    """Bytes of a pending sample: its numbers with their windows, its masks, the slots of its pictures."""
    steps = {key: len(window.offsets) for key, window in windows.items()}
    numbers = sum(
        math.prod(f.shape) * _item_bytes(f.dtype) * steps.get(f.key, 1)
        for f in meta.features.values()
        if not f.is_camera
    )
    slots = sum(camera.steps * np.dtype(np.int64).itemsize for camera in cameras)
    return numbers + slots + sum(steps.values()) + _BOOKKEEPING


def _item_bytes(dtype: str) -> int:
    try:
        return np.dtype(dtype).itemsize or _POINTER
    except TypeError:
        return _POINTER


class Assembler:
    """Holds the pending samples of one consumer and makes batches of them.

    Args:
        meta: the dataset. windows: of each key that has one. cameras: what is decoded.
        pools: the decoded pictures, by camera; those of other cameras are decoded straight to batches.
        slots: samples that the ring holds.
        return_uint8: video pictures stay uint8 instead of float32 in [0, 1].
    """

    def __init__(
        self,
        meta: DatasetMetadata,
        windows: Mapping[str, Window],
        cameras: Sequence[Camera],
        pools: Mapping[str, FramePool],
        *,
        slots: int,
        return_uint8: bool,
    ) -> None:
        self._meta = meta
        self._windows = dict(windows)
        self._cameras = list(cameras)
        self._pools = pools
        self._return_uint8 = return_uint8
        self._tabular = [f for f in meta.features.values() if not f.is_camera]
        self._numbers: dict[str, Array] = {}
        self._pads = {key: np.zeros((slots, len(w.offsets)), bool) for key, w in windows.items()}
        self._pictures = {c.key: np.zeros((slots, c.steps), np.int64) for c in cameras if c.key in pools}
        self._slots = slots
        self.valid = np.zeros(slots, bool)
        self.clip = np.zeros(slots, np.int64)

    def admit(self, clip: FetchedClip, ring: Int) -> None:
        """Write a clip's samples to ring entries `ring`, int64 [n]. Slots of pictures must be set in its parts."""
        self.valid[ring] = clip.valid
        self.clip[ring] = clip.work.number
        if not clip.rows:
            return
        length = len(clip.rows["episode_index"])
        rows = {}
        for key, window in self._windows.items():
            rows[key], self._pads[key][ring] = window_rows(clip.samples, window.offsets, length)
        for feature in self._tabular:
            picked = clip.rows[feature.key][rows.get(feature.key, clip.samples)]
            self._number_ring(feature.key, picked)[ring] = picked
        for part in clip.cameras:
            if len(part.frames) and part.camera.key in self._pictures:
                self._pictures[part.camera.key][ring] = part.slots[part.index]

    def _number_ring(self, key: str, like: Array) -> Array:
        if key not in self._numbers:
            self._numbers[key] = np.zeros((self._slots, *like.shape[1:]), like.dtype)
        return self._numbers[key]

    def pictures(self, ring: Int) -> dict[str, Int]:
        """Pool slots that samples show, int64 [n × steps], by camera."""
        return {key: slots[ring].ravel() for key, slots in self._pictures.items()}

    def broken(self, ring: Int) -> npt.NDArray[np.bool_]:
        """bool [n]: whether a sample shows a picture that could not be decoded."""
        broken = np.zeros(len(ring), bool)
        for key, slots in self._pictures.items():
            broken |= self._pools[key].broken[slots[ring]].any(axis=1)
        return broken

    def gather(self, ring: Int, buffers: BufferPool, ready: Mapping[str, Array]) -> Batch:
        """The samples of ring entries `ring` (int64 [n]) as one batch.

        ready: pictures of cameras without a pool, in this order, uint8 [n or more, H, W, C].
        Numbers: tensors [n, …]. Masks: bool [n, T]. Pictures: [n, (T,) C, H, W], views of channels-last memory.
        `task`: list of n strings. Strings: lists.
        """
        batch: Batch = {}
        for key, values in self._numbers.items():
            picked = values.take(ring, axis=0)
            batch[key] = picked.tolist() if picked.dtype == object else torch.from_numpy(picked)
        for camera in self._cameras:
            raw = ready.get(camera.key)
            if raw is None:
                raw = self._gather_pictures(camera, ring, buffers)
            batch[camera.key] = self._as_pictures(camera, torch.from_numpy(raw)[: len(ring)], buffers)
        for key, pads in self._pads.items():
            batch[f"{key}_is_pad"] = torch.from_numpy(pads.take(ring, axis=0))
        if "task_index" in self._numbers and self._meta.tasks:
            tasks = self._meta.tasks
            batch["task"] = [tasks[i] for i in self._numbers["task_index"].take(ring).tolist()]
        return batch

    def _gather_pictures(self, camera: Camera, ring: Int, buffers: BufferPool) -> Array:
        pixels = self._pools[camera.key].pixels
        slots = self._pictures[camera.key].take(ring, axis=0).ravel()
        time = (camera.steps,) if camera.steps > 1 else ()
        raw = buffers.get((len(ring), *time, *camera.shape), np.uint8)
        # mode="clip" lets NumPy write straight to `out`; the slots are always in range.
        flat = raw.reshape(len(slots), -1)
        np.take(pixels.reshape(len(pixels), -1), slots, axis=0, out=flat, mode="clip")
        return raw

    def _as_pictures(self, camera: Camera, pictures: torch.Tensor, buffers: BufferPool) -> torch.Tensor:
        if not (self._return_uint8 and camera.is_video):
            scaled = torch.from_numpy(buffers.get(tuple(pictures.shape), np.float32))
            pictures = torch.div(pictures, 255.0, out=scaled)
        return pictures.movedim(-1, -3)


def split(batch: Batch) -> Iterator[Sample]:
    """The samples of a batch, as views of it."""
    for values in zip(*batch.values(), strict=True):
        yield dict(zip(batch, values, strict=True))
