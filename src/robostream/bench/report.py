"""The results as one HTML page: no scripts, no other files, readable on a phone, light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from robostream.bench.modes import TARGETS, Mode
from robostream.bench.result import BenchmarkResult
from robostream.bench.stages import ADVICE
from robostream.bench.summary import COLUMNS, NUMBERS, Found, cells, medians

STAGES = ("fetch", "decode", "assemble", "hand_over")
_TICKS = 5  # on an axis, at most


@dataclass(frozen=True)
class Run:
    """A run as the charts show it: its name, and what tells it from the others."""

    result: BenchmarkResult
    repeats: int
    name: str
    detail: str


@dataclass(frozen=True)
class Axis:
    """A scale from 0 % to 100 % of a chart's width. ticks: (percent, label)."""

    low: float
    high: float
    log: bool
    ticks: list[tuple[float, str]]

    def at(self, value: float) -> float:
        """Where a value lies, in percent."""
        if self.log:
            value, low, high = (math.log10(max(v, self.low)) for v in (value, self.low, self.high))
        else:
            low, high = self.low, self.high
        return round(min(100.0, max(0.0, 100 * (value - low) / (high - low))), 2)


def write_report(path: Path, found: Found, title: str) -> None:
    """Write the page."""
    path.write_text(render(found, title), encoding="utf-8")


def render(found: Found, title: str) -> str:
    """The page's HTML."""
    results = [result for _, result in found.results]
    runs = _named(medians(results))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("report.html.j2")
    return template.render(
        title=title,
        created=max(result.created for result in results)[:10],
        results=results,
        cards=_cards(runs),
        throughput=_throughput(runs),
        latency=_latency(runs),
        stages=_stages(runs),
        mixing=_mixing(runs),
        stage_names=STAGES,
        id=id,
        columns=COLUMNS,
        numbers=NUMBERS,
        rows=[cells(result) for result in results],
        machines=_machines(results),
        passed_over=[(str(file), why) for file, why in found.passed_over],
    )


def _named(runs: Sequence[tuple[BenchmarkResult, int]]) -> list[Run]:
    """Each run with what tells it apart: settings that are the same in all are not repeated."""
    parts: list[dict[str, str]] = [
        {
            "source": result.source,
            "decode": f"{result.video_backend} on {result.video_decode_device}" if result.video_backend else "",
            "batch": f"batches of {result.batch_size}",
            "buffer": f"window {result.buffer_size:,}",
            "memory": f"{result.memory_bytes / 1e9:.1f} GB kept" if result.memory_bytes else "nothing kept",
            "type": "uint8" if result.return_uint8 else "float32",
            "device": f"to {result.device}",
            "host": result.host,
            "rank": f"rank {result.rank} of {result.world_size}" if result.world_size > 1 else "",
        }
        for result, _ in runs
    ]
    varying = [key for key in parts[0] if len({part[key] for part in parts} - {""}) > 1]
    named = []
    for (result, repeats), part in zip(runs, parts, strict=True):
        details = [
            f"{result.threads} threads" if result.loader == "stream" else f"{result.num_workers} workers",
            *(part[key] for key in varying if part[key]),
        ]
        details += [f"median of {repeats} runs"] if repeats > 1 else []
        named.append(Run(result, repeats, result.impl, " · ".join(details)))
    return named


def _groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs that can be compared: of one mode and one dataset. robostream's come first."""
    several = len({run.result.repo_id for run in runs}) > 1
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.name != "robostream"):
        groups.setdefault(_place(run.result, several), []).append(run)
    return {name: groups[name] for name in dict.fromkeys(_place(run.result, several) for run in runs)}


def _place(result: BenchmarkResult, several: bool) -> str:
    return f"{result.mode} · {result.repo_id}" if several else result.mode


def _cards(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The fastest run of each mode."""
    cards = []
    for mode in Mode:
        found = [run for run in runs if run.result.mode == mode.value]
        if not found:
            continue
        best = max(found, key=lambda run: run.result.frames_per_s_node)
        target = TARGETS.get(mode)
        cards.append(
            {
                "mode": mode.value,
                "rate": best.result.frames_per_s_node,
                "run": best,
                "ceiling": best.result.percent_of_ceiling,
                "target": target,
                "met": target is not None and best.result.frames_per_s_node >= target,
                "bottleneck": ADVICE.get(best.result.bottleneck, ""),
            }
        )
    return cards


def _throughput(runs: Sequence[Run]) -> dict[str, Any]:
    """Samples/s of each run, and what its decode ceiling would allow at as many pictures for each sample."""
    charts = {}
    for name, found in _groups(runs).items():
        ceilings = {id(run): _allowed(run.result) for run in found}
        most = max(max(run.result.samples_per_s, ceilings[id(run)] or 0.0) for run in found)
        charts[name] = {"runs": found, "ceilings": ceilings, "axis": linear_axis(most)}
    return charts


def _allowed(result: BenchmarkResult) -> float | None:
    percent = result.percent_of_ceiling
    return result.samples_per_s * 100 / percent if percent else None


def _latency(runs: Sequence[Run]) -> dict[str, Any]:
    values = [v for run in runs for key in ("5", "99") if (v := run.result.latency_quantiles_ms[key]) > 0]
    return {"axis": log_axis(min(values, default=1.0), max(values, default=1.0)), "groups": _groups(runs)}


def _stages(runs: Sequence[Run]) -> dict[str, Any]:
    """Milliseconds of thread time that a sample costs in each stage."""
    costs = {
        id(run): {name: 1e3 * run.result.stages.get(name, 0.0) / run.result.frames_measured for name in STAGES}
        for run in runs
        if run.result.stages
    }
    most = max((sum(cost.values()) for cost in costs.values()), default=1.0)
    return {"groups": _groups([run for run in runs if id(run) in costs]), "costs": costs, "axis": linear_axis(most)}


def _mixing(runs: Sequence[Run]) -> dict[str, Any]:
    spans = {id(run): [int(count) for count in run.result.episodes_per_batch_counts] or [0] for run in runs}
    return {"groups": _groups(runs), "spans": spans, "axis": linear_axis(max(map(max, spans.values())))}


def _machines(results: Sequence[BenchmarkResult]) -> list[dict[str, Any]]:
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for result in results:
        key = (result.host, result.cpu_model, result.cores, result.omp_num_threads, *sorted(result.versions.items()))
        shown = found.setdefault(key, {"result": result, "impls": []})
        if result.impl not in shown["impls"]:
            shown["impls"].append(result.impl)
    return list(found.values())


def linear_axis(most: float) -> Axis:
    """From 0 to a little more than `most`, with round ticks."""
    most = most or 1.0
    rough = most * 1.02 / (_TICKS - 1)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough)
    high = most * 1.02
    values = [k * step for k in range(math.floor(high / step + 1e-9) + 1)]
    return Axis(0.0, high, False, [(round(100 * v / high, 2), f"{v:,.{0 if step >= 1 else 2}f}") for v in values])


def log_axis(least: float, most: float) -> Axis:
    """Powers of ten around the values, in milliseconds."""
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))
    high = max(high, low + 1)
    ticks = [(round(100 * (k - low) / (high - low), 2), f"{10.0**k:g}") for k in range(low, high + 1)]
    return Axis(10.0**low, 10.0**high, True, ticks)
