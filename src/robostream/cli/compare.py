"""`robostream compare`: robostream beside lerobot's own classes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from robostream import machine
from robostream.bench.compare import COLUMNS, Settings, cells, markdown, verdicts
from robostream.bench.compare import compare as run_all
from robostream.bench.modes import Mode
from robostream.bench.options import Impl
from robostream.cli.common import console, error_console, table
from robostream.errors import BenchmarkError


def compare(
    root: Annotated[Path, typer.Option("--root", help="Local folder of the dataset (v3.0, for lerobot's sake).")],
    mode: Annotated[
        list[Mode] | None, typer.Option("--mode", help="A mode; repeat for more. [default: all]", show_default=False)
    ] = None,
    impl: Annotated[
        list[Impl] | None,
        typer.Option("--impl", help="An implementation; repeat for more. [default: all]", show_default=False),
    ] = None,
    peer_python: Annotated[
        str, typer.Option("--peer_python", help="The Python that has lerobot and robostream.", show_default=False)
    ] = sys.executable,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each, interleaved.")] = 3,
    batch_size: Annotated[int, typer.Option("--batch_size", min=1)] = 64,
    buffer_size: Annotated[int, typer.Option("--buffer_size", min=1, help="Shuffle window in frames.")] = 2000,
    num_workers: Annotated[
        int, typer.Option("--num_workers", min=0, help="Worker processes of lerobot's classes.")
    ] = machine.cores(),
    threads: Annotated[int, typer.Option("--threads", min=0, help="Of robostream; 0: one a core.")] = 0,
    return_uint8: Annotated[
        bool, typer.Option("--return_uint8/--no_return_uint8", help="Pictures as uint8 or float32, for all.")
    ] = True,
    num_batches: Annotated[int, typer.Option("--num_batches", min=1, help="Batches to measure in a run.")] = 100,
    warmup_batches: Annotated[int, typer.Option("--warmup_batches", min=0)] = 5,
    max_seconds: Annotated[
        float, typer.Option("--max_seconds", min=0, help="Measure no longer in a run; 0: no limit.")
    ] = 60.0,
    timeout_seconds: Annotated[
        float, typer.Option("--timeout_seconds", min=1, help="Give a run up after this.")
    ] = 1800.0,
    ceiling_seconds: Annotated[
        float, typer.Option("--ceiling_seconds", min=0, help="Bare decoding in each run of robostream.")
    ] = 3.0,
    out_dir: Annotated[Path, typer.Option("--out_dir", help="Folder for all results.")] = Path("compare-out"),
) -> None:
    """Measure robostream and lerobot's classes in turns, with the same settings and OMP_NUM_THREADS=1."""
    flags = {
        "root": root.resolve(),
        "source": "local",
        "batch_size": batch_size,
        "buffer_size": buffer_size,
        "num_workers": num_workers,
        "threads": threads,
        "num_batches": num_batches,
        "warmup_batches": warmup_batches,
        "max_seconds": max_seconds,
    }
    settings = Settings(
        modes=mode or list(Mode),
        impls=impl or list(Impl),
        repeats=repeats,
        flags=[*(str(part) for name, value in flags.items() for part in (f"--{name}", value)), _uint8(return_uint8)],
        out_dir=out_dir,
        peer_python=peer_python,
        ceiling_seconds=ceiling_seconds,
        timeout_s=timeout_seconds,
    )
    target, notes = console(), error_console()
    entries = run_all(settings, lambda line: notes.print(line, soft_wrap=True))
    shown = table(*COLUMNS, right=COLUMNS[2:7])
    for entry in entries:
        shown.add_row(*cells(entry, entries))
    target.print(shown)
    for line in verdicts(entries):
        target.print(line, soft_wrap=True)
    out_dir.mkdir(parents=True, exist_ok=True)
    page = out_dir / "comparison.md"
    page.write_text(markdown(entries, shlex.join(["robostream", *sys.argv[1:]])))
    target.print(f"\nWritten: {page}; `robostream summarize {out_dir}` makes a report of all runs", soft_wrap=True)
    if not any(entry.results for entry in entries):
        raise BenchmarkError("no implementation gave a result")


def _uint8(return_uint8: bool) -> str:
    return "--return_uint8" if return_uint8 else "--no_return_uint8"
