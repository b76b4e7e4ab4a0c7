"""What a diagnosis comes to: findings, each with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """note: good to know. warning: works, but slowly or not everywhere. error: can't be read as asked."""

    note = "note"
    warning = "warning"
    error = "error"


@dataclass(frozen=True)
class Finding:
    """kind: a short name, explained in `docs/decode.md`. what: what was found, and where. do: what to do about it."""

    kind: str
    severity: Severity
    what: str
    do: str


def note(kind: str, what: str, do: str) -> Finding:
    return Finding(kind, Severity.note, what, do)


def warning(kind: str, what: str, do: str) -> Finding:
    return Finding(kind, Severity.warning, what, do)


def error(kind: str, what: str, do: str) -> Finding:
    return Finding(kind, Severity.error, what, do)


TRANSCODE = "`robostream transcode SRC OUT`"
"""How messages name the command that re-encodes a dataset."""
