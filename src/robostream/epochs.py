"""Which epoch comes next, agreed between a process and its DataLoader workers, without locks."""

from __future__ import annotations

import torch
from torch.utils.data import get_worker_info

_WORKERS = 1024
_EPOCH_BITS = 32


class EpochCounter:
    """Counts the epochs that were begun, over all processes that hold a copy.

    Each worker has a slot in shared memory: which DataLoader iteration it belongs to, and the epoch after the one that
    it began, in one integer, so that it is written in one go. Workers of one iteration share a seed that no other
    iteration has: the first of them takes the epoch after all that were begun, the others the same one, in whatever
    order they start, and also if some of an earlier iteration never started.
    """

    def __init__(self) -> None:
        self._slots: torch.Tensor = torch.zeros(_WORKERS + 1, dtype=torch.int64)
        self._slots.share_memory_()  # type: ignore[no-untyped-call]

    def next(self) -> int:
        """The epoch that an iteration would begin now."""
        slots = self._slots.clone()  # at one time: others may write meanwhile
        epochs, iterations = slots & ((1 << _EPOCH_BITS) - 1), slots >> _EPOCH_BITS
        slot, iteration = _here()
        if iteration and iterations[slot] == iteration:
            return int(epochs[slot])  # a persistent worker goes on by itself
        mates = epochs[iterations == iteration] if iteration else epochs[:0]
        return int(mates.max()) - 1 if len(mates) else int(epochs.max())

    def begun(self, epoch: int) -> None:
        """An iteration of this process (or worker) began an epoch."""
        slot, iteration = _here()
        self._slots[slot] = iteration << _EPOCH_BITS | epoch + 1

    def set(self, epoch: int) -> None:
        """Make `epoch` the next one; in a worker, its own next one."""
        slot, _ = _here()
        if slot == _WORKERS:
            self._slots.fill_(epoch)
        else:
            self._slots[slot] = epoch


def _here() -> tuple[int, int]:
    """This process's slot, and a number of its DataLoader iteration; 0 outside of workers."""
    info = get_worker_info()
    if info is None:
        return _WORKERS, 0
    return info.id, (info.seed - info.id) % ((1 << 30) - 1) + 1
