"""The order of an epoch: complete, disjoint, bounded in what it moves, and reached directly at any position."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from robostream import plan as plan_module
from robostream.errors import SettingError
from robostream.plan import Clips, EpochOrder, Plan, PlanSettings, Samples, StreamOrder

Int = npt.NDArray[np.int64]

# Plans of all kinds -----------------------------------------------------------------------------------------------

LENGTHS = st.one_of(
    st.lists(st.integers(1, 5), min_size=1, max_size=40),
    st.lists(st.integers(1, 300), min_size=1, max_size=10),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),  # often fewer samples than streams
    st.lists(st.integers(500, 2500), min_size=1, max_size=2),
    st.lists(st.one_of(st.integers(0, 2), st.integers(100, 900)), min_size=1, max_size=12),
).filter(lambda lengths: sum(lengths) > 0)
WINDOWS = st.one_of(st.just(0), st.integers(1, 60), st.integers(200, 9000))


@st.composite
def plan_settings(draw: st.DrawFn, shuffle: bool | None = None, even: bool | None = None) -> PlanSettings:
    clip_frames = draw(st.integers(1, 40))
    return PlanSettings(
        seed=draw(st.integers(-5, 2**63)),
        shuffle=draw(st.booleans()) if shuffle is None else shuffle,
        num_streams=draw(st.integers(1, 9)),
        clip_frames=clip_frames,
        unit_frames=clip_frames * draw(st.integers(1, 8)),
        clip_window=draw(WINDOWS),
        sample_window=draw(WINDOWS),
        even=draw(st.booleans()) if even is None else even,
    )


@st.composite
def plans(draw: st.DrawFn, shuffle: bool | None = None, even: bool | None = None) -> Plan:
    return Plan(np.array(draw(LENGTHS), np.int64), draw(plan_settings(shuffle=shuffle, even=even)))


EPOCHS = st.one_of(st.integers(0, 6), st.just(2**32 + 1))
BLOCKS = st.sampled_from([1, 7, 64, 2048])


def small_blocks(size: int) -> mock._patch[int]:
    """Computes orders in smaller blocks, so that a small plan has many of them."""
    return mock.patch.object(plan_module, "_MIN_BLOCK", size)


def examples(count: int) -> hypothesis_settings:
    return hypothesis_settings(max_examples=count, deadline=None)


def typical(seed: int = 3, **changes: object) -> PlanSettings:
    values: dict[str, object] = {
        "seed": seed,
        "shuffle": True,
        "num_streams": 4,
        "clip_frames": 16,
        "unit_frames": 64,
        "clip_window": 3000,
        "sample_window": 400,
    }
    return PlanSettings(**{**values, **changes})  # type: ignore[arg-type]


# Whole orders -----------------------------------------------------------------------------------------------------


def joined(blocks: Iterable[Samples]) -> Samples:
    parts = list(blocks)
    if not parts:
        return Samples(*(np.empty(0, np.int64) for _ in Samples._fields))
    assert all(len(part.place) for part in parts)
    return Samples(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def joined_clips(blocks: Iterable[Clips]) -> Clips:
    parts = list(blocks)
    if not parts:
        return Clips(*(np.empty(0, np.int64) for _ in Clips._fields))
    return Clips(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def all_streams(order: EpochOrder) -> list[StreamOrder]:
    return [order.stream(stream) for stream in range(order.plan.settings.num_streams)]


def index_of(plan: Plan, episode: Int, frame: Int) -> Int:
    """int64 [n]: samples as positions in dataset order."""
    assert np.all((frame >= 0) & (frame < plan.lengths[episode]))
    index: Int = (np.cumsum(plan.lengths) - plan.lengths)[episode] + frame
    return index


def delivered(plan: Plan, stream: StreamOrder) -> Int:
    samples = joined(stream.samples())
    return index_of(plan, samples.episode, samples.frame)


# Completeness -----------------------------------------------------------------------------------------------------


@given(plans(even=False), EPOCHS, BLOCKS)
@examples(150)
def test_every_sample_comes_exactly_once(plan: Plan, epoch: int, block: int) -> None:
    with small_blocks(block):
        streams = all_streams(plan.epoch(epoch))
        parts = [delivered(plan, stream) for stream in streams]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(plan.total))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == [stream.length for stream in streams]
    assert lengths == [plan.epoch(epoch).stream_length(s) for s in range(len(streams))]


@given(plans(even=True), EPOCHS, BLOCKS)
@examples(100)
def test_even_streams_are_equally_long_and_miss_little(plan: Plan, epoch: int, block: int) -> None:
    streams = plan.settings.num_streams
    with small_blocks(block):
        parts = [delivered(plan, stream) for stream in all_streams(plan.epoch(epoch))]
    assert [len(part) for part in parts] == [plan.total // streams] * streams
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together) == plan.total - plan.total % streams


@pytest.mark.parametrize("shuffle", [True, False])
def test_even_misses_others_each_epoch(shuffle: bool) -> None:
    plan = Plan(np.full(20, 13), typical(shuffle=shuffle, num_streams=7, even=True))  # 260 = 7 × 37 + 1
    missed = []
    for epoch in range(6):
        seen = np.concatenate([delivered(plan, stream) for stream in all_streams(plan.epoch(epoch))])
        missed.append(tuple(np.setdiff1d(np.arange(plan.total), seen).tolist()))
        assert len(missed[-1]) == 1
    assert len(set(missed)) >= 5


@given(plans(even=False), EPOCHS)
@examples(80)
def test_clips_are_whole_and_bounded(plan: Plan, epoch: int) -> None:
    size = plan.settings.clip_frames
    for stream in all_streams(plan.epoch(epoch)):
        clips = joined_clips(stream.clips())
        length = clips.stop - clips.start
        assert np.all((length > 0) & (length < size + max(size / 2, 1)))
        assert np.all((clips.start >= 0) & (clips.stop <= plan.lengths[clips.episode]))
        assert np.array_equal(clips.place, np.cumsum(length) - length)
        assert length.sum() == stream.length


@given(plans(even=False), st.integers(1, 4), EPOCHS)
@examples(80)
def test_streams_that_are_cut_finer_unite_to_the_same_pieces(plan: Plan, workers: int, epoch: int) -> None:
    finer_settings = PlanSettings(**{**vars(plan.settings), "num_streams": plan.settings.num_streams * workers})
    coarse, fine = plan.epoch(epoch), Plan(plan.lengths, finer_settings).epoch(epoch)
    for rank, stream in enumerate(all_streams(coarse)):
        parts = [fine.stream(rank * workers + worker) for worker in range(workers)]
        assert parts[0].begin == stream.begin
        assert parts[-1].end == stream.end
        assert all(a.end == b.begin for a, b in itertools.pairwise(parts))
        united = np.concatenate([delivered(plan, part) for part in parts])
        assert np.array_equal(np.sort(united), np.sort(delivered(plan, stream)))


def test_no_episodes_are_an_empty_order() -> None:
    order = Plan(np.empty(0, np.int64), typical()).epoch(0)
    for stream in all_streams(order):
        assert stream.length == 0
        assert list(stream.samples()) == []
        assert len(joined_clips(stream.clips()).place) == 0


# What the order is ------------------------------------------------------------------------------------------------


def line_of(order: EpochOrder) -> list[tuple[int, int, int]]:
    """Clips of the whole line, cut naively: (episode, start, stop)."""
    size = order.plan.settings.clip_frames
    clips = []
    for unit in order.units.tolist():
        episode = int(order.plan.unit_episode[unit])
        start, stop = int(order.plan.unit_start[unit]), int(order.plan.unit_stop[unit])
        count = max(1, (stop - start + size // 2) // size)
        cuts = [*range(start, start + count * size, size), stop]
        clips += [(episode, a, b) for a, b in itertools.pairwise(cuts) if a < b]
    return clips


def naive_stream(stream: StreamOrder) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]]]:
    """Clips and samples of a stream by sorting everything at once; also the bounds of what moves where."""
    places, clips, at = [], [], 0
    for episode, start, stop in line_of(stream.order):
        low, high = max(at, stream.begin), min(at + stop - start, stream.end)
        if low < high:
            places.append(low - stream.begin)
            clips.append((episode, start + low - at, start + high - at))
        at += stop - start
    keys = plan_module._keys(stream._clip_salt, np.array(places, np.int64), stream.clip_window)
    by_key = np.argsort(keys, kind="stable")
    longest = max((stop - start for _, start, stop in clips), default=0)
    clips = [clips[i] for i in by_key]
    decoded_at = np.cumsum([0] + [stop - start for _, start, stop in clips])[:-1]
    moved = np.abs(decoded_at - np.array(places, np.int64)[by_key])
    assert np.all(moved < stream.clip_window + longest) if stream.clip_window else not moved.any()
    decoded = [(episode, frame) for episode, start, stop in clips for frame in range(start, stop)]
    keys = plan_module._keys(stream._sample_salt, np.arange(len(decoded)), stream.sample_window)
    return clips, [decoded[i] for i in np.argsort(keys, kind="stable")]


@given(plans(), EPOCHS, BLOCKS)
@examples(120)
def test_blocks_join_to_one_sort_and_nothing_moves_beyond_its_window(plan: Plan, epoch: int, block: int) -> None:
    with small_blocks(block):
        for stream in all_streams(plan.epoch(epoch)):
            clips, samples = naive_stream(stream)
            found_clips, found = joined_clips(stream.clips()), joined(stream.samples())
            assert list(zip(*(c.tolist() for c in found_clips[1:]), strict=True)) == clips
            assert list(zip(found.episode.tolist(), found.frame.tolist(), strict=True)) == samples
            moved = np.abs(found.place - np.arange(stream.length))
            assert np.all(moved < max(1, stream.sample_window))


@given(plans(shuffle=False, even=False), EPOCHS)
@examples(30)
def test_without_shuffle_the_order_is_the_datasets(plan: Plan, epoch: int) -> None:
    parts = [delivered(plan, stream) for stream in all_streams(plan.epoch(epoch))]
    assert np.array_equal(np.concatenate(parts), np.arange(plan.total))


@given(plans(), EPOCHS)
@examples(30)
def test_same_inputs_give_the_same_order(plan: Plan, epoch: int) -> None:
    again = Plan(plan.lengths.copy(), PlanSettings(**vars(plan.settings)))
    for a, b in zip(all_streams(plan.epoch(epoch)), all_streams(again.epoch(epoch)), strict=True):
        assert np.array_equal(delivered(plan, a), delivered(again, b))


@given(st.integers(0, 2**40), st.integers(0, 50))
@examples(20)
def test_other_epochs_and_seeds_give_other_orders(seed: int, epoch: int) -> None:
    lengths = np.full(12, 25)
    first, other_seed = Plan(lengths, typical(seed)), Plan(lengths, typical(seed + 1))
    orders = [delivered(p, p.epoch(e).stream(2)) for p in (first, other_seed) for e in (epoch, epoch + 1)]
    for i, a in enumerate(orders):
        assert not any(np.array_equal(a, b) for b in orders[:i])


def test_the_type_of_the_seed_and_epoch_does_not_matter() -> None:
    lengths = np.full(12, 25)
    plain, numpy_ints = Plan(lengths, typical(3)), Plan(lengths, typical(np.int64(3)))  # type: ignore[arg-type]
    order = numpy_ints.epoch(np.int64(1))  # type: ignore[arg-type]
    assert np.array_equal(delivered(plain, plain.epoch(1).stream(2)), delivered(plain, order.stream(2)))


def test_the_order_is_the_one_that_it_has_always_been() -> None:
    """States saved by earlier releases rely on it: a change here must come with a change of the fingerprint."""
    settings = typical(7, num_streams=2, clip_frames=3, unit_frames=6, clip_window=12, sample_window=4)
    plan = Plan(np.array([9, 1, 14, 5]), settings)
    orders = [delivered(plan, plan.epoch(epoch).stream(stream)).tolist() for epoch in (0, 5) for stream in (0, 1)]
    assert orders == [
        [13, 10, 14, 15, 11, 12, 24, 27, 28, 25, 26, 17, 9, 16],
        [22, 19, 23, 18, 20, 21, 0, 1, 2, 6, 8, 7, 5, 3, 4],
        [3, 0, 5, 4, 1, 24, 25, 2, 26, 9, 28, 16, 27, 18, 17],
        [21, 19, 20, 10, 11, 12, 13, 14, 22, 15, 6, 23, 7, 8],
    ]


def test_the_hash_is_splitmix64() -> None:
    first_of_seed_zero = plan_module._mix(np.array([0x9E3779B97F4A7C15], np.uint64))
    assert first_of_seed_zero.tolist() == [0xE220A8397B1DCDAF]


# Any position is reached directly ---------------------------------------------------------------------------------


def some_positions(data: st.DataObject, length: int) -> list[int]:
    """All positions of a short stream, else the ends and a few between them."""
    if length <= 12:
        return list(range(length + 2))
    drawn = data.draw(st.lists(st.integers(0, length), min_size=3, max_size=6), label="positions")
    return [0, 1, length - 1, length, length + 5, *drawn]


def some_stream(data: st.DataObject, plan: Plan) -> StreamOrder:
    epoch = plan.epoch(data.draw(EPOCHS, label="epoch"))
    return epoch.stream(data.draw(st.integers(0, plan.settings.num_streams - 1), label="stream"))


@given(plans(), BLOCKS, st.data())
@examples(80)
def test_samples_from_any_position_are_the_tail_of_the_order(plan: Plan, block: int, data: st.DataObject) -> None:
    with small_blocks(block):
        stream = some_stream(data, plan)
        whole = joined(stream.samples())
        for position in some_positions(data, stream.length):
            fresh = plan.epoch(stream.order.epoch).stream(stream.stream)
            tail = joined(fresh.samples(position))
            for column, expected in zip(tail, whole, strict=True):
                assert np.array_equal(column, expected[position:])


@given(plans(), BLOCKS, st.data())
@examples(150)
def test_clips_from_any_place_begin_with_the_one_that_holds_it(plan: Plan, block: int, data: st.DataObject) -> None:
    with small_blocks(block):
        stream = some_stream(data, plan)
        whole = joined_clips(stream.clips())
        for place in some_positions(data, stream.length):
            fresh = plan.epoch(stream.order.epoch).stream(stream.stream)
            tail = joined_clips(fresh.clips(place))
            first = int(np.searchsorted(whole.place, place, "right")) - 1 if place < stream.length else len(whole.place)
            for column, expected in zip(tail, whole, strict=True):
                assert np.array_equal(column, expected[first:])


@given(plans(), BLOCKS, st.data())
@examples(150)
def test_the_remainder_agrees_with_brute_force(plan: Plan, block: int, data: st.DataObject) -> None:
    with small_blocks(block):
        stream = some_stream(data, plan)
        whole = np.concatenate([*stream.places(), np.empty(0, np.int64)])
        for position in some_positions(data, stream.length):
            rest = stream.start_at(position)
            pending = np.zeros(stream.length, bool)
            pending[whole[position:]] = True
            assert np.array_equal(rest.pending(np.arange(stream.length)), pending)
            assert rest.first_place == whole[position:].min(initial=stream.length)


@given(plans(), BLOCKS, st.data())
@examples(80)
def test_locate_agrees_with_the_clips(plan: Plan, block: int, data: st.DataObject) -> None:
    with small_blocks(block):
        stream = some_stream(data, plan)
        clips = joined_clips(stream.clips())
        length = clips.stop - clips.start
        episode = np.repeat(clips.episode, length)
        frame = np.concatenate([*map(np.arange, clips.start, clips.stop), np.empty(0, np.int64)])
        drawn = data.draw(st.sets(st.integers(0, max(0, stream.length - 1)), max_size=20), label="places")
        places = np.array(sorted(place for place in drawn if place < stream.length), np.int64)
        found = stream.locate(places)
        assert np.array_equal(found.episode, episode[places])
        assert np.array_equal(found.frame, frame[places])


# How well it shuffles ---------------------------------------------------------------------------------------------


def test_batches_mix_many_episodes() -> None:
    """A window of 2,000 decoded samples in clips of 32 holds 62 clips, so a batch of 64 can show about 40 episodes."""
    settings = typical(clip_frames=32, unit_frames=4096, num_streams=2, clip_window=60_000, sample_window=2000)
    plan = Plan(np.full(1000, 250), settings)
    samples = joined(plan.epoch(0).stream(0).samples())
    inner = samples.episode[4096:-4096]
    batches = inner[: len(inner) // 64 * 64].reshape(-1, 64)
    distinct = [len(np.unique(batch)) for batch in batches]
    assert np.mean(distinct) > 36
    assert min(distinct) > 24


def test_samples_and_clips_move_as_far_as_their_windows_allow() -> None:
    settings = typical(clip_frames=32, unit_frames=4096, num_streams=1, clip_window=20_000, sample_window=2000)
    plan = Plan(np.full(400, 250), settings)
    order = plan.epoch(0)
    stream = order.stream(0)
    samples = joined(stream.samples())
    on_line = order.unit_place[samples.episode] + samples.frame
    moved = np.abs(samples.place - np.arange(plan.total))
    # Where keys are place + uniform(0, w), the mean of |displacement| is w / 4 away from the ends.
    assert 0.22 < moved[5000:-5000].mean() / settings.sample_window < 0.28
    clip_moved = np.abs(samples.place - on_line)
    assert 0.22 < clip_moved[30_000:-30_000].mean() / settings.clip_window < 0.28


def test_neighbours_are_rarely_delivered_together() -> None:
    plan = Plan(np.full(400, 250), typical(num_streams=1, clip_window=20_000, sample_window=2000))
    index = delivered(plan, plan.epoch(0).stream(0))
    assert np.mean(np.abs(np.diff(index)) <= 4) < 0.01
    assert abs(float(np.corrcoef(index[:-1], index[1:])[0, 1])) < 0.2  # the permuted episodes, not a trend


def test_random_numbers_are_uniform_and_independent_between_uses() -> None:
    places = np.arange(100_000)
    one = plan_module._keys((1, 0, 2, 0), places, 1000) - places
    other = plan_module._keys((1, 0, 3, 0), places, 1000) - places
    assert np.all((one >= 0) & (one < 1000))
    counts = np.histogram(one, bins=50, range=(0, 1000))[0]
    assert np.all(np.abs(counts - 2000) < 6 * np.sqrt(2000))
    assert abs(float(np.corrcoef(one, other)[0, 1])) < 0.02
    assert abs(float(np.corrcoef(one[:-1], one[1:])[0, 1])) < 0.02


# Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"num_streams": 0},
        {"clip_frames": 0},
        {"unit_frames": -1},
        {"clip_window": -1},
        {"sample_window": -2},
        {"clip_frames": 5},
    ],
)
def test_settings_that_cannot_work_are_named(change: dict[str, int]) -> None:
    with pytest.raises(SettingError, match=next(iter(change))):
        typical(**change)
