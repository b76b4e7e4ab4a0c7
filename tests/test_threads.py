"""Threads end with the process, whatever it left open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import write

LEFT_OPEN = {
    "a dropped dataset": "next(iter(StreamingLeRobotDataset(root=root)))",
    "a dataset": "samples = iter(StreamingLeRobotDataset(root=root)); next(samples)",
    "a loader": "batches = iter(StreamLoader(StreamingLeRobotDataset(root=root), 4)); next(batches)",
}
CODE = """
import atexit, sys, threading
# Called after the package's own, which is registered later.
names = lambda: [thread.name for thread in threading.enumerate() if thread.name.startswith("robostream")]
atexit.register(lambda: print("left:", names()))
from robostream import StreamingLeRobotDataset, StreamLoader
root = sys.argv[1]
"""


@pytest.mark.parametrize("left_open", LEFT_OPEN.values(), ids=LEFT_OPEN)
def test_no_thread_is_left_when_the_interpreter_ends(tmp_path: Path, left_open: str) -> None:
    root = write(tmp_path, [40] * 6)
    command = [sys.executable, "-c", f"{CODE}\n{left_open}\nprint('running:', len(names()))", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    running, left = done.stdout.splitlines()
    assert left_open.startswith("next") or running != "running: 0"
    assert left == "left: []"
