"""The work of one consumer: its streams, merged, epoch after epoch, as samples to deliver and clips to decode.

Like the plan, this is arithmetic only. Both sequences are infinite: epochs follow each other without a gap.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from robostream.plan import Bool, EpochOrder, Int, Plan, Remainder, StreamOrder

_TURNS_KEPT = 1 << 14  # places of a lane whose turns are known though nobody asks for them any more


@dataclass(frozen=True, eq=False)
class ClipWork:
    """One clip to decode.

    number: counts clips in decode order. lane: which of the consumer's streams. place: of its first sample on the
    lane's endless line. episode: position in the plan. start, stop: frames of it. pending: bool [stop − start],
    the samples that are still to be delivered.
    """

    number: int
    epoch: int
    lane: int
    place: int
    episode: int
    start: int
    stop: int
    pending: Bool


@dataclass(frozen=True, eq=False)
class SampleRun:
    """Samples in delivery order. lane, place: int64 [n], as in ClipWork."""

    epoch: int
    lane: Int
    place: Int


class ConsumerOrder:
    """What one consumer delivers and decodes from a position on.

    Streams are merged sample by sample, in turn, so that the samples of a step do not depend on how the streams
    are spread over consumers.

    Args:
        plan: the plan of the whole job.
        streams: the consumer's streams, ascending.
        epoch: where to begin.
        consumed: samples of each of these streams that were delivered in that epoch.
    """

    def __init__(self, plan: Plan, streams: Sequence[int], epoch: int, consumed: Sequence[int]) -> None:
        self.plan = plan
        self.streams = list(streams)
        self.epoch = epoch
        self.consumed = list(consumed)
        self._orders: dict[int, EpochOrder] = {}
        self._lock = threading.Lock()

    def order(self, epoch: int) -> EpochOrder:
        """The order of an epoch; the last few are kept."""
        with self._lock:
            if epoch not in self._orders:
                while len(self._orders) >= 4:
                    del self._orders[min(self._orders)]
                self._orders[epoch] = self.plan.epoch(epoch)
            return self._orders[epoch]

    def epoch_length(self, epoch: int) -> int:
        """Samples that this consumer delivers in a whole epoch."""
        order = self.order(epoch)
        return sum(order.stream_length(stream) for stream in self.streams)

    def _lanes(self, epoch: int) -> list[StreamOrder]:
        return [self.order(epoch).stream(stream) for stream in self.streams]

    def _epochs(self) -> Iterator[tuple[int, list[StreamOrder], list[int], list[int]]]:
        """Epochs from the start on: number, lanes, where they begin, and their offsets on the endless lines."""
        offset = [0] * len(self.streams)
        begin = self.consumed
        epoch = self.epoch
        while True:
            lanes = self._lanes(epoch)
            yield epoch, lanes, begin, offset
            offset = [o + lane.length for o, lane in zip(offset, lanes, strict=True)]
            begin = [0] * len(lanes)
            epoch += 1

    def after(self, count: int) -> tuple[int, tuple[int, ...]]:
        """(epoch, samples consumed of each stream) when `count` more samples are delivered."""
        epoch, consumed = self.epoch, np.array(self.consumed)
        runs = self.samples()
        while count:
            run = next(runs)
            if run.epoch != epoch:
                epoch, consumed = run.epoch, np.zeros_like(consumed)
            consumed = consumed + np.bincount(run.lane[:count], minlength=len(consumed))
            count -= min(count, len(run.lane))
        return epoch, tuple(consumed.tolist())

    def samples(self) -> Iterator[SampleRun]:
        """Runs of samples in delivery order; a run never crosses an epoch."""
        for epoch, lanes, begin, offset in self._epochs():
            for lane, place in _merge(lanes, begin, offset):
                yield SampleRun(epoch, lane, place)

    def clips(self) -> Iterator[ClipWork]:
        """Clips in the order in which they are needed."""
        number = 0
        for epoch, lanes, begin, offset in self._epochs():
            remainders = [
                lane.start_at(position) if position else None for lane, position in zip(lanes, begin, strict=True)
            ]
            feeds = [_lane_clips(lane, rest) for lane, rest in zip(lanes, remainders, strict=True)]
            heads = [next(feed, None) for feed in feeds]
            while any(head is not None for head in heads):
                lane = min((head[0], i) for i, head in enumerate(heads) if head is not None)[1]
                head = heads[lane]
                assert head is not None
                place, episode, start, stop = head
                rest = remainders[lane]
                places = np.arange(place, place + stop - start)
                pending = np.ones(stop - start, bool) if rest is None else rest.pending(places)
                heads[lane] = next(feeds[lane], None)
                if pending.any():
                    yield ClipWork(number, epoch, lane, offset[lane] + place, episode, start, stop, pending)
                    number += 1


class Turns:
    """When samples are delivered, known before their clips are decoded.

    Turns count samples from a position on; an epoch begins with a new batch unless batches go on `across_epochs`.
    Each lane's places are asked for in ascending order.
    """

    def __init__(self, order: ConsumerOrder, batch_size: int, across_epochs: bool) -> None:
        self._runs = order.samples()
        self._batch_size = 1 if across_epochs else batch_size
        self._epoch = order.epoch
        self._next = 0
        self._first = [0] * len(order.streams)  # the place that the table of a lane begins with
        self._known = [np.empty(0, np.int64) for _ in order.streams]

    def of(self, lane: int, places: Int) -> Int:
        """The turns of samples at these ascending places of a lane's endless line, int64 [n]."""
        if places[0] - self._first[lane] > _TURNS_KEPT:
            self._known[lane] = self._known[lane][places[0] - self._first[lane] :]
            self._first[lane] = int(places[0])
        while True:
            index = places - self._first[lane]
            known = self._known[lane]
            if index[-1] < len(known) and (known[index] >= 0).all():
                turns: Int = known[index]
                return turns
            self._note(next(self._runs))

    def _note(self, run: SampleRun) -> None:
        if run.epoch != self._epoch:
            self._epoch = run.epoch
            self._next = -(-self._next // self._batch_size) * self._batch_size
        turns = np.arange(self._next, self._next + len(run.lane))
        self._next += len(run.lane)
        for lane in range(len(self._known)):
            mine = run.lane == lane
            index = run.place[mine] - self._first[lane]
            missing = int(index.max(initial=-1)) + 1 - len(self._known[lane])
            if missing > 0:
                self._known[lane] = np.concatenate([self._known[lane], np.full(missing, -1)])
            self._known[lane][index] = turns[mine]


def _lane_clips(lane: StreamOrder, rest: Remainder | None) -> Iterator[tuple[int, int, int, int]]:
    for clips in lane.clips(rest.first_place if rest else 0):
        yield from zip(*(column.tolist() for column in clips), strict=True)


def _merge(lanes: list[StreamOrder], begin: list[int], offset: list[int]) -> Iterator[tuple[Int, Int]]:
    """One sample of each lane in turn, from `begin` on: lane and place on the endless line, int64 [n] each.

    Lanes that have delivered less come first, so that a position is the same whatever ran before it.
    """
    feeds = [lane.places(position) for lane, position in zip(lanes, begin, strict=True)]
    ahead = [np.empty(0, np.int64) for _ in lanes]
    done = list(begin)
    while True:
        for i, feed in enumerate(feeds):
            if len(ahead[i]) == 0:
                ahead[i] = next(feed, ahead[i])
        open_lanes = [i for i in range(len(lanes)) if len(ahead[i])]
        if not open_lanes:
            return
        lowest = min(done[i] for i in open_lanes)
        behind = [i for i in open_lanes if done[i] == lowest]
        level = min((done[i] for i in open_lanes if done[i] > lowest), default=None)
        count = min(len(ahead[i]) for i in behind)
        if level is not None:
            count = min(count, level - lowest)
        lane = np.tile(np.array(behind, np.int64), count)
        place = np.stack([ahead[i][:count] + offset[i] for i in behind], axis=1).reshape(-1)
        for i in behind:
            ahead[i] = ahead[i][count:]
            done[i] += count
        yield lane, place
