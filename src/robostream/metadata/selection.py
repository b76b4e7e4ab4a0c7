"""What of a dataset is asked for: `cameras=`, `features=` and `episodes=`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

from robostream.errors import SelectionError
from robostream.metadata.episodes import EpisodeTable, Int64
from robostream.metadata.info import Feature

INDEX_COLUMNS = frozenset({"timestamp", "frame_index", "episode_index", "index", "task_index"})
_SHOWN = 10  # values named in a message


def select_features(
    declared: dict[str, Feature], cameras: Sequence[str] | None, features: Sequence[str] | None
) -> dict[str, Feature]:
    """The features to read, in declared order; the index columns are always among them.

    cameras, features: the camera and the other keys to keep; None keeps all. Raises `SelectionError` for an
    unknown key, and for a language column among those kept.
    """
    all_cameras = {key for key, feature in declared.items() if feature.is_camera}
    others = declared.keys() - all_cameras
    kept = _choose(cameras, all_cameras, "cameras", "cameras", declared)
    kept |= _choose(features, others, "features", "features besides cameras", declared)
    kept |= INDEX_COLUMNS & others
    selected = {key: feature for key, feature in declared.items() if key in kept}
    for key, feature in selected.items():
        if feature.is_language:
            rest = [k for k, f in selected.items() if not f.is_language and k in others - INDEX_COLUMNS]
            raise SelectionError(
                f"{key!r} has the dtype 'language', which is not read here; leave it out with features={rest}"
            )
    return selected


def select_episodes(table: EpisodeTable, episodes: Sequence[int] | None) -> Int64:
    """Positions int64[M] in the episode table of the wanted episodes, in data order; None means all.

    episodes: episode indices, in any order. Raises `SelectionError` for an empty list, for values that come
    twice, and for those that don't exist, negative ones included.
    """
    if episodes is None:
        return np.arange(len(table))
    exist = f"the dataset has episodes {_ranges(table.index)}"
    if len(episodes) == 0:
        raise SelectionError(f"episodes=[] selects nothing; {exist}")
    wanted = np.array(episodes)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
        raise SelectionError(f"episodes={_some(episodes)} must be a list of integers; {exist}")
    values, counts = np.unique(wanted, return_counts=True)
    unknown = values[~np.isin(values, table.index)]
    if unknown.size:
        raise SelectionError(f"episodes={_some(unknown.tolist())} don't exist; {exist}")
    if counts.max() > 1:
        raise SelectionError(f"episodes={_some(values[counts > 1].tolist())} are listed more than once")
    return np.searchsorted(table.index, values).astype(np.int64, copy=False)


def _choose(
    wanted: Sequence[str] | None, known: set[str], argument: str, noun: str, declared: dict[str, Feature]
) -> set[str]:
    if wanted is None:
        return set(known)
    if isinstance(wanted, str):
        raise SelectionError(f"{argument}={wanted!r} must be a list of keys, not a string")
    unknown = [key for key in wanted if key not in known]
    if unknown:
        listed = ", ".join(key for key in declared if key in known) or "none"
        raise SelectionError(f"{argument}={unknown}: unknown; the {noun} of the dataset are: {listed}")
    return set(wanted)


def _some(values: Iterable[object]) -> str:
    """A list as written in Python, cut off after a few values."""
    values = list(values)
    more = f", … {len(values) - _SHOWN} more" if len(values) > _SHOWN else ""
    return f"[{', '.join(repr(value) for value in islice(values, _SHOWN))}{more}]"


def _ranges(index: Int64) -> str:
    """Sorted indices as runs: "0…5, 8, 10…12"."""
    firsts = np.flatnonzero(np.diff(index, prepend=index[:1] - 2) != 1)
    lasts = np.append(firsts[1:], len(index)) - 1
    spans = zip(index[firsts[:_SHOWN]], index[lasts[:_SHOWN]], strict=True)
    runs = [f"{a}" if a == b else f"{a}…{b}" for a, b in spans]
    return ", ".join([*runs, "…"] if len(firsts) > _SHOWN else runs)
