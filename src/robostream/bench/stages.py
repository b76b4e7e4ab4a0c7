"""Where a pipeline's time goes, and which stage holds up the others."""

from __future__ import annotations

from collections.abc import Mapping

ADVICE = {
    "fetch": "reading holds it up: a nearer or faster source, or larger files",
    "decode": "decoding holds it up: more cores (--threads), a cheaper codec, smaller pictures, or a GPU",
    "assemble": "copying pictures into batches holds it up: fewer window steps, or uint8 pictures",
    "hand_over": "what takes the batches holds it up: the consumer, or the way from worker processes to it",
}
"""What each bottleneck means, for the reader."""


def seconds_by_stage(counters: Mapping[str, float], wall: float, consumers: int) -> dict[str, float]:
    """Seconds of each stage in a window of `wall` seconds, summed over threads and over `consumers` pipelines.

    hand_over: the maker of batches neither waits for pictures nor copies: it collates, or waits for its consumer.
    """
    stages = {name: counters.get(f"{name}_s", 0.0) for name in ("fetch", "decode", "assemble", "wait")}
    return {**stages, "hand_over": max(0.0, wall * consumers - stages["assemble"] - stages["wait"])}


def use_by_stage(
    stages: Mapping[str, float], wall: float, readers: int, threads: int, consumers: int
) -> dict[str, float]:
    """Share of its threads' time that each stage was busy, 0 to 1. readers, threads: those that read and decode,
    of each consumer."""
    widths = {"fetch": readers, "decode": threads, "assemble": 1, "hand_over": 1}
    return {name: min(1.0, stages[name] / (wall * width * consumers)) for name, width in widths.items()}


def bottleneck(use: Mapping[str, float]) -> str:
    """The busiest stage; "" if none was busy."""
    name = max(use, key=lambda stage: use[stage], default="")
    return name if name and use[name] > 0 else ""
