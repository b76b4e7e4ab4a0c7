"""What this machine is, and what this process takes of it, as far as the system tells."""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
import sys
from pathlib import Path

_CLEAR_REFS = Path("/proc/self/clear_refs")
_CPU_INFO = Path("/proc/cpuinfo")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """What the processor calls itself; "" where the system doesn't tell."""
    try:
        if sys.platform == "darwin":
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
        named = [line for line in _CPU_INFO.read_text().splitlines() if line.startswith("model name")]
        return named[0].split(":", 1)[1].strip() if named else platform.processor()
    except (OSError, subprocess.SubprocessError):
        return platform.processor()


def resident() -> int | None:
    """Bytes resident now."""
    return _status(os.getpid(), "VmRSS")


def reset_peak() -> None:
    """Forget the peak so far, where the system can."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return


def peak() -> int | None:
    """The most bytes that were resident at once."""
    found = _status(os.getpid(), "VmHWM")
    if found is not None or sys.platform == "win32":
        return found
    import resource  # not on every system

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def peak_of_children() -> int | None:
    """The sum of the most bytes that each running child was resident with; memory that they share counts in each."""
    peaks = [_status(child.pid, "VmHWM") for child in multiprocessing.active_children() if child.pid is not None]
    return None if None in peaks else sum(value or 0 for value in peaks)


def _status(pid: int, name: str) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
