"""The statistics lerobot keeps for every feature, of the whole dataset and of each episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}

Stats = dict[str, list[Any]]
"""Statistic -> nested list: (dims,) for numbers, (3, 1, 1) in [0, 1] for pictures; count is (1,)."""


def number_stats(values: NDArray[Any]) -> Stats:
    """Statistics of the rows of values, (rows, dims) or (rows,)."""
    values = values.reshape(len(values), -1).astype(np.float64)
    found = {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
    }
    stats: Stats = {name: value.tolist() for name, value in found.items()}
    stats["count"] = [len(values)]
    for name, quantile in QUANTILES.items():
        stats[name] = np.quantile(values, quantile, axis=0).tolist()
    return stats


def picture_stats(histogram: NDArray[np.int64], pictures: int) -> Stats:
    """Statistics of the pictures that a histogram (3, 256) counts."""
    levels = np.arange(256) / 255
    shares = histogram / histogram.sum(axis=1, keepdims=True)
    mean = shares @ levels
    variance = np.maximum(shares @ levels**2 - mean**2, 0)
    reached = np.cumsum(shares, axis=1)
    found = {
        "min": levels[(histogram > 0).argmax(axis=1)],
        "max": levels[255 - (histogram[:, ::-1] > 0).argmax(axis=1)],
        "mean": mean,
        "std": np.sqrt(variance),
        **{name: levels[(reached >= quantile).argmax(axis=1)] for name, quantile in QUANTILES.items()},
    }
    stats: Stats = {name: value.reshape(3, 1, 1).tolist() for name, value in found.items()}
    stats["count"] = [pictures]
    return stats


def stats_columns(episodes: Sequence[Mapping[str, Stats]]) -> dict[str, list[list[Any]]]:
    """Per-episode statistics as the columns stats/{feature}/{statistic} of the episodes table."""
    return {
        f"stats/{feature}/{name}": [episode[feature][name] for episode in episodes]
        for feature, stats in episodes[0].items()
        for name in stats
    }
