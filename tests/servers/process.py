"""Runs one server as a process of its own, and calls its methods: a line of JSON each way.

The process ends when its input closes, so it never outlives the tests.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

KINDS = {
    "files": ("servers.files", "FileServer"),
    "hub": ("servers.hub", "HubServer"),
    "proxy": ("servers.proxy", "Proxy"),
}


class ServerProcess:
    """A running server. `url`, `port` and the like are what the server says of itself; other names call its methods."""

    def __init__(self, kind: str, **settings: Any) -> None:
        tests = str(Path(__file__).resolve().parent.parent)
        command = [sys.executable, "-m", "servers.process", kind, json.dumps(settings)]
        environment = {**os.environ, "PYTHONPATH": tests}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd=tests, text=True
        )
        self._lock = threading.Lock()
        self._address: dict[str, Any] = self._call("address")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._address:
            return self._address[name]
        return lambda *args, **kwargs: self._call(name, *args, **kwargs)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps([name, args, kwargs]) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with {self._process.wait()} when asked for {name}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["value"]


def main() -> None:
    module, name = KINDS[sys.argv[1]]
    server = getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
    for line in sys.stdin:
        called, args, kwargs = json.loads(line)
        try:
            answer = {"value": getattr(server, called)(*args, **kwargs)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
