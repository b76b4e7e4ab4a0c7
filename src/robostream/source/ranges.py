"""Byte ranges: neighbours joined to fewer requests, long ones cut into parts that are read at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

GAP = 64 * 1024
"""Bytes between two wanted ranges that are cheaper to read than to ask for separately."""

PART = 8 << 20
"""Bytes of the longest request."""

Span = tuple[int, int]
"""Half-open: [start, stop)."""


def coalesce(starts: Sequence[int], lengths: Sequence[int], gap: int = GAP) -> list[Span]:
    """Spans, ascending, that cover all ranges; ranges at most `gap` apart share one."""
    spans: list[Span] = []
    for start, length in sorted(zip(starts, lengths, strict=True)):
        if not length:
            continue
        if spans and start <= spans[-1][1] + gap:
            spans[-1] = (spans[-1][0], max(spans[-1][1], start + length))
        else:
            spans.append((start, start + length))
    return spans


def cut(spans: Sequence[Span], part: int = PART) -> list[Span]:
    """The same bytes in spans of at most `part`, of nearly equal length."""
    parts: list[Span] = []
    for start, stop in spans:
        count = max(1, -(-(stop - start) // part))
        edges = [start + (stop - start) * i // count for i in range(count + 1)]
        parts += itertools.pairwise(edges)
    return parts


def gather(starts: Sequence[int], lengths: Sequence[int], spans: Sequence[Span], data: Sequence[bytes]) -> list[bytes]:
    """The ranges, from the bytes of ascending spans that touch where a range goes over more than one."""
    found = []
    for start, length in zip(starts, lengths, strict=True):
        stop = start + length
        if not length:
            found.append(b"")
            continue
        pieces = [
            part if start <= a and b <= stop else part[max(start - a, 0) : stop - a]
            for (a, b), part in zip(spans, data, strict=True)
            if a < stop and start < b
        ]
        found.append(pieces[0] if len(pieces) == 1 else b"".join(pieces))
    return found
