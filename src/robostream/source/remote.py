"""A dataset that is read over a network: retries, coalescing, caching, and nothing shared over a fork."""

from __future__ import annotations

import contextvars
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Protocol, TypeVar

from robostream.diskcache import DiskCache
from robostream.errors import FileMissingError, SourceChangedError
from robostream.metrics import Board, Metrics
from robostream.source.interface import Stat
from robostream.source.ranges import Span, coalesce, cut, gather
from robostream.source.retry import RetryPolicy, TransientError, persist

T = TypeVar("T")

PARALLEL = 32
"""Requests of one process under way at once; with parts of at most 8 MiB that bounds the bytes on their way."""


class Session(Protocol):
    """The connections of one process to a store. Each call is one attempt.

    Raises TransientError for what may pass, FileMissingError, and any SourceError for what will not pass.
    """

    def stat(self, path: str) -> Stat: ...

    def whole(self, path: str) -> bytes:
        """A whole file, in one request if that can be."""
        ...

    def part(self, path: str, start: int, stop: int, stat: Stat) -> bytes:
        """The bytes [start, stop) of the file that has this size and etag; exactly as many."""
        ...

    def list(self, prefix: str) -> list[str] | None: ...


class Store(Protocol):
    """Where files are: a description that can be pickled, without connections."""

    def describe(self, path: str) -> str: ...

    def connect(self, policy: RetryPolicy, metrics: Metrics) -> Session: ...


class _Process:
    """What belongs to one process."""

    def __init__(self, store: Store, policy: RetryPolicy, metrics: Metrics) -> None:
        self.metrics = metrics
        self.session = store.connect(policy, metrics)
        self.pool = ThreadPoolExecutor(PARALLEL, "robostream-read")
        self.answered = False


class RemoteSource:
    """The files of a remote store, as a Source.

    Args:
        store: where they are. policy: how patient reads are.
        cache: on disk, for ranges; None to read them from the store each time.
    """

    is_remote = True
    parallel = 16

    def __init__(self, store: Store, policy: RetryPolicy, cache: DiskCache | None = None) -> None:
        self.store = store
        self.policy = policy
        self.cache = cache
        self._stats: dict[str, Stat] = {}
        self.board = Board()
        self._processes: dict[int, _Process] = {}

    @property
    def _process(self) -> _Process:
        # A forked child makes its own. What it inherited is kept, since to close it would disturb the parent's.
        pid = os.getpid()
        found = self._processes.get(pid)
        return found or self._processes.setdefault(pid, _Process(self.store, self.policy, self.board.mine))

    def describe(self, path: str) -> str:
        return self.store.describe(path)

    def stat(self, path: str) -> Stat:
        # Remembered, also in workers, so that all see the same version of a file or notice that it changed.
        if path not in self._stats:
            self._stats[path] = self._try(path, lambda session: session.stat(path))
        return self._stats[path]

    def exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except FileMissingError:
            return False
        return True

    def read(self, path: str) -> bytes:
        data = self._try(path, lambda session: session.whole(path))
        self.board.mine.add("bytes_read", len(data))
        return data

    def open(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read(path))

    def read_ranges(self, path: str, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        if self.cache is None:
            return self._fetch(path, starts, lengths)
        stat = self.stat(path)
        keys = [f"{self.describe(path)} {stat} {a} {n}" for a, n in zip(starts, lengths, strict=True)]
        found = [self.cache.get(key) for key in keys]
        absent = [i for i, data in enumerate(found) if data is None]
        if absent:
            fetched = self._fetch(path, [starts[i] for i in absent], [lengths[i] for i in absent])
            for i, data in zip(absent, fetched, strict=True):
                found[i] = data
                self.cache.put(keys[i], data)
        self.board.mine.add("cache_hits", len(keys) - len(absent))
        return [data for data in found if data is not None]

    def _fetch(self, path: str, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        stat = self.stat(path)
        spans = cut(coalesce(starts, lengths))
        if spans and spans[-1][1] > stat.size:
            raise SourceChangedError(
                f"{self.describe(path)}: has {stat.size:,} bytes, its index needs {spans[-1][1]:,}: it was replaced, "
                "or is damaged"
            )

        def fetch(span: Span) -> bytes:
            return self._try(path, lambda session: session.part(path, *span, stat))

        if len(spans) <= 1:
            data = [fetch(span) for span in spans]
        else:
            pool = self._process.pool
            futures = [pool.submit(contextvars.copy_context().run, fetch, span) for span in spans]
            data = [future.result() for future in futures]
        self.board.mine.add("bytes_read", sum(map(len, data)))
        return gather(starts, lengths, spans, data)

    def _try(self, path: str, call: Callable[[Session], T]) -> T:
        process = self._process

        def attempt() -> T:
            try:
                result = call(process.session)
            except TransientError:
                raise
            except Exception:
                process.answered = True
                raise
            process.answered = True
            return result

        def on_retry() -> None:
            process.metrics.add("retries")

        deadline = self.policy.deadline_s
        if not process.answered:
            deadline = min(deadline, self.policy.opening_deadline_s)
        return persist(attempt, self.policy, deadline, self.describe(path), on_retry)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_processes": {}}

    def list(self, prefix: str) -> list[str] | None:
        return self._try(prefix, lambda session: session.list(prefix))
