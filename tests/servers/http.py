"""A small threaded HTTP/1.1 server: one handler function, ranges of files, a record of every request.

It parses little and sends files with `sendfile`, so that a benchmark measures the client and not the server.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

REASONS = {200: "OK", 206: "Partial Content", 302: "Found", 307: "Temporary Redirect", 416: "Range Not Satisfiable"}


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]  # names in lower case
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path as sent: with %2F still apart from the slashes."""
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.target).query, keep_blank_values=True))

    @property
    def bearer(self) -> str | None:
        scheme, _, value = self.headers.get("authorization", "").partition(" ")
        return value if scheme.lower() == "bearer" else None


@dataclass
class Response:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    file: str | None = None  # sent instead of the body
    start: int = 0
    length: int = 0


Handler = Callable[[Request], Response]


def file_response(request: Request, path: str, etag: str, headers: dict[str, str] | None = None) -> Response:
    """A file, or the one range of it that is asked for, under the conditions that the request makes."""
    size = os.stat(path).st_size
    head = {"Accept-Ranges": "bytes", "ETag": etag, "Content-Type": "application/octet-stream", **(headers or {})}
    if request.headers.get("if-match", etag) not in (etag, "*"):
        return Response(412, head)
    if request.headers.get("if-none-match") == etag:
        return Response(304, head)
    if_range = request.headers.get("if-range", etag)
    span = parse_range(request.headers.get("range", ""), size) if if_range == etag else (0, size)
    if span is None:
        return Response(200, head, file=path, length=size)
    start, stop = span
    if start >= stop and size:
        return Response(416, {**head, "Content-Range": f"bytes */{size}"})
    if "range" not in request.headers or if_range != etag:
        return Response(200, head, file=path, length=size)
    head["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return Response(206, head, file=path, start=start, length=stop - start)


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """`bytes=a-b`, `bytes=a-` and `bytes=-n` as a half-open span; None where there is no such range."""
    if not text.startswith("bytes=") or "," in text:
        return None
    first, _, last = text[len("bytes=") :].partition("-")
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1 if last else size)


class HttpServer:
    """Serves `handler` on a free port of loopback, one thread for each connection."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._record: list[dict[str, Any]] = []
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def record(self) -> list[dict[str, Any]]:
        """Every request so far: time, method, target, headers, status, bytes of the body."""
        return list(self._record)

    def forget(self) -> None:
        self._record.clear()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            reader = HeadReader(connection)
            try:
                while (request := read_request(reader)) is not None:
                    self._answer(connection, request)
                    if request.headers.get("connection", "").lower() == "close":
                        return
            except OSError:
                pass  # the client is gone

    def _answer(self, connection: socket.socket, request: Request) -> None:
        entry: dict[str, Any] = {"time": time.time(), "method": request.method, "target": request.target}
        entry["headers"] = request.headers
        self._record.append(entry)
        try:
            response = self._handler(request)
        except Exception as error:
            response = Response(500, {}, f"{type(error).__name__}: {error}".encode())
        length = response.length if response.file else len(response.body)
        entry["status"] = response.status
        entry["bytes"] = 0 if request.method == "HEAD" else length
        lines = [f"HTTP/1.1 {response.status} {REASONS.get(response.status, 'Status')}"]
        lines += [f"{name}: {value}" for name, value in response.headers.items()]
        lines += [f"Content-Length: {length}", "", ""]
        head = "\r\n".join(lines).encode("latin-1")
        if request.method == "HEAD" or response.status == 304:
            connection.sendall(head)
        elif response.file is None:
            connection.sendall(head + response.body)
        else:
            connection.sendall(head)
            with open(response.file, "rb") as file:
                connection.sendfile(file, response.start, response.length or None) if length else None


class HeadReader:
    """Bytes of a socket: a head up to its empty line, and the body after it."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.rest = b""

    def head(self) -> bytes:
        """Everything up to and with the empty line; nothing where the other side has closed."""
        while (end := self.rest.find(b"\r\n\r\n")) < 0:
            more = self.connection.recv(65536)
            if not more:
                return b""
            self.rest += more
        head, self.rest = self.rest[: end + 4], self.rest[end + 4 :]
        return head

    def line(self) -> bytes:
        while (end := self.rest.find(b"\r\n")) < 0:
            more = self.connection.recv(65536)
            if not more:
                raise ConnectionError("ended within a line")
            self.rest += more
        line, self.rest = self.rest[:end], self.rest[end + 2 :]
        return line

    def some(self, most: int) -> bytes:
        """One to `most` bytes of the body; nothing where the other side has closed."""
        if not self.rest:
            return self.connection.recv(most)
        part, self.rest = self.rest[:most], self.rest[most:]
        return part

    def body(self, length: int) -> bytes:
        parts = []
        while length > 0 and (part := self.some(length)):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


def parse_head(head: bytes) -> tuple[str, dict[str, str]]:
    """The first line, and the headers with their names in lower case."""
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return first, {name.strip().lower(): value.strip() for name, _, value in pairs}


def read_request(reader: HeadReader) -> Request | None:
    head = reader.head()
    if not head:
        return None
    first, headers = parse_head(head)
    method, target, _ = first.split(" ", 2)
    return Request(method, target, headers, reader.body(int(headers.get("content-length", 0))))


def decoded(path: str) -> str:
    return unquote(path).strip("/")
