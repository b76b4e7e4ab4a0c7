"""Resident memory of this process, as far as the system tells."""

from __future__ import annotations

import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def resident() -> int | None:
    """Bytes resident now."""
    return _status("VmRSS")


def reset_peak() -> None:
    """Forget the peak so far, where the system can."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return


def peak() -> int | None:
    """The most bytes that were resident at once."""
    found = _status("VmHWM")
    if found is not None or sys.platform == "win32":
        return found
    import resource  # not on every system

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _status(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
