"""Decoded pictures in memory: fixed slots, counted uses, and what is kept for the next epoch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from robostream.plan import Int

NEVER = int(np.iinfo(np.int64).max)


class FramePool:
    """The decoded pictures of one camera.

    A picture holds a slot while window steps are still to show it. With `keep`, it stays afterwards, until its
    slot is needed: the one whose next use is the furthest goes first. Not thread-safe: the pipeline's lock guards it.

    Args:
        shape: (height, width, channels) of a picture.
        capacity: slots; memory that is never written to is never resident.
        budget: slots to use, unless the consumer waits for more.
        keep: whether pictures are kept for the next epoch.
    """

    def __init__(self, shape: tuple[int, int, int], capacity: int, budget: int, keep: bool) -> None:
        self.budget = budget
        self.keep = keep
        self.pixels: npt.NDArray[np.uint8] = np.empty((capacity, *shape), np.uint8)
        self.decoded = np.zeros(capacity, bool)
        self.broken = np.zeros(capacity, bool)
        self._uses = np.zeros(capacity, np.int32)
        self._free = np.arange(capacity)[::-1].copy()  # a stack, so that the same memory is used again first
        self._free_count = capacity
        self._owner = np.full((capacity, 2), -1, np.int64)  # episode, frame
        self._next_use = np.zeros(capacity, np.int64)
        self._index: dict[int, Int] = {}
        self.live = 0
        self.evicted = 0  # kept pictures that had to go before their next use

    def fits(self, count: int) -> bool:
        return self.live + count <= self.budget

    def pin(self, episode: int, frames: Int, uses: Int) -> Int:
        """Slots (int64 [K]) of pictures that are here, now held for `uses` more steps each; −1 for the others."""
        known = self._index.get(episode)
        if known is None or len(frames) == 0:
            return np.full(len(frames), -1, np.int64)
        slots = np.full(len(frames), -1, np.int64)
        inside = frames < len(known)
        slots[inside] = known[frames[inside]]
        held = slots[slots >= 0]
        self.live += int(np.count_nonzero(self._uses[held] == 0))
        self._uses[held] += uses[slots >= 0].astype(np.int32)
        return slots

    def allocate(self, episode: int, frames: Int, uses: Int) -> Int:
        """New slots (int64 [K]) for pictures that are about to be decoded, held for `uses` steps each."""
        count = len(frames)
        over = self._occupied + count - max(self.budget, self.live + count)
        if over > 0 or self._free_count < count:
            self._evict(max(over, count - self._free_count))
        if self._free_count < count:
            raise MemoryError(f"{count} more pictures are needed at once than the pool can ever hold")
        slots: Int = self._free[self._free_count - count : self._free_count][::-1].copy()
        self._free_count -= count
        self._uses[slots] = uses
        self.decoded[slots] = False
        self.broken[slots] = False
        self.live += count
        if self.keep:
            self._register(episode, frames, slots)
        return slots

    @property
    def _occupied(self) -> int:
        return len(self._free) - self._free_count

    def _register(self, episode: int, frames: Int, slots: Int) -> None:
        known = self._index.get(episode, np.empty(0, np.int64))
        if len(known) <= frames[-1]:
            known = np.concatenate([known, np.full(int(frames[-1]) + 1 - len(known), -1, np.int64)])
            self._index[episode] = known
        known[frames] = slots
        self._owner[slots, 0] = episode
        self._owner[slots, 1] = frames

    def expect(self, slots: Int, next_use: int) -> None:
        """Say when pictures will be needed again after their present uses."""
        self._next_use[slots] = next_use

    def release(self, slots: Int) -> None:
        """One use of each of these slots is over; int64 [n], with repeats."""
        unique, counts = np.unique(slots, return_counts=True)
        self._uses[unique] -= counts.astype(np.int32)
        done = unique[self._uses[unique] == 0]
        self.live -= len(done)
        if self.keep:
            done = done[(self._next_use[done] == NEVER) | (self._owner[done, 0] < 0)]
        self._drop(done)

    def finish(self, slots: Int, broken: bool = False) -> None:
        """These pictures are decoded, or could not be (`broken`): then they are not kept."""
        self.decoded[slots] = True
        if broken:
            self.broken[slots] = True
            self._forget(slots)

    def _forget(self, slots: Int) -> None:
        for slot in slots[self._owner[slots, 0] >= 0].tolist():
            self._index[int(self._owner[slot, 0])][int(self._owner[slot, 1])] = -1
            self._owner[slot] = -1

    def _evict(self, count: int) -> None:
        idle = np.flatnonzero((self._uses == 0) & (self._owner[:, 0] >= 0))
        if len(idle) > count:
            idle = idle[np.argpartition(self._next_use[idle], len(idle) - count)[len(idle) - count :]]
        self.evicted += len(idle)
        self._drop(idle)

    def _drop(self, slots: Int) -> None:
        if self.keep:
            self._forget(slots)
        self._free[self._free_count : self._free_count + len(slots)] = slots
        self._free_count += len(slots)
