"""Threads that end before the interpreter does.

A daemon thread that is at work when the interpreter is torn down is unwound wherever it happens to be, and within a
library's C++ code that aborts the process. So threads are told to end at exit, and waited for. Arrow's threads can't be
told: to let go of what they read through Python's files they need the interpreter lock, so they get it once more.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable

_PATIENCE_S = 5.0  # in all; a thread that waits for a network longer than that does no harm
_GRACE_S = 0.01  # for Arrow's threads, which are at it for microseconds

_running: dict[threading.Thread, Callable[[], None]] = {}


def start(run: Callable[[], None], name: str, stop: Callable[[], None]) -> threading.Thread:
    """Start a thread. `stop` tells it to end, from any thread and at any time, without waiting for it."""

    def until_done() -> None:
        try:
            run()
        finally:
            _running.pop(threading.current_thread(), None)

    thread = threading.Thread(target=until_done, name=f"robostream-{name}", daemon=True)
    _running[thread] = stop
    thread.start()
    return thread


def _end_all() -> None:
    deadline = time.monotonic() + _PATIENCE_S
    alive = {thread: stop for thread, stop in list(_running.items()) if thread.is_alive()}  # others: before a fork
    for stop in alive.values():
        stop()
    for thread in alive:
        thread.join(max(0.0, deadline - time.monotonic()))
    time.sleep(_GRACE_S)


atexit.register(_end_all)
