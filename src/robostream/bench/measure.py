"""One run of the benchmark: a loader is drained for a number of batches, and what that took is put in figures."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import time
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import av

from robostream import machine
from robostream.bench import candidates
from robostream.bench.ceiling import Ceiling, measure_ceiling
from robostream.bench.options import DecodeDevice, Impl, Options
from robostream.bench.result import BenchmarkResult, CacheCounters
from robostream.bench.stages import bottleneck, seconds_by_stage, use_by_stage
from robostream.bench.window import Window, drain
from robostream.build import Share
from robostream.dataset import StreamingLeRobotDataset
from robostream.sizing import keyframe_spacing
from robostream.source.urls import scheme_of, without_secrets

_PACKAGES = ("robostream", "lerobot", "torch", "torchcodec", "av", "numpy", "pyarrow", "datasets", "huggingface_hub")
_PREFETCH = 3  # batches of each worker that a DataLoader holds


def measure(options: Options) -> BenchmarkResult:
    """Run the benchmark. Raises BenchmarkError if nothing could be measured, and what opening a dataset raises."""
    machine.reset_peak()
    baseline = machine.resident()
    start = time.perf_counter()
    dataset = candidates.open_dataset(options)
    open_s = time.perf_counter() - start
    run = _Run(options, dataset)
    with closing(candidates.batches(options, dataset)) as batches:  # type: ignore[type-var]
        window = drain(
            batches,
            batch_size=options.batch_size,
            before=options.warmup_batches + run.filling,
            count=options.num_batches,
            cameras=frozenset(dataset.meta.camera_keys),
            max_seconds=options.max_seconds,
            on_begin=run.begin,
        )
        run.end()
    ceiling = _ceiling(options, dataset)
    rows = candidates.delivered_rows(options) if options.check_rows else None
    return BenchmarkResult(
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        host=platform.node(),
        open_s=open_s,
        baseline_rss_bytes=baseline,
        rows_expected=rows[0] if rows else None,
        rows_delivered=rows[1] if rows else None,
        **_asked(options, dataset),
        **_seen(options, dataset, window),
        **run.counted(window, ceiling),
        **_machine(),
    )


class _Run:
    """Counters of robostream, memory and CPU time over the measured window."""

    def __init__(self, options: Options, dataset: StreamingLeRobotDataset) -> None:
        self._options = options
        self._dataset = dataset
        self._ours = options.impl is Impl.robostream

    @property
    def filling(self) -> int:
        """Batches until robostream's shuffle window was filled twice: the first samples come from the heads of the
        clips, and until the second filling pictures go into memory that is touched for the first time. lerobot fills
        its buffer before its first sample."""
        return 2 * math.ceil(self._options.buffer_size / self._options.batch_size) if self._ours else 0

    def begin(self) -> None:
        self._before, self._cpu = self._dataset.metrics(), time.process_time()

    def end(self) -> None:
        """While the workers still run."""
        self._cpu = time.process_time() - self._cpu
        after = self._dataset.metrics()
        self._counters = {name: value - self._before.get(name, 0) for name, value in after.items()}
        own, children = machine.peak(), machine.peak_of_children()
        self._peak = None if own is None or children is None else own + children

    def counted(self, window: Window, ceiling: Ceiling | None) -> dict[str, Any]:
        """The result's fields that are counted, not timed."""
        figures: dict[str, Any] = {"peak_rss_bytes": self._peak, "stages": {}, "stage_use": {}, "bottleneck": ""}
        figures["video_decoder_cache"] = cache_counters({}, 0)
        if ceiling is not None:
            figures["ceiling_camera_frames_per_s"] = ceiling.frames_per_s
            figures["ceiling_camera_frames_per_cpu_s"] = ceiling.per_cpu_s
        if not self._ours:
            return figures
        options, counters, dataset = self._options, self._counters, self._dataset
        stages = seconds_by_stage(counters, window.seconds, options.consumers)
        readers = dataset.meta.source.parallel
        use = use_by_stage(stages, window.seconds, readers, options.decode_threads, options.consumers)
        decoded = counters.get("frames_decoded", 0) / window.seconds
        figures |= {
            "camera_frames_decoded_per_s": decoded,
            "camera_frames_per_cpu_s": None if options.worker_processes else decoded * window.seconds / self._cpu,
            "percent_of_ceiling": 100 * decoded / ceiling.frames_per_s if ceiling else None,
            "bytes_read": counters.get("bytes_read", 0),
            "bytes_needed": counters.get("bytes_needed", 0),
            "memory_bound_bytes": _memory_bound(options, dataset),
            "stages": stages,
            "stage_use": use,
            "bottleneck": bottleneck(use),
            "video_decoder_cache": cache_counters(counters, _pool_size(options, dataset)),
        }
        return figures


def cache_counters(counters: Mapping[str, float], size: int) -> CacheCounters:
    """The pool as a cache. counters: summed over all workers. size: pictures that it has room for."""
    hits, misses = int(counters.get("pool_hits", 0)), int(counters.get("pool_misses", 0))
    rate = hits / (hits + misses) if hits + misses else 0.0
    evictions = int(counters.get("pool_evictions", 0))
    return CacheCounters(hits=hits, misses=misses, evictions=evictions, hit_rate=rate, size=size)


def _ceiling(options: Options, dataset: StreamingLeRobotDataset) -> Ceiling | None:
    if not options.ceiling_seconds or not dataset.meta.video_keys:
        return None
    threads = min(machine.cores(), options.decode_threads * options.consumers)
    return measure_ceiling(dataset, threads, options.ceiling_seconds)


def _share(options: Options, dataset: StreamingLeRobotDataset) -> Share:
    return Share(dataset.rank * options.consumers, dataset.world_size * options.consumers, dataset.world_size)


def _memory_bound(options: Options, dataset: StreamingLeRobotDataset) -> int:
    """Over all workers, with the batches that are made ahead."""
    each = dataset.blueprint.memory_bound(_share(options, dataset), options.decode_threads, options.batch_size)
    wide = 1 if options.return_uint8 else 5  # float32, and the uint8 it is made of
    batch = options.batch_size * wide * sum(camera.steps * camera.frame_bytes for camera in dataset.cameras)
    return options.consumers * (each + _PREFETCH * batch) + 2 * batch


def _pool_size(options: Options, dataset: StreamingLeRobotDataset) -> int:
    share = _share(options, dataset)
    plan = dataset.blueprint.plan(share)
    rooms = dataset.blueprint.rooms(plan, share, options.decode_threads + 2, options.batch_size)
    return options.consumers * sum(room.budget for room in rooms.values())


def _place(options: Options) -> str:
    """The folder's name, or the URL without its credentials."""
    place = str(options.root or options.data_files_root)
    return without_secrets(place) if scheme_of(place) else Path(place).resolve().name


def _asked(options: Options, dataset: StreamingLeRobotDataset) -> dict[str, Any]:
    """The result's fields that were given, or are the dataset's."""
    ours = options.impl is Impl.robostream
    return {
        "impl": options.impl.value,
        "loader": "torch" if options.uses_workers else "stream",
        "repo_id": options.repo_id or _place(options),
        "source": options.source,
        "mode": options.mode.value,
        "batch_size": options.batch_size,
        "num_workers": options.num_workers,
        "threads": options.decode_threads if ours else 0,
        "buffer_size": options.buffer_size,
        "memory_bytes": options.memory_bytes or None,
        "num_cameras": len(dataset.meta.camera_keys),
        "fps": float(dataset.meta.info.fps),
        "dataset_frames": dataset.num_frames,
        "dataset_episodes": dataset.num_episodes,
        "video": _video(dataset),
        "device": options.device,
        "video_decode_device": options.video_decode_device.value if ours else DecodeDevice.cpu.value,
        "video_backend": options.video_backend if ours else "",
        "return_uint8": options.return_uint8,
        "rank": dataset.rank,
        "world_size": dataset.world_size,
        "processes_per_node": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    }


def _video(dataset: StreamingLeRobotDataset) -> str:
    for table in dataset.blueprint.tables.values():
        return f"{table.codec} {table.width}×{table.height}, keyframe every {keyframe_spacing(table)}"
    return ""


def _seen(options: Options, dataset: StreamingLeRobotDataset, window: Window) -> dict[str, Any]:
    """The result's fields that the clock and the batches tell."""
    latency = window.latency_ms()
    padded = window.padded_share(of_cameras=bool(window.steps[True]))
    shown = sum(camera.steps for camera in dataset.cameras) * window.samples_per_s
    return {
        "frames_measured": window.samples,
        "batches_measured": window.batches,
        "batches_before": window.before,
        "wallclock_s": window.seconds,
        "first_batch_latency_s": window.first_batch_s,
        "samples_per_s": window.samples_per_s,
        "frames_per_s_node": window.samples_per_s * int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        **{f"p{p}_sample_latency_ms": latency[str(p)] for p in (50, 95, 99)},
        "latency_quantiles_ms": latency,
        "camera_frames_shown_per_s": shown * (1 - window.padded_share(of_cameras=True)),
        "padded_share": padded,
        "episodes_per_batch": window.episodes_per_batch,
        "episodes_per_batch_counts": {str(count): window.episodes[count] for count in sorted(window.episodes)},
    }


def _machine() -> dict[str, Any]:
    return {
        "cores": machine.cores(),
        "cpu_model": machine.cpu_model(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS", ""),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**found, "ffmpeg of av": av.ffmpeg_version_info}
