"""One run of the benchmark: a loader is drained for a number of batches, and what that took is put in figures."""

from __future__ import annotations

import math
import resource
import sys
import time
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from robostream.bench.ceiling import measure_ceiling
from robostream.dataset import StreamingLeRobotDataset
from robostream.errors import SettingError
from robostream.loader import StreamLoader


@dataclass(frozen=True)
class Result:
    """Figures of a run. Rates are wall clock over the batches after the warm-up.

    camera_frames_per_s: pictures decoded; with windows, a sample shows more than it decodes. ceiling_*: bare decoding
    of the same clips with the same threads in the same run. *_per_cpu_s: for a second of CPU time, which a busy
    machine does not change. latencies: milliseconds from batch to batch. padded: share of window steps that repeat an
    episode's edge.
    """

    samples: int
    seconds: float
    samples_per_s: float
    first_batch_s: float
    camera_frames_per_s: float
    camera_frames_per_cpu_s: float
    ceiling_frames_per_s: float
    ceiling_frames_per_cpu_s: float
    percent_of_ceiling: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    episodes_per_batch: float
    padded: float
    peak_rss_bytes: int
    memory_bound_bytes: int
    stages: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    dataset: StreamingLeRobotDataset,
    *,
    batch_size: int,
    num_batches: int,
    warmup_batches: int,
    threads: int,
    ceiling_seconds: float,
) -> Result:
    """Run the benchmark on a dataset opened with `repeat=True` and `num_threads=threads`.

    Raises SettingError if no batch is left to measure.
    """
    if num_batches < 1:
        raise SettingError(f"num_batches={num_batches}: nothing would be measured")
    begin = time.perf_counter()
    with StreamLoader(dataset, batch_size, drop_last=True) as loader:
        batches = iter(loader)
        next(batches)
        first_batch = time.perf_counter() - begin
        # The first samples come from the heads of the clips, into memory that is touched for the first time: let the
        # shuffle window fill once.
        filled = math.ceil(dataset.blueprint.settings.buffer_size / batch_size)
        for _ in islice(batches, warmup_batches + filled):
            pass
        before, cpu = loader.metrics(), time.process_time()
        times = [time.perf_counter()]
        episodes: list[int] = []
        padded: list[float] = []
        for batch in islice(batches, num_batches):
            # NumPy, since torch's thread pool would spin on the cores that decode.
            episodes.append(len(np.unique(batch["episode_index"].numpy())))
            padded.extend(float(v.numpy().mean()) for k, v in batch.items() if k.endswith("_is_pad"))
            times.append(time.perf_counter())
        cpu = time.process_time() - cpu
        stages = {key: value - before.get(key, 0) for key, value in loader.metrics().items()}
        bound = loader.memory_bound
        batches.close()  # type: ignore[attr-defined]
    seconds = times[-1] - times[0]
    peak = peak_rss()
    ceiling = measure_ceiling(dataset, threads, ceiling_seconds)
    latency = np.diff(times) * 1e3
    frames = stages.get("frames_decoded", 0)
    return Result(
        samples=num_batches * batch_size,
        seconds=seconds,
        samples_per_s=num_batches * batch_size / seconds,
        first_batch_s=first_batch,
        camera_frames_per_s=frames / seconds,
        camera_frames_per_cpu_s=frames / cpu,
        ceiling_frames_per_s=ceiling.frames_per_s,
        ceiling_frames_per_cpu_s=ceiling.per_cpu_s,
        percent_of_ceiling=100 * frames / seconds / ceiling.frames_per_s if ceiling.frames_per_s else 0.0,
        **{f"p{q}_ms": float(np.percentile(latency, q)) for q in (50, 95, 99)},
        episodes_per_batch=float(np.mean(episodes)),
        padded=float(np.mean(padded)) if padded else 0.0,
        peak_rss_bytes=peak,
        memory_bound_bytes=bound,
        stages={key: round(value, 4) for key, value in sorted(stages.items())},
    )


def peak_rss() -> int:
    """Bytes of resident memory that this process had at most so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
