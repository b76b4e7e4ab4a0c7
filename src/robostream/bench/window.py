"""The measured window of a run: its clock, what its batches hold, and the arithmetic on both."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from robostream.assemble import Batch
from robostream.bench.result import QUANTILES
from robostream.errors import BenchmarkError


@dataclass
class Window:
    """What was seen of the measured batches. times: when the window began, and when each batch was there, in seconds.

    padded, steps: window steps that were padding, and all of them, for cameras and for other keys.
    """

    batch_size: int
    first_batch_s: float = 0.0
    before: int = 0
    times: list[float] = field(default_factory=list)
    episodes: Counter[int] = field(default_factory=Counter)
    padded: Counter[bool] = field(default_factory=Counter)
    steps: Counter[bool] = field(default_factory=Counter)

    @property
    def batches(self) -> int:
        return len(self.times) - 1

    @property
    def samples(self) -> int:
        return self.batches * self.batch_size

    @property
    def seconds(self) -> float:
        """From the end of the warm-up to the last batch: nothing in between is left out."""
        return self.times[-1] - self.times[0]

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds

    def latency_ms(self, percents: Sequence[float] = QUANTILES) -> dict[str, float]:
        """Time from batch to batch, divided by the samples of one, at percents of the batches (linear in between)."""
        each = np.diff(self.times) / self.batch_size * 1e3
        return {f"{p}": float(value) for p, value in zip(percents, np.percentile(each, percents), strict=True)}

    @property
    def episodes_per_batch(self) -> float:
        """Distinct episodes in a batch, on average."""
        return sum(count * batches for count, batches in self.episodes.items()) / self.batches

    def padded_share(self, of_cameras: bool) -> float:
        """Share of window steps that are padding; 0 without windows."""
        return self.padded[of_cameras] / self.steps[of_cameras] if self.steps[of_cameras] else 0.0

    def see(self, batch: Batch, cameras: frozenset[str]) -> None:
        """Note what a batch holds. With NumPy: torch's threads would spin on the cores that decode."""
        self.episodes[len(np.unique(batch["episode_index"].cpu().numpy()))] += 1
        for key, value in batch.items():
            if key.endswith("_is_pad"):
                of_camera = key.removesuffix("_is_pad") in cameras
                self.padded[of_camera] += int(value.cpu().numpy().sum())
                self.steps[of_camera] += value.numel()


def drain(
    batches: Iterator[Batch],
    *,
    batch_size: int,
    before: int,
    count: int,
    cameras: frozenset[str],
    max_seconds: float = 0.0,
    on_begin: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Window:
    """Take the first batch, `before` more that are not measured, then up to `count` that are.

    max_seconds: stop after the batch that ends later than this; 0 for never. on_begin: called when the window begins.
    Raises BenchmarkError if nothing is left to measure.
    """
    window = Window(batch_size)
    start = clock()
    if next(batches, None) is None:
        raise BenchmarkError("the loader gave no batch at all, so nothing was measured")
    window.first_batch_s = clock() - start
    for window.before in range(1, before + 1):
        if next(batches, None) is None:
            raise BenchmarkError(
                f"the loader ended after {window.before} batches, in the warm-up: nothing was measured"
            )
    window.before = before + 1
    on_begin()
    window.times.append(clock())
    while window.batches < count:
        batch = next(batches, None)
        if batch is None:
            break
        window.times.append(clock())
        window.see(batch, cameras)
        del batch  # its memory is free for the next one
        if max_seconds and window.seconds >= max_seconds:
            break
    if not window.batches:
        raise BenchmarkError(f"the loader ended after the warm-up of {window.before} batches: nothing was measured")
    return window
