"""Batches whose pictures are still being decoded: each picture goes straight to where its batch shows it.

The plan knows which sample comes when. So a picture that is shown once, without a window, needs no place in a pool
and no copy from there: it is decoded into the batch.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from robostream.assemble import BufferPool
from robostream.fetch import Camera
from robostream.plan import Int

Pixels = npt.NDArray[np.uint8]


class OpenBatches:
    """The pictures of the batches to come, addressed by turn: turn t is row `t % size` of batch `t // size`.

    Not thread-safe: the pipeline's lock guards it.

    Args:
        cameras: whose pictures are shown once each.
        size: samples in a batch.
        limit: batches that are open at once, unless the consumer waits for more.
        buffers: where their memory comes from.
    """

    def __init__(self, cameras: Iterable[Camera], size: int, limit: int, buffers: BufferPool) -> None:
        self._shapes = {camera.key: (size, *camera.shape) for camera in cameras}
        self._size = size
        self._limit = limit
        self._buffers = buffers
        self._taken = 0
        self._open: dict[int, dict[str, Pixels]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._shapes

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def fits(self, turn: int) -> bool:
        return turn // self._size < self._taken + self._limit

    def pictures(self, key: str, turns: Int) -> list[Pixels]:
        """Memory for a camera's pictures at these turns (int64 [n]): uint8 [H, W, C] each."""
        numbers = (turns // self._size).tolist()
        batches = {number: self._batch(number)[key] for number in set(numbers)}
        return [batches[number][row] for number, row in zip(numbers, (turns % self._size).tolist(), strict=True)]

    def take(self) -> dict[str, Pixels]:
        """The next batch, uint8 [size, H, W, C] by camera. All of its pictures must have been decoded."""
        batch = self._batch(self._taken)
        del self._open[self._taken]
        self._taken += 1
        return batch

    def _batch(self, number: int) -> dict[str, Pixels]:
        batch = self._open.get(number)
        if batch is None:
            batch = {key: self._buffers.get(shape, np.uint8) for key, shape in self._shapes.items()}
            self._open[number] = batch
        return batch
