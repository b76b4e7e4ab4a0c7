"""Peak resident memory against the stated bound, after one epoch and after ten, for several buffer sizes.

python benchmarks/memory.py DATASET
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
import json, sys
from robostream import StreamingLeRobotDataset, StreamLoader
from robostream.machine import peak
root, buffer_size, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dataset = StreamingLeRobotDataset(root=root, buffer_size=buffer_size, return_uint8=True)
peaks = []
with StreamLoader(dataset, 64) as loader:
    for _ in range(epochs):
        for batch in loader:
            pass
        peaks.append(peak())
    print(json.dumps({"bound": loader.memory_bound, "peaks": peaks}))
"""


def main(
    dataset: Path,
    buffer_sizes: Annotated[str, typer.Option(help="Comma-separated frames.")] = "500,4000",
    epochs: Annotated[int, typer.Option(help="Epochs of each run.")] = 10,
) -> None:
    """Each buffer size runs in a process of its own."""
    table = Table("buffer_size", "bound", "peak after 1 epoch", f"after {epochs}", "over the bound")
    for size in buffer_sizes.split(","):
        command = [sys.executable, "-c", _RUN, str(dataset), size, str(epochs)]
        run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        first, last, bound = run["peaks"][0], run["peaks"][-1], run["bound"]
        cells = [f"{value / 1e6:,.0f} MB" for value in (bound, first, last, last - bound)]
        table.add_row(size, *cells)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
