"""Clips read ahead of their admission, several at once, in bounded memory, and handed over in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from robostream import threads
from robostream.consumer import ClipWork
from robostream.fetch import FetchedClip
from robostream.source.retry import CancelledError, cancelled_by

_GROWTH = 2  # clips that may be read ahead for each that was handed over, until the bound is reached
_JOIN_S = 1.0  # a thread may hang in a read of a dead server; it ends by itself when that times out


@dataclass(frozen=True)
class PrefetchSettings:
    """threads: reads under way at once. clips, coded_bytes: at most this much is read ahead, but always one clip.

    next_epoch: clips of the next epoch that are read before the first of it is handed over: it may not be wanted.
    clip_bytes: of a usual clip, for those under way; what was read tells it better soon.
    """

    threads: int
    clips: int
    coded_bytes: int
    next_epoch: int
    clip_bytes: int


class PrefetchClosed(Exception):
    """Nothing more will come."""


class _Slot:
    """The place of a clip in the line: empty until it is read."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.clip: FetchedClip | None = None
        self.error: BaseException | None = None


class Prefetcher:
    """Reads clips ahead in threads of its own.

    Args:
        fetch: reads a clip. works: the clips in order, without an end.
        settings: how much is read ahead.
    """

    def __init__(
        self,
        fetch: Callable[[ClipWork], FetchedClip],
        works: Iterator[ClipWork],
        settings: PrefetchSettings,
    ) -> None:
        self._fetch = fetch
        self._works = works
        self._settings = settings
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._failed = False
        self._line: deque[_Slot] = deque()
        self._work = next(works)  # the next to be read
        self._epoch = self._work.epoch  # of the clip that was handed over last
        self._reading = 0
        self._held = 0  # bytes that are read and not handed over
        self._usual = float(settings.clip_bytes)
        # Reading far ahead begins slowly: at first the clips that are needed now should have the processor.
        self._allowed = min(settings.threads, settings.clips)
        self._threads = [threads.start(self._run, f"fetch-{i}", self.stop) for i in range(settings.threads)]

    def next(self) -> FetchedClip:
        """The next clip in order; waits for it. Raises what reading it raised, or PrefetchClosed."""
        with self._changed:
            while not (self._line and (self._line[0].clip or self._line[0].error)):
                if self._stopped.is_set():
                    raise PrefetchClosed
                self._changed.wait()
            slot = self._line.popleft()
            self._epoch = slot.epoch
            self._allowed = min(self._allowed + _GROWTH, self._settings.clips)
            if slot.clip is not None:
                self._held -= slot.clip.coded_bytes
            self._changed.notify_all()
        if slot.clip is None:
            assert slot.error is not None
            raise slot.error
        return slot.clip

    def stop(self) -> None:
        """Tell all threads to end, without waiting for them."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the threads to end, after `stop`."""
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _run(self) -> None:
        with cancelled_by(self._stopped):
            while (task := self._begin()) is not None:
                slot, work = task
                try:
                    clip = self._fetch(work)
                except CancelledError:
                    return
                except BaseException as error:
                    self._finish(slot, None, error)
                else:
                    self._finish(slot, clip, None)

    def _begin(self) -> tuple[_Slot, ClipWork] | None:
        """The next clip to read, when there is room for it; None at the end."""
        with self._changed:
            while not (self._has_room() or self._stopped.is_set() or self._failed):
                self._changed.wait()
            if self._stopped.is_set() or self._failed:
                return None
            work, self._work = self._work, next(self._works)
            slot = _Slot(work.epoch)
            self._line.append(slot)
            self._reading += 1
            return slot, work

    def _has_room(self) -> bool:
        if not self._line:
            return True
        if self._work.epoch > self._epoch:
            later = sum(slot.epoch > self._epoch for slot in self._line)
            if later >= self._settings.next_epoch:
                return False
        ahead = self._held + (self._reading + 1) * self._usual
        return len(self._line) < self._allowed and ahead <= self._settings.coded_bytes

    def _finish(self, slot: _Slot, clip: FetchedClip | None, error: BaseException | None) -> None:
        with self._changed:
            slot.clip, slot.error = clip, error
            self._failed = self._failed or error is not None
            self._reading -= 1
            if clip is not None:
                self._held += clip.coded_bytes
                self._usual += 0.1 * (clip.coded_bytes - self._usual)
            self._changed.notify_all()
