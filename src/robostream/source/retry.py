"""When a failed read is tried again, after how long, and when it is given up."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TypeVar

from robostream.errors import SettingError, SourceUnavailableError

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """How patient remote reads are. All times in seconds.

    Tried again: timeouts, lost connections, short or wrong bodies, and the answers 408, 425, 429 and 5xx. Never:
    401, 403, 404. The n-th pause is `first_wait_s` · 2ⁿ⁻¹, at most `longest_wait_s`, times a random number from 0.5
    to 1, and never shorter than what the server asks for (`Retry-After`, or the Hub's `RateLimit`).

    Args:
        timeout_s: for connecting, and for silence of the server while an answer is due. Default 20.
        deadline_s: for one read with all its retries; then the run ends with an error. Default 300.
        opening_deadline_s: the same, for a source that has not answered once: a wrong host, as a rule. Default 30.
        first_wait_s: the first pause. Default 0.5.
        longest_wait_s: the longest pause that is chosen here. Default 30.
        least_bytes_per_s: an answer that comes more slowly than this, after `timeout_s`, is given up and tried
            again. Default 20,000.
    """

    timeout_s: float = 20.0
    deadline_s: float = 300.0
    opening_deadline_s: float = 30.0
    first_wait_s: float = 0.5
    longest_wait_s: float = 30.0
    least_bytes_per_s: float = 20_000.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise SettingError(f"retry: {name}={value!r} must be above 0")

    def wait_s(self, failures: int, asked: float = 0.0) -> float:
        """The pause after so many failures. asked: the least that the server asks for."""
        longest = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(failures - 1, 60))
        return max(longest * random.uniform(0.5, 1.0), asked)


class TransientError(Exception):
    """A failure that may pass. The message is its reason; retry_after: seconds that the server asks to wait."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason, retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return str(self.args[0])


class CancelledError(Exception):
    """The read is no longer wanted."""


_cancelled: ContextVar[threading.Event | None] = ContextVar("cancelled", default=None)


@contextlib.contextmanager
def cancelled_by(event: threading.Event) -> Iterator[None]:
    """Reads of this thread end with CancelledError, soon after the event is set."""
    token = _cancelled.set(event)
    try:
        yield
    finally:
        _cancelled.reset(token)


def check_cancelled() -> None:
    """Raise CancelledError if this thread's reads are no longer wanted."""
    event = _cancelled.get()
    if event is not None and event.is_set():
        raise CancelledError


def check_pace(policy: RetryPolicy, had: int, begun: float) -> None:
    """Raise for a body of which only `had` bytes came since `begun` (monotonic), or that is no longer wanted."""
    check_cancelled()
    spent = time.monotonic() - begun
    if spent > policy.timeout_s + had / policy.least_bytes_per_s:
        raise TransientError(f"only {had:,} bytes came in {spent:.0f} s")


def _pause(seconds: float) -> None:
    event = _cancelled.get()
    if event is None:
        time.sleep(seconds)
    elif event.wait(seconds):
        raise CancelledError


def persist(
    attempt: Callable[[], T], policy: RetryPolicy, deadline_s: float, name: str, on_retry: Callable[[], None]
) -> T:
    """The result of `attempt`, tried again while it raises TransientError.

    Raises SourceUnavailableError, which tells name, attempts and the last reason, after `deadline_s`.
    """
    start = time.monotonic()
    failures = 0
    while True:
        check_cancelled()
        try:
            return attempt()
        except TransientError as error:
            failures += 1
            wait = policy.wait_s(failures, error.retry_after)
            spent = time.monotonic() - start
            if spent + wait > deadline_s:
                asked = f"; it asks to wait {wait:.0f} s" if error.retry_after > policy.longest_wait_s else ""
                raise SourceUnavailableError(
                    f"{name}: gave up after {failures} {'attempt' if failures == 1 else 'attempts'} in {spent:.0f} s "
                    f"(deadline {deadline_s:.0f} s): {error}{asked}. Check the network and the server's state; "
                    f"retry=RetryPolicy(deadline_s=…) sets the patience"
                ) from None
        on_retry()
        _pause(wait)


def asked_pause_s(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait: `Retry-After`, or `RateLimit: "api";r=0;t=55` of the Hub with none left."""
    limit = re.search(r"r=0\s*;\s*t=(\d+)", headers.get("RateLimit", ""))
    return max(retry_after_s(headers.get("Retry-After")), float(limit[1]) if limit else 0.0)


def retry_after_s(value: str | None) -> float:
    """Seconds that a `Retry-After` header asks for: a number, or a date; 0 for anything else."""
    if not value:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        when = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return 0.0
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - datetime.now(timezone.utc)).total_seconds())
