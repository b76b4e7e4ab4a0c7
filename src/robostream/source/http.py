"""Files on a web server: range requests over kept connections, and redirects to other hosts remembered.

Nothing here tries twice, apart from one renewal of a redirect that no longer works: see retry.py.
"""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError, SSLError

from robostream.errors import AccessError, FileMissingError, SourceChangedError, SourceError
from robostream.metrics import Metrics
from robostream.source.interface import Stat
from robostream.source.retry import RetryPolicy, TransientError, asked_pause_s, check_cancelled, check_pace
from robostream.source.urls import Url, expiry, origin, without_secrets

_CONNECTIONS = 64  # kept for each host
_PIECE = 1 << 20  # bytes taken from a connection at once
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
_MOST_IGNORED = 4  # ranges of a file, in a row, until a server is taken not to know them
_PASSING = (408, 425, 429)
_EXPIRED = (400, 401, 403, 404, 410)  # what hosts answer to a signed URL that is too old
_RENEW_S = 60.0  # a signed URL is renewed this long before it ends
_MAX_AGE_S = 3600.0  # and after this long in any case

Headers = dict[str, str]


@dataclass(frozen=True)
class HttpStore:
    """Files below a URL.

    Args:
        url: of the root.
        headers: for requests to the URL's own host; none of them is sent to another one.
        advice: what to check when access is refused.
        token: makes the Authorization header in the process that needs it; None for no header.
        name: what messages call the root; by default the URL.
        lister: lists the files under a prefix; None where there is no way to list.
    """

    url: Url
    headers: Mapping[str, str]
    advice: str
    token: Callable[[], str | None] | None = None
    name: str = ""
    lister: Callable[[str], list[str]] | None = None

    def describe(self, path: str) -> str:
        return f"{self.name or self.url.clean}/{path}"

    def connect(self, policy: RetryPolicy, metrics: Metrics) -> HttpSession:
        return HttpSession(self, policy, metrics)

    def __repr__(self) -> str:
        return f"HttpStore({self.name or self.url.clean})"


@dataclass(frozen=True)
class _Place:
    """Where a file is served. direct: by the root's own host. until: when to ask for the place anew (monotonic)."""

    url: str
    direct: bool
    until: float


class _Answer:
    """A response whose body is still to be read."""

    def __init__(self, raw: urllib3.BaseHTTPResponse, policy: RetryPolicy, begun: float) -> None:
        self.raw = raw
        self.status = raw.status
        self.headers = raw.headers
        self._policy = policy
        self._begun = begun

    def body(self, length: int | None) -> bytes:
        """The whole body, which must have this length, if one is given."""
        if self.headers.get("Content-Encoding", "identity") != "identity":
            self.drop()
            raise TransientError(f"the body came encoded as {self.headers['Content-Encoding']}")
        pieces: list[bytes] = []
        had, due = 0, length or 0
        try:
            while piece := self.raw.read1(_PIECE if length is None else min(_PIECE, length - had)):
                pieces.append(piece)
                had += len(piece)
                if had == length:
                    break
                check_pace(self._policy, had, self._begun)
        except HTTPError as error:
            self.drop()
            raise TransientError(f"the body broke off after {had:,} of {due:,} bytes ({_reason(error)})") from None
        except BaseException:
            self.drop()
            raise
        if length is not None and had != length:
            self.drop()
            raise TransientError(f"the body is short: {had:,} of {length:,} bytes")
        self.raw.release_conn()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def drop(self) -> None:
        """Give up the connection, since a body is left on it."""
        self.raw.close()
        self.raw.release_conn()

    def done(self) -> None:
        """For answers whose body does not matter: read it if it is short."""
        length = self.headers.get("Content-Length", "")
        if length.isdigit() and int(length) <= 1 << 16:
            try:
                self.raw.drain_conn()
                return
            except HTTPError:
                pass
        self.drop()


class HttpSession:
    """One process's connections. See `Session` in remote.py."""

    def __init__(self, store: HttpStore, policy: RetryPolicy, metrics: Metrics) -> None:
        self._store = store
        self._policy = policy
        self._metrics = metrics
        self._pools: dict[str, urllib3.PoolManager] = {}
        self._places: dict[str, _Place] = {}
        self._etags: dict[str, str] = {}
        self._ignored: dict[str, int] = {}  # how often a range was, of each file
        self._headers: Headers = {**store.headers}
        authorization = store.url.authorization or (store.token() if store.token else None)
        if authorization:
            self._headers["Authorization"] = authorization

    # The three kinds of read -----------------------------------------------------------------------------------------

    def stat(self, path: str) -> Stat:
        answer = self._head(path)
        if answer.status in (403, 405, 501):  # a server, or a signature, that is for GET only
            answer.done()
            _, answer = self._locate(path, "GET", {"Range": "bytes=0-0"})
            self._check(path, answer)
            size = _total(answer.headers.get("Content-Range")) if answer.status == 206 else _length(answer)
        else:
            self._check(path, answer)
            linked = answer.headers.get("X-Linked-Size", "")
            size = int(linked) if linked.isdigit() else _length(answer)
        answer.done() if answer.status == 206 else answer.drop()
        if size is None:
            raise SourceError(f"{self._store.describe(path)}: the server does not tell the file's size")
        return Stat(size, _etag(answer))

    def whole(self, path: str) -> bytes:
        _, answer = self._locate(path, "GET", {})
        self._check(path, answer)
        return answer.body(_length(answer))

    def part(self, path: str, start: int, stop: int, stat: Stat) -> bytes:
        wanted = {"Range": f"bytes={start}-{stop - 1}"}
        place = self._places.get(path)
        if place is None or place.until < time.monotonic():
            place = self._find(path, stat)
        answer = self._send("GET", place.url, wanted)
        if _is_stale(place, answer):
            answer.done()
            self._metrics.add("retries")
            self._places.pop(path, None)
            place = self._find(path, stat, redirected=True)
            answer = self._send("GET", place.url, wanted)
            if _is_stale(place, answer):  # then as every client does, with the range from the start
                answer.done()
                place, answer = self._locate(path, "GET", wanted, remember=False)
        return self._take(path, answer, start, stop, stat, place)

    def list(self, prefix: str) -> list[str] | None:
        return self._store.lister(prefix) if self._store.lister else None

    # How an answer is judged -----------------------------------------------------------------------------------------

    def _take(self, path: str, answer: _Answer, start: int, stop: int, stat: Stat, place: _Place) -> bytes:
        self._check(path, answer)
        if answer.status == 200 and (start, stop) != (0, stat.size):
            answer.drop()
            self._ignored[path] = self._ignored.get(path, 0) + 1
            if self._ignored[path] >= _MOST_IGNORED:
                raise SourceError(
                    f"{self._store.describe(path)}: the server ignores the ranges that are asked for and sends whole "
                    "files. Serve the dataset from one that supports range requests, or download it"
                )
            raise TransientError("the server ignored the range that was asked for, and sent the whole file")
        if answer.status == 206:
            self._ignored.pop(path, None)
            found = answer.headers.get("Content-Range", "")
            total = _total(found)
            if total is not None and total != stat.size:
                answer.drop()
                raise self._changed(path, f"it had {stat.size:,} bytes and has {total:,} now")
            if not re.match(rf"bytes {start}-{stop - 1}/", found):
                answer.drop()
                raise TransientError(f"asked for bytes {start}-{stop - 1}, got Content-Range {found!r}")
        length = _length(answer)
        if length is not None and length != stop - start:
            answer.drop()
            raise TransientError(f"asked for {stop - start:,} bytes, was offered {length:,}")
        self._check_etag(path, answer, stat, place)
        return answer.body(stop - start)

    def _check_etag(self, path: str, answer: _Answer, stat: Stat, place: _Place) -> None:
        etag = _etag(answer)
        # Another host may have etags of its own; there, the first one seen holds.
        known = stat.etag if place.direct else self._etags.setdefault(path, etag)
        if etag and known and etag != known:
            answer.drop()
            raise self._changed(path, f"its etag was {known} and is {etag} now")

    def _find(self, path: str, stat: Stat, redirected: bool = False) -> _Place:
        """Where to read a file. Asked without a range: the redirect to another host then holds for all ranges."""
        if self._store.token is None and not redirected:
            return _Place(self._store.url.join(path), True, 0.0)  # whether it was replaced, its answer will tell
        self._etags.pop(path, None)
        now = self.stat(path)
        if now != stat:
            raise self._changed(path, f"it was {stat} and is {now} now")
        return self._places[path]

    def _check(self, path: str, answer: _Answer) -> None:
        """Raise for every answer that has not the file in it."""
        status = answer.status
        if status in (200, 206) or "X-Linked-Size" in answer.headers:
            if answer.headers.get("Content-Type", "").startswith("text/html"):
                answer.drop()
                raise TransientError("the server sent a web page in place of the file")
            return
        name, after = self._store.describe(path), asked_pause_s(answer.headers)
        answer.done()
        code = answer.headers.get("X-Error-Code", "")
        said = f"{status} {code or answer.raw.reason or ''}".strip()
        if status in (401, 403) or code in ("GatedRepo", "RepoNotFound"):
            raise AccessError(f"{name}: access refused ({said}). {self._store.advice}")
        if status in (404, 410):
            raise FileMissingError(f"{name}: no such file ({said})")
        if status == 416:
            raise self._changed(path, "the range that its index names lies outside of it now")
        if status in _PASSING or status >= 500:
            raise TransientError(f"the server answered {said}", after)
        raise SourceError(f"{name}: the server answered {said}, which is no way to send a file")

    def _changed(self, path: str, how: str) -> SourceChangedError:
        return SourceChangedError(
            f"{self._store.describe(path)}: the file was replaced while the dataset was open: {how}. Open the dataset "
            "anew, and write new versions under a new name or revision"
        )

    # Requests --------------------------------------------------------------------------------------------------------

    def _head(self, path: str) -> _Answer:
        """HEAD, to the first answer that tells the file's size."""
        return self._locate(path, "HEAD", {})[1]

    def _locate(self, path: str, method: str, headers: Headers, remember: bool = True) -> tuple[_Place, _Answer]:
        """The answer to a request for a file from the root's host on, and the place that gave it."""
        first = url = self._store.url.join(path)
        for _ in range(_MAX_REDIRECTS):
            answer = self._send(method, url, headers)
            target = answer.headers.get("Location") if answer.status in _REDIRECTS else None
            # The Hub's redirect tells all: the size, and where to read.
            if target and method == "HEAD" and "X-Linked-Size" in answer.headers:
                url, target = urljoin(url, target), None
            if not target:
                left = max(0.0, min(expiry(url) - time.time() - _RENEW_S, _MAX_AGE_S))
                place = _Place(url, origin(url) == origin(first), time.monotonic() + left)
                if remember and answer.status < 400:
                    self._places[path] = place
                return place, answer
            answer.done()
            url = urljoin(url, target)
        raise SourceError(f"{self._store.describe(path)}: more than {_MAX_REDIRECTS} redirects")

    def _send(self, method: str, url: str, headers: Headers) -> _Answer:
        check_cancelled()
        own = self._headers if origin(url) == origin(self._store.url.clean) else {}
        timeout = urllib3.Timeout(connect=self._policy.timeout_s, read=self._policy.timeout_s)
        begun = time.monotonic()
        self._metrics.add("requests")
        try:
            raw = self._manager(url).request(
                method,
                url,
                headers={"User-Agent": "robostream", "Accept-Encoding": "identity", **own, **headers},
                preload_content=False,
                redirect=False,
                retries=False,
                timeout=timeout,
            )
        except SSLError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise SourceError(
                    f"{without_secrets(url)}: the server's certificate can't be verified. Where a proxy or a private "
                    "authority signs it, name its certificate file in SSL_CERT_FILE"
                ) from None
            raise TransientError(_reason(error)) from None
        except (HTTPError, OSError) as error:
            raise TransientError(_reason(error)) from None
        self._metrics.add("first_byte_s", time.monotonic() - begun)
        return _Answer(raw, self._policy, begun)

    def _manager(self, url: str) -> urllib3.PoolManager:
        """The connections for a URL, through the proxy that the environment names for it."""
        parts = urlsplit(url)
        proxies = getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all") or ""
        if proxy and proxy_bypass(parts.netloc.rpartition("@")[2]):
            proxy = ""
        if proxy not in self._pools:
            self._pools[proxy] = _make_manager(proxy)
        return self._pools[proxy]


def _is_stale(place: _Place, answer: _Answer) -> bool:
    """Whether a file must be asked for anew at the root's host."""
    return answer.status in _REDIRECTS or (not place.direct and answer.status in _EXPIRED)


def _make_manager(proxy: str) -> urllib3.PoolManager:
    bundle = os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE")
    context = ssl.create_default_context(cafile=bundle)
    if not proxy:
        return urllib3.PoolManager(maxsize=_CONNECTIONS, ssl_context=context)
    url = Url.parse(proxy if "://" in proxy else f"http://{proxy}")
    headers = {"Proxy-Authorization": url.authorization} if url.authorization else None
    return urllib3.ProxyManager(url.clean, maxsize=_CONNECTIONS, ssl_context=context, proxy_headers=headers)


def _length(answer: _Answer) -> int | None:
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isdigit() else None


def _total(content_range: str | None) -> int | None:
    match = re.fullmatch(r"bytes \S+/(\d+)", content_range or "")
    return int(match[1]) if match else None


def _etag(answer: _Answer) -> str:
    etag = answer.headers.get("X-Linked-Etag") or answer.headers.get("ETag") or ""
    return etag.removeprefix("W/").strip('"')


def _reason(error: Exception) -> str:
    """An exception of the network, without the URL that its text may hold."""
    text = re.sub(r"\?\S*", "", str(error))
    text = text.rpartition(": ")[2] or type(error).__name__
    return f"{type(error).__name__}: {text}"
