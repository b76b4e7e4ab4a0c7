"""Counters and stage timings of one pipeline."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Metrics:
    """Thread-safe sums, by name. Times are in seconds, summed over the threads that spent them.

    Names, of a pipeline: samples, clips, frames_decoded, frames_reused, episodes_drifted, samples_skipped,
    bytes_needed (coded pictures that were decoded, and columns of rows), and fetch_s, decode_s, wait_s (the consumer
    waits for decoding), assemble_s. Of a source: bytes_read (all that came from it, the index and the gaps between
    ranges too), requests, retries, first_byte_s (from asking to the answer's beginning), cache_hits.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()  # a forked copy is of no use: another thread may have held its lock
        self._lock = threading.Lock()
        self._sums: defaultdict[str, float] = defaultdict(float)

    def add(self, name: str, amount: float = 1) -> None:
        with self._lock:
            self._sums[name] += amount

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def snapshot(self) -> dict[str, float]:
        """All sums so far: whole numbers for counters, seconds for names that end in `_s`."""
        with self._lock:
            return {name: value if name.endswith("_s") else int(value) for name, value in self._sums.items()}
