"""robostream against lerobot's classes: the same benchmark in processes of their own, interleaved and repeated."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from robostream.bench.modes import Mode
from robostream.bench.options import Impl
from robostream.bench.result import BenchmarkResult


@dataclass(frozen=True)
class Settings:
    """What is compared. flags: of `robostream bench`, the same for all. peer_python: the one that has lerobot.

    ceiling_seconds: of robostream's runs. timeout_s: of a run. offline: whether to keep lerobot from asking the Hub.
    """

    modes: Sequence[Mode]
    impls: Sequence[Impl]
    repeats: int
    flags: Sequence[str]
    out_dir: Path
    peer_python: str = sys.executable
    ceiling_seconds: float = 3.0
    timeout_s: float = 1800.0
    offline: bool = True


@dataclass
class Entry:
    """The runs of one implementation in one mode. failure: why it gave none, or not all."""

    mode: Mode
    impl: Impl
    results: list[BenchmarkResult] = field(default_factory=list)
    failure: str = ""

    @property
    def figure(self) -> float:
        """Median of the pictures shown in a second, without padding; of samples where there are no pictures."""
        return statistics.median(figure(result) for result in self.results)

    @property
    def rows_lost(self) -> int:
        """Rows of an epoch that never came, as far as they were counted."""
        return max(((r.rows_expected or 0) - (r.rows_delivered or 0) for r in self.results), default=0)

    def median(self, name: str) -> float:
        """Median of a field of the results."""
        values: list[float] = [getattr(result, name) for result in self.results]
        return statistics.median(values)


def figure(result: BenchmarkResult) -> float:
    """What implementations are compared by."""
    return result.camera_frames_shown_per_s if result.num_cameras else result.samples_per_s


def compare(settings: Settings, progress: Callable[[str], None] = lambda _: None) -> list[Entry]:
    """Run everything: each implementation once, then again, so that a change of the machine's pace hits all alike.

    An implementation that fails is not tried again in that mode. Files go to `out_dir/MODE/IMPL/run-N`.
    """
    entries = []
    for mode in settings.modes:
        of_mode = [Entry(mode, impl) for impl in settings.impls]
        entries += of_mode
        for turn in range(settings.repeats):
            for entry in of_mode:
                if not entry.failure:
                    progress(f"{mode.value}, run {turn + 1} of {settings.repeats}: {entry.impl.value}")
                    _run(settings, entry, turn)
    return entries


def _run(settings: Settings, entry: Entry, turn: int) -> None:
    ours = entry.impl is Impl.robostream
    folder = settings.out_dir / entry.mode.value / entry.impl.value / f"run-{turn + 1}"
    for old in folder.glob("*.json"):
        old.unlink()
    command = [sys.executable if ours else settings.peer_python, "-m", "robostream", "bench"]
    command += ["--impl", entry.impl.value, "--mode", entry.mode.value, "--out_dir", str(folder), *settings.flags]
    command += ["--ceiling_seconds", str(settings.ceiling_seconds if ours else 0)]
    command += ["--check_rows"] if turn == 0 else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"HF_HUB_OFFLINE": "1"} if settings.offline else {})}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=settings.timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        entry.failure = f"no result within {settings.timeout_s:.0f} s"
        return
    except OSError as error:
        entry.failure = f"{command[0]} could not be started: {error}"
        return
    found = sorted(folder.glob("*.json"))
    if done.returncode or not found:
        entry.failure = _reason(done)
        return
    entry.results.append(BenchmarkResult.model_validate_json(found[0].read_text()))


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return errors[-1] if errors else (lines[-1] if lines else f"exit status {done.returncode}")


def ratio(entry: Entry, entries: Sequence[Entry]) -> float | None:
    """How many times faster robostream is than this entry, in its mode; None if either gave no result."""
    ours = next((e for e in entries if e.mode is entry.mode and e.impl is Impl.robostream), None)
    if ours is None or not ours.results or not entry.results:
        return None
    return ours.figure / entry.figure


def cells(entry: Entry, entries: Sequence[Entry]) -> list[str]:
    """One line of the comparison; see `COLUMNS`."""
    if not entry.results:
        return [entry.mode.value, entry.impl.value, "failed", "", "", "", "", entry.failure]
    rates = [result.samples_per_s for result in entry.results]
    spread = f" ({min(rates):,.0f}–{max(rates):,.0f})" if len(rates) > 1 else ""
    times = ratio(entry, entries)
    notes = [f"LOSES {entry.rows_lost:,} rows of an epoch"] if entry.rows_lost else []
    notes += [f"failed in a later run: {entry.failure}"] if entry.failure else []
    return [
        entry.mode.value,
        entry.impl.value,
        f"{statistics.median(rates):,.0f}{spread}",
        f"{entry.median('camera_frames_shown_per_s'):,.0f}",
        f"{entry.median('padded_share'):.0%}",
        f"{entry.median('first_batch_latency_s'):.1f} s",
        "" if times is None or entry.impl is Impl.robostream else f"{times:.1f} ×",
        "; ".join(notes),
    ]


COLUMNS = ("mode", "implementation", "samples/s", "pictures/s", "padded", "first batch", "robostream is", "notes")


def verdicts(entries: Sequence[Entry]) -> list[str]:
    """For each mode, robostream against the best of the others."""
    lines = []
    for mode in dict.fromkeys(entry.mode for entry in entries):
        others = [entry for entry in entries if entry.mode is mode and entry.impl is not Impl.robostream]
        measured = [(times, entry) for entry in others if (times := ratio(entry, entries)) is not None]
        if measured:
            times, best = min(measured, key=lambda pair: pair[0])
            lines.append(f"{mode.value}: robostream is {times:.1f} times as fast as the best other, {best.impl.value}")
    return lines


def _with(result: BenchmarkResult) -> str:
    names = ("lerobot", "torch", "torchcodec", "av", "python")
    known = ", ".join(f"{name} {result.versions[name]}" for name in names if name in result.versions)
    who = "robostream" if result.impl == "robostream" else "lerobot's classes"
    return f"{who} with {known}"


def markdown(entries: Sequence[Entry], command: str) -> str:
    """The comparison as a Markdown page, with what it was measured on."""
    results = [result for entry in entries for result in entry.results]
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cells(entry, entries)) + " |" for entry in entries]
    lines += ["", *(f"- {line}" for line in verdicts(entries))]
    if results:
        one = results[0]
        lines.append(f"- {one.repo_id}: {one.num_cameras} cameras, {one.video}; {one.dataset_frames:,} frames")
        lines.append(f"- {one.cores} cores of {one.cpu_model}; OMP_NUM_THREADS={one.omp_num_threads}")
        lines += [f"- {line}" for line in dict.fromkeys(_with(result) for result in results)]
    lines += ["- pictures/s: those in samples, without padding. Medians; in brackets the slowest and fastest run."]
    return "\n".join([*lines, "", f"    {command}", ""])
