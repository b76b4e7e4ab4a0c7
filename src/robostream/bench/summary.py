"""A tree of results as one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from robostream.bench.result import BenchmarkResult


@dataclass
class Found:
    """What lies in a folder. results: with their files. passed_over: files that are no results, and why."""

    results: list[tuple[Path, BenchmarkResult]] = field(default_factory=list)
    passed_over: list[tuple[Path, str]] = field(default_factory=list)


def find_results(folder: Path) -> Found:
    """All results below a folder, ordered by what they measured."""
    found = Found()
    for path in sorted(folder.rglob("*.json")):
        try:
            found.results.append((path, BenchmarkResult.model_validate_json(path.read_bytes())))
        except ValidationError as error:
            found.passed_over.append((path, _why(path, error)))
        except OSError as error:
            found.passed_over.append((path, f"it can't be read: {error.strerror}"))
    found.results.sort(key=lambda pair: (order(pair[1]), pair[0]))
    return found


def _why(path: Path, error: ValidationError) -> str:
    problems = error.errors()
    if problems[0]["type"] == "json_invalid":
        return f"it is not JSON: {problems[0]['ctx']['error']}"
    if not isinstance(json.loads(path.read_bytes()), dict):
        return "it is not a benchmark result"
    missing = [str(p["loc"][-1]) for p in problems if p["type"] == "missing"]
    if len(missing) > 5:
        return f"it is not a benchmark result: it lacks {', '.join(missing[:3])} and {len(missing) - 3} other fields"
    first = problems[0]
    where = ".".join(map(str, first["loc"])) or "the whole"
    return f"it is not a valid benchmark result: {where}: {first['msg']}"


def order(result: BenchmarkResult) -> tuple[str, ...]:
    """What results are sorted by; those with the same settings come together."""
    modes = ("single", "sarm", "sarm_images")
    return (str(modes.index(result.mode)), result.repo_id, result.source, result.impl, *map(str, settings(result)))


def settings(result: BenchmarkResult) -> tuple[object, ...]:
    """All that was chosen for a run: runs that agree in it are repeats of each other."""
    return (
        result.repo_id,
        result.source,
        result.mode,
        result.impl,
        result.loader,
        result.num_workers,
        result.threads,
        result.batch_size,
        result.buffer_size,
        result.memory_bytes,
        result.device,
        result.video_decode_device,
        result.video_backend,
        result.return_uint8,
        result.world_size,
        result.rank,
        result.host,
        result.video,
    )


COLUMNS = (
    "source",
    "mode",
    "impl",
    "decode",
    "workers",
    "bs",
    "frames/s/node",
    "first s",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "hit rate",
    "of ceiling",
)
NUMBERS = COLUMNS[5:]


def workers(result: BenchmarkResult) -> str:
    """What made the batches: decoding threads, or worker processes."""
    return f"{result.threads} thr" if result.loader == "stream" else f"{result.num_workers} proc"


def cells(result: BenchmarkResult) -> list[str]:
    """One line of the comparison; see `COLUMNS`."""
    cache, ceiling = result.video_decoder_cache, result.percent_of_ceiling
    latencies = (result.p50_sample_latency_ms, result.p95_sample_latency_ms, result.p99_sample_latency_ms)
    return [
        result.source if result.world_size == 1 else f"{result.source}, rank {result.rank} of {result.world_size}",
        result.mode,
        result.impl,
        result.video_decode_device,
        workers(result),
        str(result.batch_size),
        f"{result.frames_per_s_node:,.1f}",
        f"{result.first_batch_latency_s:.2f}",
        *(f"{latency:.2f}" for latency in latencies),
        f"{cache.hit_rate:.1%}" if cache.size else "",
        "" if ceiling is None else f"{ceiling:.0f} %",
    ]


def medians(results: Sequence[BenchmarkResult]) -> list[tuple[BenchmarkResult, int]]:
    """Of each group of repeats, the run with the median throughput, and how many runs there were; in order."""
    groups: dict[tuple[object, ...], list[BenchmarkResult]] = {}
    for result in results:
        groups.setdefault(settings(result), []).append(result)
    middle = (sorted(group, key=lambda r: r.samples_per_s) for group in groups.values())
    return [(group[(len(group) - 1) // 2], len(group)) for group in middle]
