"""Does a rank's data path slow down with the number of ranks? Rank 0 of 1, 4 and 16, each in a process of its own.

python benchmarks/ranks.py DATASET
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

_RUN = """
import itertools, json, sys, time
import torch, av, pyarrow.parquet
from robostream import StreamingLeRobotDataset, StreamLoader, machine
root, ranks, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
idle, begun, cpu = machine.resident(), time.perf_counter(), time.process_time()
dataset = StreamingLeRobotDataset(
    root=root, rank=0, world_size=ranks, return_uint8=True, buffer_size=500, num_threads=1, repeat=True
)
with StreamLoader(dataset, 32) as loader:
    running = iter(loader)
    next(running)
    first, first_cpu = time.perf_counter() - begun, time.process_time() - cpu
    for _ in itertools.islice(running, batches):
        pass
    later, cpu = time.perf_counter(), time.process_time()
    for _ in itertools.islice(running, batches):
        pass
    rate, cpu = 32 * batches / (time.perf_counter() - later), (time.process_time() - cpu) / (32 * batches)
    running.close()
    print(json.dumps({"first": first, "first_cpu": first_cpu, "rate": rate, "cpu": cpu,
                      "memory": machine.peak() - idle, "bound": loader.memory_bound}))
"""


def measure(dataset: Path, ranks: int, batches: int) -> dict[str, float]:
    """Figures of rank 0 of so many."""
    command = [sys.executable, "-c", _RUN, str(dataset), str(ranks), str(batches)]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main(
    dataset: Path,
    ranks: Annotated[str, typer.Option(help="Comma-separated numbers of ranks.")] = "1,4,16",
    batches: Annotated[int, typer.Option(help="Batches to measure, after as many to warm up.")] = 40,
    runs: Annotated[int, typer.Option(help="Of each; the best counts.")] = 3,
) -> None:
    """Time to the first batch, speed and memory of one rank."""
    table = Table("ranks", "first batch", "its CPU time", "samples/s", "CPU time a sample", "memory", "bound")
    for count in map(int, ranks.split(",")):
        found = [measure(dataset, count, batches) for _ in range(runs)]
        least = {key: min(run[key] for run in found) for key in found[0]}
        table.add_row(
            str(count),
            f"{least['first']:.2f} s",
            f"{least['first_cpu']:.2f} s",
            f"{max(run['rate'] for run in found):,.0f}",
            f"{1e3 * least['cpu']:.2f} ms",
            f"{least['memory'] / 1e6:,.0f} MB",
            f"{least['bound'] / 1e6:,.0f} MB",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
