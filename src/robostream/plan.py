"""The order of an epoch: a pure function of episode lengths, settings, seed and epoch. No I/O, no torch.

How an epoch is ordered:

1. Episodes are cut into *fetch units* (a whole episode, unless it is long) and the units are permuted. Laid end
   to end they form the *line* of all samples.
2. The line is cut into `num_streams` pieces that are equal to within one sample. Consumers take whole streams.
3. Inside a stream, units fall into *clips*. Clips are spread by a windowed shuffle: key = place on the line +
   uniform(0, clip_window), sorted by key. The clips end to end form the stream's *decoded line*.
4. Samples are spread by the same shuffle over the decoded line, with `sample_window`.

So a sample moves at most by its window, what must stay decoded is bounded, and any block of the order is computed
from the window before it alone: memory is in the order of the window and any position is reached directly.

All randomness is a counter-based hash (SplitMix64), so that the order does not change with NumPy's versions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from robostream.errors import SettingError

Int = npt.NDArray[np.int64]
Float = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]
U64 = npt.NDArray[np.uint64]

_UNIT, _CLIP, _SAMPLE = 1, 2, 3  # what a random number is for; keeps the three uses independent
_MIN_BLOCK = 2048  # keys per block: small windows are sorted in blocks of this size


@dataclass(frozen=True)
class PlanSettings:
    """What the order depends on, besides the episode lengths and the epoch. Windows are in frames, per stream."""

    seed: int
    shuffle: bool
    num_streams: int
    clip_frames: int
    unit_frames: int
    clip_window: int
    sample_window: int
    even: bool = False

    def __post_init__(self) -> None:
        for name in ("num_streams", "clip_frames", "unit_frames"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name}={getattr(self, name)} must be at least 1")
        for name in ("clip_window", "sample_window"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name}={getattr(self, name)} must not be negative")
        if self.unit_frames % self.clip_frames:
            raise SettingError(f"unit_frames={self.unit_frames} must be a multiple of clip_frames={self.clip_frames}")


class Clips(NamedTuple):
    """Clips of one stream, in decode order. All int64 [n]."""

    place: Int  # where the clip's first sample lies on the stream's decoded line
    episode: Int  # position in the plan's episode list
    start: Int  # first frame of the episode in the clip
    stop: Int  # one past its last frame


class Samples(NamedTuple):
    """Samples of one stream, in delivery order. All int64 [n]."""

    place: Int  # place on the stream's decoded line; names the clip that holds the sample
    episode: Int
    frame: Int


def _mix(x: U64) -> U64:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): a bijection on 64 bits that scatters counters."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: U64 = x ^ (x >> np.uint64(31))
    return mixed


def _hash(salt: tuple[int, ...], counters: Int) -> U64:
    """Random 64-bit numbers for counters, independent between salts; uint64 [n]."""
    plain = tuple(map(int, salt))  # NumPy's integers have another repr, which would give another order
    digest = hashlib.blake2b(repr(plain).encode(), digest_size=8).digest()
    start = np.frombuffer(digest, "<u8")
    return _mix(start + counters.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _keys(salt: tuple[int, ...], places: Int, window: int) -> Float:
    """Sort keys of a windowed shuffle: place + uniform[0, window); float64 [n]."""
    if window == 0:
        return places.astype(np.float64)
    uniform = (_hash(salt, places) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    keys: Float = places + uniform * window
    return keys


class Plan:
    """The orders of all epochs over the selected episodes.

    Args:
        lengths: int64 [N], frames of each selected episode, in dataset order.
        settings: what the order depends on.
    """

    def __init__(self, lengths: Int, settings: PlanSettings) -> None:
        self.lengths = np.asarray(lengths, np.int64)
        self.settings = settings
        self.total = int(self.lengths.sum())
        count = np.maximum(1, (self.lengths + settings.unit_frames // 2) // settings.unit_frames)
        self.unit_episode = np.repeat(np.arange(len(self.lengths)), count)
        first = np.cumsum(count) - count
        number = np.arange(len(self.unit_episode)) - first[self.unit_episode]
        self.unit_start = number * settings.unit_frames
        last = number == count[self.unit_episode] - 1
        self.unit_stop = np.where(last, self.lengths[self.unit_episode], self.unit_start + settings.unit_frames)

    def epoch(self, epoch: int) -> EpochOrder:
        return EpochOrder(self, epoch)


class EpochOrder:
    """One epoch: the permuted line of fetch units, cut into streams."""

    def __init__(self, plan: Plan, epoch: int) -> None:
        self.plan = plan
        self.epoch = epoch
        settings = plan.settings
        units = np.arange(len(plan.unit_episode))
        if settings.shuffle:
            units = np.argsort(_hash((settings.seed, epoch, _UNIT), units), kind="stable")
        self.units = units
        self._shift = int(f"{epoch & 0xFFFFFFFF:032b}"[::-1], 2)  # van der Corput's sequence, × 2^32
        self.line_start = np.concatenate([[0], np.cumsum((plan.unit_stop - plan.unit_start)[units])])

    def _bound(self, stream: int) -> int:
        """Where a stream begins on the line.

        Which streams hold one sample more moves on with the epoch. `shift` is a fraction of the streams, so that
        streams that are cut finer (a rank's workers) end where the coarser one does.
        """
        n = self.plan.settings.num_streams
        return (self.plan.total * stream + (n * self._shift >> 32)) // n

    def stream_length(self, stream: int) -> int:
        if self.plan.settings.even:
            return self.plan.total // self.plan.settings.num_streams
        return self._bound(stream + 1) - self._bound(stream)

    def stream(self, stream: int) -> StreamOrder:
        begin = self._bound(stream)
        return StreamOrder(self, stream, begin, begin + self.stream_length(stream))

    @cached_property
    def unit_place(self) -> Int:
        """int64 [units]: the place of each unit on this epoch's line, by unit number."""
        place = np.empty(len(self.units), np.int64)
        place[self.units] = self.line_start[:-1]
        return place


@dataclass
class StreamOrder:
    """One stream of one epoch: its clips and samples, computed block by block.

    Args:
        order: the epoch.
        stream: number of the stream.
        begin, end: the piece of the epoch's line that it covers.
    """

    order: EpochOrder
    stream: int
    begin: int
    end: int
    _clip_blocks: dict[int, Clips] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        settings = self.order.plan.settings
        self.length = self.end - self.begin
        shuffled = settings.shuffle
        self.clip_window = settings.clip_window if shuffled else 0
        self.sample_window = settings.sample_window if shuffled else 0
        self._clip_block = max(self.clip_window, _MIN_BLOCK, 8 * settings.clip_frames)
        self._sample_block = max(self.sample_window, _MIN_BLOCK)
        self._clip_salt = (settings.seed, self.order.epoch, _CLIP, self.stream)
        self._sample_salt = (settings.seed, self.order.epoch, _SAMPLE, self.stream)

    # Clips -----------------------------------------------------------------------------------------------------

    def _line_clips(self, low: int, high: int) -> tuple[Int, Clips]:
        """Clips whose first sample lies in [low, high) of this stream's piece of the line.

        Returns their places on the piece (int64 [n]) and the clips, with `place` not yet set.
        """
        plan, line = self.order.plan, self.order.line_start
        low, high = max(low, 0), min(high, self.length)
        first = int(np.searchsorted(line, self.begin + low, "right")) - 1
        last = int(np.searchsorted(line, self.begin + high, "left"))
        units, unit_line = self.order.units[first:last], line[first:last]
        size = plan.settings.clip_frames
        unit_length = plan.unit_stop[units] - plan.unit_start[units]
        count = np.maximum(1, (unit_length + size // 2) // size)
        owner = np.repeat(np.arange(len(units)), count)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        start = number * size
        stop = np.where(number == count[owner] - 1, unit_length[owner], start + size)
        # The stream's own ends may cut a clip in two.
        place = unit_line[owner] + start - self.begin
        cut = np.maximum(-place, 0)
        over = np.maximum(place + (stop - start) - self.length, 0)
        start, stop, place = start + cut, stop - over, place + cut
        keep = (start < stop) & (place >= low) & (place < high)
        offset = plan.unit_start[units][owner]
        clips = Clips(place, plan.unit_episode[units][owner], offset + start, offset + stop)
        return place[keep], Clips(*(column[keep] for column in clips))

    def _clips_of_block(self, block: int) -> Clips:
        """Clips with keys in [block, block + 1) × block size, sorted, placed on the decoded line."""
        if block in self._clip_blocks:
            return self._clip_blocks[block]
        low, high = block * self._clip_block, (block + 1) * self._clip_block
        place, clips = self._line_clips(low - self.clip_window, high)
        key = _keys(self._clip_salt, place, self.clip_window)
        size = clips.stop - clips.start
        # All that lies before the candidates on the line comes before them in the order too.
        before = (int(place[0]) if len(place) else self.length) + int(size[key < low].sum())
        inside = np.flatnonzero((key >= low) & (key < high))
        inside = inside[np.argsort(key[inside], kind="stable")]
        size = size[inside]
        placed = before + np.cumsum(size) - size
        result = Clips(placed, clips.episode[inside], clips.start[inside], clips.stop[inside])
        while len(self._clip_blocks) > 4:
            self._clip_blocks.pop(next(iter(self._clip_blocks)))
        self._clip_blocks[block] = result
        return result

    def _clip_blocks_from(self, place: int) -> Iterator[Clips]:
        """Blocks of clips, from the one that holds a place of the decoded line on; blocks are never empty."""
        block = min(max(place, 0), self.length) // self._clip_block
        while block > 0 and not self._begins_before(block, place):
            block -= 1
        while block * self._clip_block < self.length + self.clip_window:
            clips = self._clips_of_block(block)
            block += 1
            if len(clips.place) and int(clips.place[-1] + clips.stop[-1] - clips.start[-1]) > place:
                yield clips

    def _begins_before(self, block: int, place: int) -> bool:
        clips = self._clips_of_block(block)
        return len(clips.place) > 0 and int(clips.place[0]) <= place

    def clips(self, place: int = 0) -> Iterator[Clips]:
        """Blocks of clips in decode order, beginning with the clip that holds `place` of the decoded line."""
        for clips in self._clip_blocks_from(place):
            keep = clips.place + (clips.stop - clips.start) > place
            yield Clips(*(column[keep] for column in clips))

    def locate(self, places: Int) -> Samples:
        """The samples at ascending places of the decoded line."""
        if len(places) == 0:
            return Samples(places, places, places)
        parts: list[Clips] = []
        for clips in self._clip_blocks_from(int(places[0])):
            parts.append(clips)
            if int(clips.place[-1] + clips.stop[-1] - clips.start[-1]) > int(places[-1]):
                break
        joined = Clips(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
        clip = np.searchsorted(joined.place, places, "right") - 1
        return Samples(places, joined.episode[clip], joined.start[clip] + places - joined.place[clip])

    # Samples ---------------------------------------------------------------------------------------------------

    def keys(self, places: Int) -> Float:
        """Sort keys of the samples at places of the decoded line."""
        return _keys(self._sample_salt, places, self.sample_window)

    def _samples_of_block(self, block: int) -> tuple[int, Int]:
        """Position of a block's first sample in the delivery order, and the places of its samples, in order."""
        low, high = block * self._sample_block, (block + 1) * self._sample_block
        first = max(0, low - self.sample_window)
        candidates = np.arange(first, min(high, self.length))
        key = self.keys(candidates)
        position = min(first, self.length) + int(np.count_nonzero(key < low))
        inside = np.flatnonzero((key >= low) & (key < high))
        return position, candidates[inside[np.argsort(key[inside], kind="stable")]]

    def places(self, position: int = 0) -> Iterator[Int]:
        """Blocks of places in delivery order, from the sample at `position` on; blocks are never empty."""
        if position >= self.length:
            return
        block = position // self._sample_block
        begin, places = self._samples_of_block(block)
        while begin + len(places) <= position:
            block += 1
            begin, places = self._samples_of_block(block)
        skip = position - begin
        while begin < self.length:
            if len(places) > skip:
                yield places[skip:]
            skip = 0
            block += 1
            begin, places = self._samples_of_block(block)

    def samples(self, position: int = 0) -> Iterator[Samples]:
        """Blocks of samples in delivery order, from `position` on."""
        for places in self.places(position):
            order = np.argsort(places)
            found = self.locate(places[order])
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            yield Samples(*(column[back] for column in found))

    def start_at(self, position: int) -> Remainder:
        """What is left of the stream from a position of its delivery order on."""
        if position >= self.length:
            return Remainder(self, self.length, float("inf"), self.length)
        place = int(next(self.places(position))[0])
        key = float(self.keys(np.array([place]))[0])
        remainder = Remainder(self, 0, key, place)
        candidates = np.arange(max(0, int(key) - self.sample_window), min(int(key) + 2, self.length))
        return Remainder(self, int(candidates[remainder.pending(candidates)][0]), key, place)


@dataclass(frozen=True)
class Remainder:
    """The samples of a stream at and after one position of its delivery order."""

    stream: StreamOrder
    first_place: int  # the lowest place of the decoded line that is still to be delivered
    key: float
    place: int

    def pending(self, places: Int) -> Bool:
        """bool [n]: whether the samples at these places are still to be delivered."""
        keys = self.stream.keys(places)
        pending: Bool = (keys > self.key) | ((keys == self.key) & (places >= self.place))
        return pending
