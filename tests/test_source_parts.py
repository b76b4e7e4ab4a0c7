"""The parts that remote sources are made of: ranges, URLs, the retry policy."""

from __future__ import annotations

import random
import threading
import time
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest
from cases import BUSY
from hypothesis import given
from hypothesis import strategies as st

from robostream import RetryPolicy
from robostream.errors import SettingError, SourceUnavailableError
from robostream.memo import Memo
from robostream.source.hub import HubRoot, HubToken
from robostream.source.ranges import coalesce, cut, gather
from robostream.source.retry import CancelledError, TransientError, cancelled_by, persist, retry_after_s
from robostream.source.urls import Url, expiry, scheme_of, without_secrets

# Ranges ----------------------------------------------------------------------------------------------------------


def test_neighbours_share_a_request_and_others_do_not() -> None:
    assert coalesce([500, 0, 100], [10, 50, 50], gap=50) == [(0, 150), (500, 510)]
    assert coalesce([0, 101], [50, 50], gap=50) == [(0, 50), (101, 151)]
    assert coalesce([0, 10, 20], [100, 5, 0], gap=0) == [(0, 100)]
    assert coalesce([], []) == []


def test_long_spans_are_cut_into_nearly_equal_parts() -> None:
    assert cut([(0, 10), (20, 41)], part=10) == [(0, 10), (20, 27), (27, 34), (34, 41)]


@given(
    ranges=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=12),
    gap=st.integers(0, 50),
    part=st.integers(1, 40),
)
def test_ranges_are_what_they_would_be_alone(ranges: list[tuple[int, int]], gap: int, part: int) -> None:
    content = random.Random(0).randbytes(500)
    starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
    spans = cut(coalesce(starts, lengths, gap), part)
    assert all(stop - start <= part for start, stop in spans)
    found = gather(starts, lengths, spans, [content[start:stop] for start, stop in spans])
    assert found == [content[start : start + length] for start, length in ranges]


# URLs ------------------------------------------------------------------------------------------------------------


def test_credentials_of_a_url_are_kept_apart() -> None:
    url = Url.parse("https://me:p%40ss@host.org:8443/data/set/?sig=SECRET#x")
    assert url.clean == "https://host.org:8443/data/set"
    assert url.authorization == "Basic bWU6cEBzcw=="
    assert url.join("meta/a b.json") == "https://host.org:8443/data/set/meta/a%20b.json?sig=SECRET"
    assert "SECRET" not in repr(url)
    assert "p@ss" not in repr(url)
    assert without_secrets("https://a:b@c/d?e=f") == "https://c/d"


@pytest.mark.parametrize(
    ("text", "scheme"),
    [("s3://b/p", "s3"), ("/data/x", ""), ("relative/x", ""), ("C:\\x", ""), ("HTTPS://h", "https"), ("hf://x", "hf")],
)
def test_schemes(text: str, scheme: str) -> None:
    assert scheme_of(text) == scheme


def test_the_end_of_signed_urls_is_read() -> None:
    assert expiry("https://h/f?Expires=1700000000&Signature=x") == 1_700_000_000
    assert expiry("https://h/f?X-Amz-Date=20231114T221320Z&X-Amz-Expires=600") == 1_700_000_000 + 600
    assert expiry("https://h/f?se=2023-11-14T22:13:20Z&sig=x") == 1_700_000_000
    assert expiry("https://h/f?Expires=soon") == float("inf")
    assert expiry("https://h/f") == float("inf")


def test_names_on_the_hub_are_taken_apart() -> None:
    token = HubToken("hf_secret")
    root = HubRoot.parse("hf://datasets/owner/name@refs/pr/1/sub/folder", token)
    assert (root.repo_id, root.is_bucket, root.revision, root.folder) == (
        "owner/name",
        False,
        "refs/pr/1",
        "sub/folder",
    )
    assert HubRoot.parse("hf://datasets/owner/name@v1.0", token).revision == "v1.0"
    assert HubRoot.parse("hf://datasets/owner/name@refs%2Fpr%2F2", token).revision == "refs/pr/2"
    bucket = HubRoot.parse("hf://buckets/owner/name/sub/", token)
    assert (bucket.repo_id, bucket.is_bucket, bucket.folder) == ("owner/name", True, "sub")
    assert "hf_secret" not in repr(root)
    for wrong in ("hf://owner/name", "hf://datasets/owner", "hf://spaces/owner/name", "hf://buckets/owner/name@main"):
        with pytest.raises(SettingError, match="hf://"):
            HubRoot.parse(wrong, token)


# Retries ---------------------------------------------------------------------------------------------------------


class Attempts:
    """Fails with these errors, in turn, then gives its result."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


QUICK = RetryPolicy(first_wait_s=0.01, longest_wait_s=0.05)


def test_waits_double_up_to_a_bound_with_jitter() -> None:
    policy = RetryPolicy(first_wait_s=1.0, longest_wait_s=30.0)
    for failures, longest in ((1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (2000, 30.0)):
        waits = [policy.wait_s(failures) for _ in range(200)]
        assert 0.5 * longest <= min(waits) < 0.6 * longest
        assert 0.9 * longest < max(waits) <= longest
    assert policy.wait_s(1, asked=77.0) == 77.0
    with pytest.raises(SettingError, match="deadline_s"):
        RetryPolicy(deadline_s=0)


def test_what_may_pass_is_tried_again_and_counted() -> None:
    attempts, retries = Attempts(TransientError("a"), TransientError("b")), []
    assert persist(attempts, QUICK, 5.0, "name", lambda: retries.append(1)) == "done"
    assert (attempts.count, len(retries)) == (3, 2)


def test_what_will_not_pass_is_raised_at_once() -> None:
    attempts = Attempts(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        persist(attempts, QUICK, 5.0, "name", lambda: None)
    assert attempts.count == 1


def test_the_pause_that_a_server_asks_for_is_kept() -> None:
    attempts, begun = Attempts(TransientError("busy", retry_after=0.3)), time.monotonic()
    persist(attempts, QUICK, 5.0, "name", lambda: None)
    assert 0.3 <= time.monotonic() - begun < BUSY * 0.5


def test_a_pause_beyond_the_deadline_is_not_waited_for() -> None:
    begun = time.monotonic()
    with pytest.raises(SourceUnavailableError, match=r"https://host/f: gave up after 1 attempt in 0 s .*busy.*3600 s"):
        persist(Attempts(TransientError("busy", 3600)), QUICK, 5.0, "https://host/f", lambda: None)
    assert time.monotonic() - begun < BUSY * 0.5


def test_the_deadline_ends_it_with_the_last_reason() -> None:
    attempts, begun = Attempts(*(TransientError(f"reason {i}") for i in range(1000))), time.monotonic()
    with pytest.raises(SourceUnavailableError, match=r"name: gave up after \d+ attempts in .*reason \d+") as caught:
        persist(attempts, QUICK, 0.5, "name", lambda: None)
    assert 0.3 < time.monotonic() - begun < BUSY * 0.5
    assert f"{attempts.count} attempts" in str(caught.value)


def test_a_read_that_is_no_longer_wanted_ends_soon() -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    begun = time.monotonic()
    with cancelled_by(stop), pytest.raises(CancelledError):
        persist(Attempts(TransientError("a", 100)), QUICK, 1000, "name", lambda: None)
    assert time.monotonic() - begun < BUSY * 0.5


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after_s("7") == 7.0
    soon = format_datetime(datetime.now(timezone.utc) + timedelta(seconds=30), usegmt=True)
    assert 28.0 < retry_after_s(soon) <= 30.0
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert [retry_after_s(text) for text in (None, "", "later", "-5")] == [0.0] * 4


# Memory ----------------------------------------------------------------------------------------------------------


def test_results_are_made_once_for_all_threads() -> None:
    memo: Memo[str, int] = Memo(10, lambda _: 1)
    made: list[int] = []
    gate = threading.Barrier(8)

    def make() -> int:
        time.sleep(0.1)
        made.append(1)
        return 7

    found: list[int] = []

    def ask() -> None:
        gate.wait()
        found.append(memo.get("a", make))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, made) == ([7] * 8, [1])


def test_the_least_recently_used_results_go_first_and_failures_are_not_kept() -> None:
    memo: Memo[str, int] = Memo(10, lambda value: value)
    made: list[str] = []

    def get(key: str, weight: int) -> None:
        memo.get(key, lambda: made.append(key) or weight)  # type: ignore[func-returns-value]

    for key, weight in (("a", 4), ("b", 4), ("a", 4), ("c", 4), ("a", 4), ("b", 4)):
        get(key, weight)
    assert made == ["a", "b", "c", "b"]
    with pytest.raises(KeyError):
        memo.get("x", lambda: {}["no"])
    assert memo.get("x", lambda: 3) == 3
