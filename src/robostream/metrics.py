"""Counters and stage timings of a dataset, summed over its process and its DataLoader workers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import get_worker_info

NAMES = (
    "samples",
    "samples_skipped",
    "clips",
    "frames_decoded",
    "frames_reused",
    "pool_hits",
    "pool_misses",
    "pool_evictions",
    "bytes_needed",
    "bytes_read",
    "requests",
    "retries",
    "cache_hits",
    "episodes_drifted",
    "fetch_s",
    "decode_s",
    "wait_s",
    "assemble_s",
    "first_byte_s",
)
"""What is counted. Names that end in `_s` are seconds, summed over the threads that spent them.

frames_decoded: pictures decoded. frames_reused: pictures that `memory_bytes` kept from an earlier epoch.
pool_misses: pictures to be decoded for the clips that came in, into the pool or straight into batches. pool_hits: the
other pictures of their samples, which show one of those again, or one that was kept. pool_evictions: kept pictures that
had to go before their next use.
bytes_needed: coded pictures that were decoded, and columns of rows. bytes_read: all that came from the source, with the
index and the gaps between ranges. requests, retries: to it. first_byte_s: from asking to the answer's beginning.
cache_hits: ranges that were found in the cache on disk.
wait_s: the maker of batches waits for pictures.
"""

_PLACE = {name: place for place, name in enumerate(NAMES)}
_MAX_WORKERS = 1024


class Board:
    """Sums of all processes of a dataset, in memory that they share: a row for each worker, the last for the rest.

    Each process writes to its own row only, so no lock is shared between them.
    """

    def __init__(self) -> None:
        self._sums: torch.Tensor = torch.zeros((_MAX_WORKERS + 1, len(NAMES)), dtype=torch.float64)
        self._sums.share_memory_()  # type: ignore[no-untyped-call]
        self._mine: Metrics | None = None

    def metrics(self) -> Metrics:
        """What this process counts into."""
        info = get_worker_info()
        return Metrics(self._sums[_MAX_WORKERS if info is None else info.id])

    @property
    def mine(self) -> Metrics:
        """The same for all who count in this process."""
        if self._mine is None or self._mine.pid != os.getpid():
            self._mine = self.metrics()
        return self._mine

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mine": None}

    def snapshot(self) -> dict[str, float]:
        """Sums over all processes so far, of what is not zero."""
        sums = self._sums.numpy().sum(axis=0).tolist()  # not torch, whose threads would spin
        return {
            name: value if name.endswith("_s") else int(value) for name, value in zip(NAMES, sums, strict=True) if value
        }


class Metrics:
    """Thread-safe sums of one process, by name; see `NAMES`. sums: float64 [len(NAMES)]; where they are kept."""

    def __init__(self, sums: torch.Tensor | None = None) -> None:
        self.pid = os.getpid()  # a forked copy is of no use: another thread may have held its lock
        self._lock = threading.Lock()
        self._sums = (torch.zeros(len(NAMES), dtype=torch.float64) if sums is None else sums).numpy()

    def add(self, name: str, amount: float = 1) -> None:
        with self._lock:
            self._sums[_PLACE[name]] += amount

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)
