"""Saved positions: small JSON-able dicts that say where every stream stands, and of what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from robostream.errors import StateError

State = dict[str, Any]


def make_state(fingerprint: Mapping[str, Any], epoch: int, streams: Sequence[int], consumed: Sequence[int]) -> State:
    """The position of some streams in an epoch: samples consumed of each, by stream number."""
    return {
        "epoch": epoch,
        "consumed": {str(stream): int(count) for stream, count in zip(streams, consumed, strict=True)},
        "fingerprint": dict(fingerprint),
    }


def read_state(
    state: Mapping[str, Any], fingerprint: Mapping[str, Any], streams: Sequence[int]
) -> tuple[int, list[int]]:
    """(epoch, samples consumed of each of `streams`).

    Raises StateError if the state is of another dataset, seed or setting, naming what differs, or if it lacks a
    stream.
    """
    try:
        saved, epoch, consumed = dict(state["fingerprint"]), int(state["epoch"]), dict(state["consumed"])
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"this is not a state of robostream: {error!r} is missing or malformed") from None
    if epoch < 0:
        raise StateError(f"this is not a state of robostream: epoch {epoch}")
    different = [key for key in {**fingerprint, **saved} if saved.get(key) != fingerprint.get(key)]
    if different:
        changes = ", ".join(f"{key}: saved {saved.get(key)}, now {fingerprint.get(key)}" for key in different)
        raise StateError(f"the state belongs to another dataset, seed or setting ({changes})")
    missing = [stream for stream in streams if str(stream) not in consumed]
    if missing:
        raise StateError(
            f"the state lacks streams {missing}: it was saved by another rank. Merge the states of all ranks with "
            f"merge_states()"
        )
    return epoch, [int(consumed[str(stream)]) for stream in streams]


def merge_states(states: Sequence[Mapping[str, Any]]) -> State:
    """One state of the whole job from those of its ranks, saved at the same step.

    Raises StateError if they don't belong together.
    """
    if not states:
        raise StateError("there are no states to merge")
    first = states[0]
    consumed: dict[str, int] = {}
    for state in states:
        for key in (*first, *state):
            if key != "consumed" and state.get(key) != first.get(key):
                raise StateError(
                    f"the states are not of one step of one job: {key} is {first.get(key)} and {state.get(key)}"
                )
        consumed.update(state["consumed"])
    return {**first, "consumed": consumed, "fingerprint": dict(first["fingerprint"])}


def worker_shares(batches: int, of_each: Sequence[int]) -> tuple[list[int], int]:
    """How many of the first `batches` batches came from each DataLoader worker, and whose turn it is then.

    of_each: batches that each worker has in an epoch. Workers take turns; those that have no more are passed over.
    Raises StateError if there are not so many.
    """
    if batches > sum(of_each):
        raise StateError(f"{batches} batches were counted, but the epoch has {sum(of_each)}")
    taken = [0] * len(of_each)
    worker = 0
    while batches:
        if taken[worker] < of_each[worker]:
            taken[worker] += 1
            batches -= 1
        worker = (worker + 1) % len(of_each)
    return taken, worker
