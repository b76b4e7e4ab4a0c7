"""The threads of one consumer: fetch ahead, decode ahead in bounded memory, and hand over batches in plan order.

Clips are fetched by a few threads, admitted strictly in the order of need (so the oldest clip always gets its
memory, and nothing can lock up), and decoded by `threads` threads, one camera of one clip at a time.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from robostream import threads
from robostream.assemble import Assembler, Batch, BufferPool
from robostream.consumer import ClipWork, ConsumerOrder, SampleRun, Turns
from robostream.decode import VideoDecoder, decode_part
from robostream.errors import DataFileError, IterationEndedError, RobostreamError
from robostream.fetch import CameraPart, ClipFetcher, FetchedClip
from robostream.metrics import Metrics
from robostream.open_batches import OpenBatches, Pixels
from robostream.plan import Int
from robostream.pool import NEVER, FramePool
from robostream.prefetch import PrefetchClosed, Prefetcher, PrefetchSettings


@dataclass(frozen=True)
class PipelineSettings:
    """batch_size, across_epochs: of batches; those at the end of an epoch are short, or go on with the next one.

    threads: that decode. prefetch: what is read ahead. ring: samples per lane.
    skip: leave out what can't be decoded instead of raising.
    """

    batch_size: int
    across_epochs: bool
    threads: int
    prefetch: PrefetchSettings
    ring: int
    skip: bool


@dataclass(frozen=True)
class Position:
    """Where a consumer stands: an epoch, and the samples consumed of each of its streams in it."""

    epoch: int
    consumed: tuple[int, ...]


@dataclass(eq=False)
class _Clip:
    """An admitted clip: the cameras and the samples that are still open. end: where it ends on its lane."""

    fetched: FetchedClip
    ring: Int
    cameras_open: int
    samples_open: int
    end: int


@dataclass(frozen=True, eq=False)
class _Task:
    """One camera of an admitted clip; fresh: int64, which of its frames must be decoded. out: where to."""

    clip: _Clip
    part: CameraPart
    fresh: Int
    out: list[Pixels]


class _Closed(Exception):
    """Ends a thread quietly when the pipeline is closed."""


class Pipeline:
    """Delivers the samples of one consumer, in order.

    Args:
        order: what to deliver. fetcher, assembler: the stages.
        pools: the decoded pictures of cameras that show pictures again. direct: those of the other cameras.
        buffers: memory for batches.
        make_decoder: makes a decoder; called once in each thread.
        settings: sizes.
        lock: guards the pools; whoever else looks into them takes it. Reentrant, since a finalizer may need it.
    """

    def __init__(
        self,
        order: ConsumerOrder,
        fetcher: ClipFetcher,
        assembler: Assembler,
        pools: Mapping[str, FramePool],
        direct: OpenBatches,
        buffers: BufferPool,
        make_decoder: Callable[[], VideoDecoder],
        settings: PipelineSettings,
        metrics: Metrics,
        lock: threading.RLock,
    ) -> None:
        self._order = order
        self._fetcher = fetcher
        self._assembler = assembler
        self._pools = pools
        self._direct = direct
        self._turns = Turns(order, settings.batch_size, settings.across_epochs)
        self.buffers = buffers
        self._make_decoder = make_decoder
        self.settings = settings
        self.metrics = metrics
        self._pid = os.getpid()
        self.lock = lock
        self._ready = threading.Condition(lock)  # what the consumer may wait for has come
        self._room = threading.Condition(lock)  # a clip that waits to be admitted may find room
        self._admission = threading.Lock()
        self._tasks: deque[_Task] = deque()
        self._clips: dict[int, _Clip] = {}
        self._low: list[deque[_Clip]] = [deque() for _ in order.streams]
        self._waiting = False  # for a clip that is not admitted yet: it is, then, even beyond the budget
        self._error: BaseException | None = None
        self._closed = False
        self._runs: Iterator[SampleRun] = order.samples()
        self._run: SampleRun | None = None
        self.position = Position(order.epoch, tuple(order.consumed))
        self._prefetcher = Prefetcher(fetcher.fetch, order.clips(), settings.prefetch)
        self._threads = [threads.start(self._decode_loop, f"decode-{i}", self.stop) for i in range(settings.threads)]

    # The consumer's side -----------------------------------------------------------------------------------------

    def take(self) -> Batch | None:
        """The next batch; None when the epoch is over, and then the next call begins the next epoch.

        Raises the first error of any stage.
        """
        across_epochs = self.settings.across_epochs
        parts: list[Int] = []
        missing = self.settings.batch_size
        unreadable = ends = 0
        while missing:
            if self._next_run().epoch != self.position.epoch:
                if parts and not across_epochs:
                    break
                self.position = Position(self.position.epoch + 1, (0,) * len(self._order.streams))
                if not across_epochs:
                    return None
                ends += 1
                if unreadable and not parts and ends > 1:
                    raise DataFileError("a whole epoch had no sample that can be read; the log has the reasons")
                continue
            ring = self._await_samples(*self._next_samples(missing))
            if len(ring):
                parts.append(ring)
            else:
                unreadable += 1
            missing -= len(ring)
        ring = np.concatenate(parts)
        with self.metrics.timed("assemble_s"):
            with self.lock:
                ready = self._direct.take()
            batch = self._assembler.gather(ring, self.buffers, ready)
            self._release(ring)
        self.metrics.add("samples", len(ring))
        return batch

    def _next_run(self) -> SampleRun:
        if self._run is None:
            self._run = next(self._runs)
        return self._run

    def _next_samples(self, count: int) -> tuple[Int, Int]:
        """Lanes and places of up to `count` next samples of the run; they count as consumed."""
        run = self._next_run()
        lane, place = run.lane[:count], run.place[:count]
        rest = SampleRun(run.epoch, run.lane[count:], run.place[count:])
        self._run = rest if len(rest.lane) else None
        more = np.bincount(lane, minlength=len(self._order.streams))
        consumed = tuple((np.array(self.position.consumed) + more).tolist())
        self.position = Position(self.position.epoch, consumed)
        return lane, place

    def _ring(self, lane: Int | int, place: Int) -> Int:
        ring: Int = lane * self.settings.ring + place % self.settings.ring
        return ring

    def _await_samples(self, lane: Int, place: Int) -> Int:
        """Wait until these samples are decoded; returns the ring entries of those that are valid."""
        ring = self._ring(lane, place)
        with self.metrics.timed("wait_s"), self.lock:
            for k in range(len(self._order.streams)):
                mine = place[lane == k]
                if len(mine):
                    self._wait_lane(k, mine)
            needed = np.unique(self._assembler.clip[ring]).tolist()
            for number in needed:
                while not self._is_ready(self._clips[number]):
                    self._wait()
        return self._without_skipped(ring) if self.settings.skip else ring

    def _without_skipped(self, ring: Int) -> Int:
        valid = self._assembler.valid[ring]
        self._settle(ring[~valid])
        shown = ring[valid]
        broken = self._assembler.broken(shown)
        self._release(shown[broken])
        left: Int = shown[~broken]
        if len(left) < len(ring):
            self.metrics.add("samples_skipped", len(ring) - len(left))
        return left

    def _wait_lane(self, lane: int, place: Int) -> None:
        """Wait until the clips that hold these places are admitted."""
        last = int(place.max())
        while not (self._low[lane] and self._low[lane][-1].end > last):
            self._waiting = True
            self._room.notify_all()
            self._wait()
        self._waiting = False

    def _is_ready(self, clip: _Clip) -> bool:
        if clip.cameras_open:
            return False
        # Kept pictures may still be on their way, for the clip that asked for them first.
        parts = [(self._pools.get(part.camera.key), part.slots) for part in clip.fetched.cameras]
        return all(pool.decoded[slots].all() for pool, slots in parts if pool is not None and pool.keep)

    def _wait(self) -> None:
        self._raise_error()
        self._ready.wait()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise IterationEndedError(
                "this iteration is over: a newer one of the same dataset or loader ended it, or close() did. For two "
                "at once, open the dataset twice."
            )

    def _release(self, ring: Int) -> None:
        pictures = self._assembler.pictures(ring)
        with self.lock:
            for key, slots in pictures.items():
                self._pools[key].release(slots)
        self._settle(ring)

    def _settle(self, ring: Int) -> None:
        """These samples are over: clips without open samples give up their place."""
        numbers, counts = np.unique(self._assembler.clip[ring], return_counts=True)
        with self.lock:
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                clip = self._clips[number]
                clip.samples_open -= count
                if clip.samples_open == 0:
                    del self._clips[number]
            for lane in self._low:
                while len(lane) > 1 and lane[0].samples_open == 0:
                    lane.popleft()
            self._room.notify_all()

    # The threads' side -------------------------------------------------------------------------------------------

    def _decode_loop(self) -> None:
        try:
            decoder = self._make_decoder()
            while True:
                task = self._pop_task()
                if task is None:
                    with self._admission:
                        task = self._pop_task()
                        if task is None:
                            self._admit()
                            continue
                self._decode(decoder, task)
        except (_Closed, PrefetchClosed):
            pass
        except BaseException as error:  # whatever it is, the consumer must see it
            self._fail(error)
        finally:
            self._prefetcher.stop()

    def _pop_task(self) -> _Task | None:
        with self.lock:
            if self._closed or self._error is not None:
                raise _Closed
            return self._tasks.popleft() if self._tasks else None

    def _fail(self, error: BaseException) -> None:
        with self.lock:
            if self._error is None:
                self._error = error
            self._notify_all()

    def _notify_all(self) -> None:
        self._ready.notify_all()
        self._room.notify_all()

    def _admit(self) -> None:
        """Admit the next clip: wait for its bytes and for memory, then make it known."""
        try:
            fetched = self._prefetcher.next()
        except PrefetchClosed:
            raise
        except BaseException as error:
            self._fail(error)  # before another thread can admit what comes after the clip that is lost
            raise
        work = fetched.work
        places = work.place + np.flatnonzero(work.pending)
        turns = self._turns.of(work.lane, places) if self._direct else np.empty(0, np.int64)
        ring = self._ring(work.lane, places)
        end = work.place + len(work.pending)
        with self.lock:
            while not self._has_room(fetched, turns, end):
                if self._closed or self._error is not None:
                    raise _Closed
                self._room.wait()
            clip = _Clip(fetched, ring, 0, len(ring), end)
            kept = any(pool.keep for pool in self._pools.values())
            next_use = self._next_use(work) if kept else NEVER
            tasks = [task for part in fetched.cameras if (task := self._task(clip, part, turns, next_use))]
            clip.cameras_open = len(tasks)
            self._clips[work.number] = clip
            self._low[work.lane].append(clip)
            self._assembler.admit(fetched, ring)
            self._tasks.extend(tasks)
            self.metrics.add("clips")
            if self._waiting:
                self._ready.notify_all()

    def _task(self, clip: _Clip, part: CameraPart, turns: Int, next_use: int) -> _Task | None:
        """What is to be decoded for a part, and where to; None if all of it is here."""
        key = part.camera.key
        if key in self._direct:
            self.metrics.add("pool_misses", len(part.frames))
            return _Task(clip, part, np.arange(len(part.frames)), self._direct.pictures(key, turns))
        fresh = self._allocate(clip.fetched.work, part, next_use)
        return _Task(clip, part, fresh, self._pools[key].pictures(part.slots[fresh])) if len(fresh) else None

    def _has_room(self, fetched: FetchedClip, turns: Int, end: int) -> bool:
        lane = self._low[fetched.work.lane]
        if lane and end - (lane[0].end - len(lane[0].fetched.work.pending)) > self.settings.ring:
            return False
        if self._waiting or not self._clips:
            return True
        if len(turns) and not self._direct.fits(int(turns.max())):
            return False
        pooled = [(self._pools[part.camera.key], part) for part in fetched.cameras if part.camera.key in self._pools]
        return all(pool.fits(int((part.slots < 0).sum())) for pool, part in pooled)

    def _allocate(self, work: ClipWork, part: CameraPart, next_use: int) -> Int:
        """Give a part's pictures their slots; returns int64, which of its frames must be decoded."""
        pool = self._pools[part.camera.key]
        absent = np.flatnonzero(part.slots < 0)
        # Look again: they may have come in since the clip was fetched.
        part.slots[absent] = pool.pin(work.episode, part.frames[absent], part.uses[absent])
        fresh: Int = np.flatnonzero(part.slots < 0)
        evicted = pool.evicted
        if len(fresh):
            part.slots[fresh] = pool.allocate(work.episode, part.frames[fresh], part.uses[fresh])
        if pool.keep:
            pool.expect(part.slots, next_use)
        self.metrics.add("frames_reused", len(part.frames) - len(fresh))
        self.metrics.add("pool_hits", int(part.uses.sum()) - len(fresh))
        self.metrics.add("pool_misses", len(fresh))
        self.metrics.add("pool_evictions", pool.evicted - evicted)
        return fresh

    def _next_use(self, work: ClipWork) -> int:
        """When the clip's pictures are needed in the next epoch, on a line that goes on over epochs."""
        plan = self._order.plan
        order = self._order.order(work.epoch + 1)
        unit = int(np.searchsorted(plan.unit_episode, work.episode, "left"))
        place = int(order.unit_place[unit])
        for stream in self._order.streams:
            lane = order.stream(stream)
            if lane.begin - int(plan.unit_stop[unit]) < place < lane.end:
                return (work.epoch + 1) * plan.total + place - lane.begin
        return NEVER

    def _decode(self, decoder: VideoDecoder, task: _Task) -> None:
        part, pool = task.part, self._pools.get(task.part.camera.key)
        broken = False
        try:
            with self.metrics.timed("decode_s"):
                decode_part(decoder, part, task.fresh, task.out, task.clip.fetched.where)
        except RobostreamError as error:
            message = f"{task.clip.fetched.where}, {part.camera.key}: {error}"
            if not self.settings.skip:
                raise type(error)(message) from error
            broken = True
            self._fetcher.warn_once(message, f"{message} Left out its samples.")
        self.metrics.add("frames_decoded", len(task.fresh))
        with self.lock:
            if pool is not None:
                pool.finish(part.slots[task.fresh], broken)
            task.clip.cameras_open -= 1
            part.drop_bytes()
            if pool is not None or task.clip.cameras_open == 0:
                self._ready.notify_all()

    @property
    def is_open(self) -> bool:
        return not self._closed and self._error is None

    def stop(self) -> None:
        """Tell all threads to end, without waiting for them: this may run in one of them, as a finalizer."""
        if os.getpid() != self._pid:
            return  # a forked child has none of the threads, and its copy of the locks may never open
        with self.lock:
            self._closed = True
            self._notify_all()
        self._prefetcher.stop()

    def close(self) -> None:
        """End all threads and drop what was decoded. Safe to call again."""
        if os.getpid() != self._pid:
            return
        self.stop()
        if threading.current_thread().name.startswith(("robostream-decode", "robostream-fetch")):
            return  # a finalizer: the garbage collector runs it in any thread, also where waiting would never end
        for thread in self._threads:
            thread.join()
        self._prefetcher.join()
        self._fetcher.close()
