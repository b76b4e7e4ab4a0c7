"""A proxy before an HTTP server: round trip, bandwidth, faults by rule, and a record of what was asked for."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from servers.faults import EARLY, STATUSES, Rule, changed_answer, changed_request
from servers.http import HeadReader, Request, parse_head, read_request

PIECE = 128 * 1024  # of a body, sent at once; about 1 ms of a line of 1 Gbit/s
FIRST_WINDOW = 10 * 1460  # bytes that a fresh TCP connection may have under way (RFC 6928)
PAGE = b"<html><body><h1>Please log in to this network</h1></body></html>"


class Line:
    """The bandwidth that all connections share: bytes leave one after the other."""

    def __init__(self, bytes_per_s: float | None) -> None:
        self.bytes_per_s = bytes_per_s
        self._free = 0.0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Waits until `count` bytes have gone over the line."""
        if not self.bytes_per_s:
            return
        with self._lock:
            now = time.monotonic()
            self._free = max(now, self._free) + count / self.bytes_per_s
            wait = self._free - now
        if wait > 0.0005:
            time.sleep(wait)


class Connection:
    """One client's connection and the one upstream that belongs to it."""

    def __init__(self, client: socket.socket, target: tuple[str, int]) -> None:
        self.client, self.target = client, target
        self.reader = HeadReader(client)
        self.upstream: HeadReader | None = None
        self.window = FIRST_WINDOW
        self.fresh = True

    def ask(self, request: Request, headers: dict[str, str]) -> tuple[str, dict[str, str]]:
        """Sends the request upstream; the first line and the headers of the answer."""
        lines = [
            f"{request.method} {request.target} HTTP/1.1",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        message = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + request.body
        for _ in range(2):  # a kept connection may have been closed by the server meanwhile
            try:
                if self.upstream is None:
                    self.upstream = HeadReader(socket.create_connection(self.target))
                    self.upstream.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.upstream.connection.sendall(message)
                if head := self.upstream.head():
                    return parse_head(head)
            except OSError:
                pass
            self.leave_upstream()
        raise ConnectionError("no answer from upstream")

    def leave_upstream(self) -> None:
        if self.upstream is not None:
            self.upstream.connection.close()
        self.upstream = None

    def reset(self) -> None:
        """Closes with a reset, so that the client does not see an orderly end."""
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.close()

    def wait_for_its_end(self) -> None:
        """Sends nothing, until the client goes away."""
        while self.client.recv(65536):
            pass


class Proxy:
    """Stands before `target`. `rtt` in seconds; `bandwidth` in bytes/s, shared by all connections.

    A new connection costs one round trip more, and with `slow_start` its first bytes come in windows that double each
    round trip, as TCP's do.
    """

    def __init__(
        self,
        target: str,
        rtt: float = 0.0,
        bandwidth: float | None = None,
        slow_start: bool = False,
        name: str = "127.0.0.1",
    ) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._rtt, self._slow_start, self._line, self._name = rtt, slow_start, Line(bandwidth), name
        self._rules: list[Rule] = []
        self._record: list[dict[str, Any]] = []
        self._open: set[Connection] = set()
        self._dead = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def address(self) -> dict[str, Any]:
        return {"port": self._port, "url": f"http://{self._name}:{self._port}"}

    def set(self, rtt: float | None = None, bandwidth: float | None = None, slow_start: bool | None = None) -> None:
        self._rtt = self._rtt if rtt is None else rtt
        self._line.bytes_per_s = self._line.bytes_per_s if bandwidth is None else bandwidth
        self._slow_start = self._slow_start if slow_start is None else slow_start

    def fail(self, *kinds: str, **rule: Any) -> None:
        """Adds a rule; see `faults.Rule`."""
        self._rules.append(Rule(list(kinds), **rule))

    def heal(self) -> None:
        """No rule holds any longer."""
        self._rules.clear()

    def die(self) -> None:
        """For good: every connection is reset, and new ones are refused."""
        self._dead = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):  # its client is gone already
                connection.client.shutdown(socket.SHUT_RDWR)

    def record(self) -> list[dict[str, Any]]:
        """Every request: time, method, target, headers, fault, status, bytes of the body that were sent."""
        return list(self._record)

    def totals(self) -> dict[str, Any]:
        """Requests, bytes, and how many requests failed in which way."""
        record = list(self._record)
        faults = Counter(entry["fault"] for entry in record if entry["fault"])
        return {"requests": len(record), "bytes": sum(entry["bytes"] for entry in record), "faults": dict(faults)}

    def forget(self) -> None:
        self._record.clear()

    def _accept(self) -> None:
        while not self._dead:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(client, self._target)
            self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        try:
            while not self._dead and (request := read_request(connection.reader)) is not None:
                if not self._answer(connection, request):
                    return
        except OSError:
            pass  # one of both sides is gone
        finally:
            connection.client.close()
            connection.leave_upstream()
            self._open.discard(connection)

    def _answer(self, connection: Connection, request: Request) -> bool:
        """Whether the connection goes on."""
        rule, kind = next(((rule, kind) for rule in self._rules if (kind := rule.choose(request))), (None, None))
        entry: dict[str, Any] = {"time": time.time(), "method": request.method, "target": request.target}
        entry |= {"headers": request.headers, "fault": kind, "status": None, "bytes": 0}
        self._record.append(entry)
        time.sleep(self._rtt * (2 if connection.fresh else 1))
        connection.fresh = False
        if rule is not None and kind in EARLY:
            return self._fail_early(connection, kind, rule, entry)
        first, headers = connection.ask(request, changed_request(kind, request.headers))
        entry["status"] = int(first.split(" ")[1])
        if headers.get("transfer-encoding", "") == "chunked" and request.method != "HEAD":
            return self._relay_chunks(connection, first, headers, entry)
        length = int(headers.get("content-length", 0))
        empty = request.method == "HEAD" or entry["status"] in (204, 304)
        headers, sent = (headers, 0) if empty else changed_answer(kind, headers, length)
        self._send_head(connection, first, headers)
        self._relay(connection, sent, entry, slow=kind == "trickle")
        if kind == "reset_body" and not empty:
            connection.reset()
        if kind == "stall_body" and not empty:
            connection.wait_for_its_end()
        return empty or sent == length

    def _fail_early(self, connection: Connection, kind: str, rule: Rule, entry: dict[str, Any]) -> bool:
        if kind in STATUSES:
            entry["status"] = int(kind)
            wait = {"retry-after": rule.retry_after} if rule.retry_after is not None else {}
            text = b"" if entry["method"] == "HEAD" else b"not now"
            self._send_head(connection, f"HTTP/1.1 {kind} Not Now", {"content-length": str(len(text)), **wait})
            connection.client.sendall(text)
            return True
        if kind == "html":
            entry["status"] = 206 if rule.done % 2 else 200
            head = {"content-type": "text/html", "content-length": str(len(PAGE))}
            self._send_head(connection, f"HTTP/1.1 {entry['status']} OK", head)
            connection.client.sendall(b"" if entry["method"] == "HEAD" else PAGE)
            return True
        if kind == "garbage":
            connection.client.sendall(b"\x15\x03\x01\x00\x02\x02\x0a\r\n\r\n")
        elif kind == "stall":
            connection.wait_for_its_end()
        else:
            connection.reset()
        return False

    def _send_head(self, connection: Connection, first: str, headers: dict[str, str]) -> None:
        lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
        connection.client.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def _relay(self, connection: Connection, count: int, entry: dict[str, Any], slow: bool) -> None:
        assert connection.upstream is not None
        room = connection.window
        while count > 0:
            if self._slow_start and room == 0:
                time.sleep(self._rtt)
                connection.window = min(2 * connection.window, 16 << 20)
                room = connection.window
            most = min(count, PIECE, room) if self._slow_start else min(count, PIECE)
            part = connection.upstream.some(10 if slow else most)
            if not part:
                raise ConnectionError("upstream ended early")
            self._line.take(len(part))
            entry["bytes"] += len(part)
            connection.client.sendall(part)
            count -= len(part)
            room -= min(room, len(part))
            if slow:
                time.sleep(0.1)

    def _relay_chunks(self, connection: Connection, first: str, headers: dict[str, str], entry: dict[str, Any]) -> bool:
        """An answer in chunks (a listing) goes on as one piece."""
        assert connection.upstream is not None
        body = b""
        while size := int(connection.upstream.line().split(b";")[0], 16):
            body += connection.upstream.body(size)
            connection.upstream.line()
        connection.upstream.line()
        headers = {name: value for name, value in headers.items() if name != "transfer-encoding"}
        self._send_head(connection, first, {**headers, "content-length": str(len(body))})
        entry["bytes"] = len(body)
        connection.client.sendall(body)
        return True
