"""A folder over HTTP: ranges, HEAD, ETag and If-Match; with credentials where asked for."""

from __future__ import annotations

import base64
import os
from typing import Any

from servers.http import HttpServer, Request, Response, decoded, file_response


class FileServer:
    """Serves a folder. An ETag follows from size and time of change, so an overwritten file has another one.

    `token` demands `Authorization: Bearer token`, `user` (`"name:password"`) Basic credentials: 401 without any, 403
    with wrong ones. `etags=False` serves none, as some servers do.
    """

    def __init__(self, folder: str, token: str | None = None, user: str | None = None, etags: bool = True) -> None:
        self._folder, self._etags = os.path.realpath(folder), etags
        self._wanted = f"Bearer {token}" if token else None
        if user:
            self._wanted = "Basic " + base64.b64encode(user.encode()).decode()
        self._server = HttpServer(self._handle)
        self.record, self.forget = self._server.record, self._server.forget

    def address(self) -> dict[str, Any]:
        return {"port": self._server.port, "url": f"http://127.0.0.1:{self._server.port}"}

    def _handle(self, request: Request) -> Response:
        given = request.headers.get("authorization")
        if self._wanted and given != self._wanted:
            return Response(403 if given else 401, {"WWW-Authenticate": "Bearer"}, b"credentials, please")
        if request.method not in ("GET", "HEAD"):
            return Response(405)
        path = os.path.realpath(os.path.join(self._folder, decoded(request.path)))
        if os.path.commonpath([path, self._folder]) != self._folder or not os.path.isfile(path):
            return Response(404, {}, b"no such file")
        found = os.stat(path)
        response = file_response(request, path, f'"{found.st_mtime_ns:x}-{found.st_size:x}"')
        if not self._etags:
            del response.headers["ETag"]
        return response
