"""Reads in a process of their own, for libraries whose threads do not survive a fork.

A forked child, such as a worker of a DataLoader, can't use them any more once its parent did. It starts one fresh
process instead, and hands every read to it over a pipe. That process ends when the pipe closes.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

from robostream.metrics import Metrics
from robostream.source.interface import Stat
from robostream.source.remote import PARALLEL, Store
from robostream.source.retry import RetryPolicy, TransientError

_LENGTH = 8  # bytes in front of each message: its length


class HelperSession:
    """A store's session in another process. See `Session` in remote.py."""

    def __init__(self, store: Store, policy: RetryPolicy, metrics: Metrics) -> None:
        self._setup = pickle.dumps((store, policy))
        self._metrics = metrics
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._helper: _Helper | None = None

    def stat(self, path: str) -> Stat:
        found: Stat = self._ask("stat", path)
        return found

    def whole(self, path: str) -> bytes:
        data: bytes = self._ask("whole", path)
        return data

    def part(self, path: str, start: int, stop: int, stat: Stat) -> bytes:
        data: bytes = self._ask("part", path, start, stop, stat)
        return data

    def _ask(self, name: str, *arguments: Any) -> Any:
        self._metrics.add("requests")
        begun = time.monotonic()
        with self._lock:
            if self._helper is None or self._helper.ended:
                self._helper = _Helper(self._setup)
            answer = self._helper.ask(next(self._numbers), name, arguments)
        try:
            return answer.result()
        finally:
            self._metrics.add("first_byte_s", time.monotonic() - begun)

    def list(self, prefix: str) -> list[str] | None:
        names: list[str] | None = self._ask("list", prefix)
        return names


class _Helper:
    """The process, and the answers that are still to come from it."""

    def __init__(self, setup: bytes) -> None:
        command = [sys.executable, "-c", "from robostream.source.helper import serve; serve()"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._in: BinaryIO = process.stdin  # type: ignore[assignment]
        self._out: BinaryIO = process.stdout  # type: ignore[assignment]
        self.ended = False
        self._due: dict[int, Future[Any]] = {}
        _write(self._in, setup)
        threading.Thread(target=self._receive, name="robostream-helper", daemon=True).start()

    def ask(self, number: int, name: str, arguments: tuple[Any, ...]) -> Future[Any]:
        """Not thread-safe."""
        answer = self._due[number] = Future()
        try:
            _write(self._in, pickle.dumps((number, name, arguments)))
        except OSError:
            self._end()
        return answer

    def _receive(self) -> None:
        while (message := _read(self._out)) is not None:
            number, value, error = pickle.loads(message)
            answer = self._due.pop(number)
            answer.set_exception(error) if error is not None else answer.set_result(value)
        self._end()

    def _end(self) -> None:
        self.ended = True
        self._process.kill()
        self._process.wait()
        for number in list(self._due):
            answer = self._due.pop(number, None)
            if answer is not None:
                answer.set_exception(TransientError("the process that reads from the store has ended"))


def serve() -> None:
    """The work of the process: read requests from standard input until it closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it is told, and closes the pipe
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between the answers
    setup = _read(requests)
    if setup is None:
        return
    store, policy = pickle.loads(setup)
    session = store.connect(policy, Metrics())
    lock = threading.Lock()

    def answer(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            reply: tuple[int, Any, Exception | None] = (number, getattr(session, name)(*arguments), None)
        except Exception as error:
            reply = (number, None, error)
        with lock:
            _write(answers, pickle.dumps(reply))

    pool = ThreadPoolExecutor(PARALLEL)
    while (message := _read(requests)) is not None:
        pool.submit(answer, *pickle.loads(message))
    os._exit(0)


def _write(file: BinaryIO, message: bytes) -> None:
    file.write(len(message).to_bytes(_LENGTH, "little"))
    file.write(message)
    file.flush()


def _read(file: BinaryIO) -> bytes | None:
    """The next message; None at the end."""
    length = file.read(_LENGTH)
    if len(length) < _LENGTH:
        return None
    size = int.from_bytes(length, "little")
    message = file.read(size)
    return message if len(message) == size else None
