"""The ways in which the proxy fails a request, and the rules that say which request fails how.

Before anything is sent upstream:
    408 429 500 502 503   that status (429 and 503 with `Retry-After` where the rule has one)
    reset                 the connection is reset
    stall                 nothing is ever sent
    html                  206 and 200 with a page of text in place of the bytes: what a captive portal answers
    garbage               bytes that are no HTTP
In the answer, for requests that have a body:
    reset_body            half of the body, then a reset
    half                  half of the body under the full Content-Length, then the end of the connection
    short_length          half of the body, under a Content-Length that says so and a Content-Range that does not
    short_range           half of the body, under headers that agree with each other
    stall_body            half of the body, then nothing for ever
    trickle               the body at 100 bytes a second
    wrong_range           a Content-Range one byte further on
In what is sent upstream (not for requests that are signed with their Range, as S3's are):
    ignore_range          without its Range: 200 with everything
    other_range           with another Range, one byte further on: an honest answer to another question
"""

from __future__ import annotations

import random
import re
import threading
from dataclasses import dataclass, field

from servers.http import Request

STATUSES = ("408", "429", "500", "502", "503")
EARLY = (*STATUSES, "reset", "stall", "html", "garbage")
LATE = ("reset_body", "half", "short_length", "short_range", "stall_body", "trickle", "wrong_range")
UPSTREAM = ("ignore_range", "other_range")
EVERY_KIND = (*EARLY, *LATE, *UPSTREAM)


@dataclass
class Rule:
    """Which requests fail, and how: the kinds in turn. A request meets the first rule that takes it.

    `every=20` fails the 20th, 40th, ... of the requests that match; `probability` a seeded share of them; `times` as
    many as it says and no more.
    """

    kinds: list[str]
    every: int | None = None
    probability: float = 1.0
    seed: int = 0
    match: str = ""  # regular expression on the target
    method: str = ""
    times: int | None = None
    retry_after: str | None = None
    seen: int = 0
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        unknown = sorted(set(self.kinds) - set(EVERY_KIND))
        if unknown or not self.kinds:
            raise ValueError(f"unknown kinds of fault: {unknown}")

    def choose(self, request: Request) -> str | None:
        if self.method not in ("", request.method) or not re.search(self.match, request.target):
            return None
        with self.lock:
            self.seen += 1
            if self.times is not None and self.done >= self.times:
                return None
            if self.every is not None and self.seen % self.every:
                return None
            if random.Random(f"{self.seed} {self.seen}").random() >= self.probability:
                return None
            self.done += 1
            return self.kinds[(self.done - 1) % len(self.kinds)]


def changed_request(kind: str | None, headers: dict[str, str]) -> dict[str, str]:
    """The headers that go upstream."""
    if kind == "ignore_range":
        return {name: value for name, value in headers.items() if name != "range"}
    span = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
    if kind == "other_range" and span:
        return {**headers, "range": f"bytes={int(span[1]) + 1}-{int(span[2]) + 1}"}
    return headers


def changed_answer(kind: str | None, headers: dict[str, str], length: int) -> tuple[dict[str, str], int]:
    """The headers of the answer, and how many bytes of its body are sent."""
    sent = length // 2 if kind in ("reset_body", "half", "short_length", "short_range", "stall_body") else length
    span = re.fullmatch(r"bytes (\d+)-(\d+)/(\S+)", headers.get("content-range", ""))
    headers = dict(headers)
    if kind in ("short_length", "short_range"):
        headers["content-length"] = str(sent)
    if kind == "short_range" and span:
        headers["content-range"] = f"bytes {span[1]}-{int(span[1]) + sent - 1}/{span[3]}"
    if kind == "wrong_range" and span:
        headers["content-range"] = f"bytes {int(span[1]) + 1}-{int(span[2]) + 1}/{span[3]}"
    return headers, sent
