"""A pipeline at work for a dataset, and the process and share that it works for."""

from __future__ import annotations

import os
import weakref

from robostream.assemble import BufferPool
from robostream.build import Share
from robostream.pipeline import Pipeline, Position


class RunningPipeline:
    """Ends its pipeline when its owner is dropped."""

    def __init__(self, pipeline: Pipeline, share: Share, owner: object) -> None:
        self.pipeline = pipeline
        self.share = share
        self._pid = os.getpid()
        self._stop = weakref.finalize(owner, pipeline.stop)

    def close(self) -> None:
        """End all of its threads."""
        self._stop.detach()
        self.pipeline.close()

    def continues(self, share: Share, start: Position, size: int, buffers: BufferPool) -> bool:
        """Whether the pipeline stands where an iteration is to begin, and makes such batches."""
        if (self.pipeline.settings.batch_size, self.pipeline.buffers) != (size, buffers):
            return False
        position = self.pipeline.position
        begins = position.epoch == start.epoch and not any(position.consumed) and not any(start.consumed)
        return self._pid == os.getpid() and self.share == share and begins and self.pipeline.is_open
