"""What one consumer delivers and decodes: complete, resumable, and the same however many share the streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from robostream.consumer import ClipWork, ConsumerOrder, SampleRun, Turns
from robostream.plan import Plan, PlanSettings

Int = npt.NDArray[np.int64]

LENGTHS = st.one_of(
    st.lists(st.integers(1, 6), min_size=1, max_size=30),
    st.lists(st.integers(1, 200), min_size=1, max_size=8),
    st.lists(st.integers(300, 1200), min_size=1, max_size=2),
)
WINDOWS = st.one_of(st.just(0), st.integers(1, 40), st.integers(100, 3000))


@st.composite
def plans(draw: st.DrawFn, streams: int | None = None, even: bool | None = None) -> Plan:
    clip_frames = draw(st.integers(1, 20))
    settings = PlanSettings(
        seed=draw(st.integers(0, 1000)),
        shuffle=draw(st.integers(0, 3)) > 0,
        num_streams=streams or draw(st.integers(1, 8)),
        clip_frames=clip_frames,
        unit_frames=clip_frames * draw(st.integers(1, 4)),
        clip_window=draw(WINDOWS),
        sample_window=draw(WINDOWS),
        even=draw(st.booleans()) if even is None else even,
    )
    return Plan(np.array(draw(LENGTHS), np.int64), settings)


def examples(count: int) -> hypothesis_settings:
    return hypothesis_settings(max_examples=count, deadline=None)


# What a consumer does, sample by sample ---------------------------------------------------------------------------


def share(
    plan: Plan, consumer: int, count: int, epoch: int = 0, consumed: Sequence[int] | None = None
) -> ConsumerOrder:
    """Consumer `consumer` of `count`; consumed: per stream of the plan."""
    streams = range(consumer, plan.settings.num_streams, count)
    done = [0] * len(streams) if consumed is None else [consumed[stream] for stream in streams]
    return ConsumerOrder(plan, streams, epoch, done)


def one_by_one(order: ConsumerOrder) -> Iterator[tuple[int, int, int]]:
    """(epoch, lane, place on the lane's endless line) of each sample."""
    for run in order.samples():
        assert isinstance(run, SampleRun)
        assert len(run.lane)
        yield from ((run.epoch, lane, place) for lane, place in zip(run.lane.tolist(), run.place.tolist(), strict=True))


def take(order: ConsumerOrder, count: int) -> list[tuple[int, int, int]]:
    return list(itertools.islice(one_by_one(order), count))


@dataclass(frozen=True)
class Named:
    """Samples by what they are: (epoch, stream, episode, frame) each."""

    samples: list[tuple[int, int, int, int]]
    clips: list[ClipWork]


def named(order: ConsumerOrder, count: int) -> Named:
    """The first `count` samples, found in the clips that were decoded for them."""
    clips: list[ClipWork] = []
    holder: dict[tuple[int, int], tuple[int, int]] = {}
    feed = order.clips()
    samples = []
    for epoch, lane, place in take(order, count):
        while (lane, place) not in holder:
            clip = next(feed)
            assert clip.epoch <= epoch  # it never ends, so a sample without a clip would be waited for forever
            clips.append(clip)
            holder.update(
                {
                    (clip.lane, clip.place + int(i)): (clip.episode, clip.start + int(i))
                    for i in np.flatnonzero(clip.pending)
                }
            )
        samples.append((epoch, order.streams[lane], *holder[lane, place]))
    return Named(samples, clips)


def expected_stream(plan: Plan, epoch: int, stream: int) -> list[tuple[int, int, int, int]]:
    blocks = list(plan.epoch(epoch).stream(stream).samples())
    return [
        (epoch, stream, episode, frame)
        for block in blocks
        for episode, frame in zip(block.episode.tolist(), block.frame.tolist(), strict=True)
    ]


def epoch_total(plan: Plan) -> int:
    streams = plan.settings.num_streams
    return plan.total // streams * streams if plan.settings.even else plan.total


def all_consumed(plan: Plan, count: int) -> list[int]:
    """Per stream, what was consumed after `count` samples of an epoch by one consumer of everything."""
    lanes = [lane for _, lane, _ in take(share(plan, 0, 1), count)]
    return np.bincount(np.array(lanes, np.int64), minlength=plan.settings.num_streams).tolist()


# Delivery ---------------------------------------------------------------------------------------------------------


@given(plans(), st.integers(1, 8), st.integers(0, 5))
@examples(80)
def test_an_epoch_over_all_consumers_is_each_stream_in_its_order(plan: Plan, count: int, epoch: int) -> None:
    count = min(count, plan.settings.num_streams)
    seen: list[tuple[int, int, int, int]] = []
    for consumer in range(count):
        order = share(plan, consumer, count, epoch)
        part = named(order, order.epoch_length(epoch)).samples
        for stream in order.streams:
            assert [sample for sample in part if sample[1] == stream] == expected_stream(plan, epoch, stream)
        seen += part
    assert len({sample[2:] for sample in seen}) == len(seen) == epoch_total(plan)


@given(plans(), st.integers(0, 3))
@examples(60)
def test_streams_take_turns(plan: Plan, epoch: int) -> None:
    """After any number of samples of an epoch, lanes that are not at their end differ by one at most."""
    order = share(plan, 0, 1, epoch)
    lengths = [order.order(epoch).stream_length(stream) for stream in order.streams]
    lanes = [lane for _, lane, _ in take(order, order.epoch_length(epoch))]
    turns = itertools.chain.from_iterable(
        [lane for lane, length in enumerate(lengths) if turn < length] for turn in range(max(lengths))
    )
    assert lanes == list(turns)


@pytest.mark.parametrize("even", [False, True])
@given(data=st.data())
@examples(40)
def test_the_first_samples_do_not_depend_on_the_number_of_consumers(even: bool, data: st.DataObject) -> None:
    """C24: with num_streams fixed, each global step is the same set of samples on another world size."""
    plan = data.draw(plans(streams=8, even=even))
    epochs = 3 if even else 1  # streams of equal length stay in step over the end of an epoch
    steps = plan.total // 8 * epochs
    counts = (1, 2, 4, 8)
    taken = {
        count: [named(share(plan, c, count, 1), steps * 8 // count).samples for c in range(count)] for count in counts
    }
    for step in range(steps):  # a global step of one sample of each stream; larger ones are unions of these
        sets = [{s for part in taken[n] for s in part[step * 8 // n : (step + 1) * 8 // n]} for n in counts]
        assert all(len(found) == 8 for found in sets)
        assert sets.count(sets[0]) == len(counts)


@given(plans(), st.data())
@examples(60)
def test_epochs_follow_one_another_on_disjoint_places(plan: Plan, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, 3), label="epoch")
    order = share(plan, 0, 1, first)
    total = epoch_total(plan)
    if total == 0:
        return
    samples = take(order, 3 * total)
    assert [epoch for epoch, _, _ in samples] == [first + i // total for i in range(3 * total)]
    assert len({(lane, place) for _, lane, place in samples}) == 3 * total
    for lane, stream in enumerate(order.streams):
        base = 0
        for epoch in range(first, first + 3):
            length = order.order(epoch).stream_length(stream)
            places = [place for e, found, place in samples if (e, found) == (epoch, lane)]
            assert sorted(places) == list(range(base, base + length))
            base += length


# Resuming ---------------------------------------------------------------------------------------------------------


@given(plans(), st.data())
@examples(100)
def test_after_any_number_of_samples_it_goes_on_as_if_never_stopped(plan: Plan, data: st.DataObject) -> None:
    total = epoch_total(plan)
    position = data.draw(st.integers(0, total), label="position")
    before = data.draw(st.sampled_from([1, plan.settings.num_streams]), label="consumers before")
    consumed = all_consumed(plan, position)
    whole = named(share(plan, 0, 1), total + 20 if total else 0).samples
    resumed = share(plan, 0, 1, 0, consumed)
    assert named(resumed, len(whole) - position).samples == whole[position:]
    for consumer in range(before):
        order = share(plan, consumer, before, 0, consumed)
        left = sum(order.order(0).stream_length(s) - consumed[s] for s in order.streams)
        rest = named(order, left).samples
        assert rest == [sample for sample in whole[position:total] if sample[1] in order.streams]


@given(plans(), st.data())
@examples(100)
def test_any_consumed_counts_can_be_resumed(plan: Plan, data: st.DataObject) -> None:
    """Also counts that no single run gives: workers of an uneven job stop anywhere."""
    epoch = plan.epoch(2)
    lengths = [epoch.stream_length(stream) for stream in range(plan.settings.num_streams)]
    consumed = [data.draw(st.integers(0, length)) for length in lengths]
    left = sum(lengths) - sum(consumed)
    found = named(share(plan, 0, 1, 2, consumed), left)
    for stream, done in enumerate(consumed):
        in_stream = [sample for sample in found.samples if sample[1] == stream]
        assert in_stream == expected_stream(plan, 2, stream)[done:]
    # Streams that are behind catch up first, so that a position is the same whatever ran before it.
    progress = list(consumed)
    for _, stream, _, _ in found.samples:
        assert progress[stream] == min(p for p, n in zip(progress, lengths, strict=True) if p < n)
        progress[stream] += 1


# Clips ------------------------------------------------------------------------------------------------------------


def clips_of_epochs(order: ConsumerOrder, last_epoch: int, count: int) -> list[ClipWork]:
    """All clips up to the end of an epoch, of which there are at most `count`."""
    return list(itertools.takewhile(lambda clip: clip.epoch <= last_epoch, itertools.islice(order.clips(), count)))


@given(plans(), st.data())
@examples(100)
def test_clips_cover_just_the_samples_that_are_pending(plan: Plan, data: st.DataObject) -> None:
    total = epoch_total(plan)
    if total == 0:
        return
    consumed = all_consumed(plan, data.draw(st.integers(0, total), label="position"))
    order = share(plan, 0, 1, 0, consumed)
    wanted = sorted((epoch, lane, place) for epoch, lane, place in take(order, 2 * total - sum(consumed)))
    clips = clips_of_epochs(order, 1, 2 * total + 1)
    assert [clip.number for clip in clips] == list(range(len(clips)))
    assert all(clip.pending.any() and len(clip.pending) == clip.stop - clip.start for clip in clips)
    covered = [(clip.epoch, clip.lane, clip.place + int(i)) for clip in clips for i in np.flatnonzero(clip.pending)]
    assert sorted(covered) == wanted


@given(plans(), st.data())
@examples(100)
def test_clips_come_when_needed_and_few_places_are_live(plan: Plan, data: st.DataObject) -> None:
    """Clips that are decoded in this order, no earlier than a sample needs them, keep each lane within its bound."""
    total = epoch_total(plan)
    if total == 0:
        return
    consumed = all_consumed(plan, data.draw(st.integers(0, total - 1), label="position"))
    order = share(plan, 0, 1, 0, consumed)
    samples = take(order, 2 * total - sum(consumed))
    feed = order.clips()
    decoded: list[ClipWork] = []
    end = [0] * len(order.streams)  # of what each lane needed so far
    lowest = lowest_pending(samples, len(end))
    longest = plan.settings.clip_frames + plan.settings.clip_frames // 2 + 1
    window = plan.settings.sample_window if plan.settings.shuffle else 0
    holder: dict[tuple[int, int], ClipWork] = {}
    for i, (epoch, lane, place) in enumerate(samples):
        while (lane, place) not in holder:
            decoded.append(next(feed))
            clip = decoded[-1]
            assert clip.epoch <= epoch
            assert clip.place >= max((c.place for c in decoded[:-1] if c.lane == clip.lane), default=0)
            holder.update({(clip.lane, clip.place + k): clip for k in range(len(clip.pending))})
        clip = holder[lane, place]
        end[lane] = max(end[lane], clip.place + len(clip.pending))
        assert end[lane] - lowest[i][lane] <= window + longest


def lowest_pending(samples: list[tuple[int, int, int]], lanes: int) -> list[list[int]]:
    """Per sample, just before it is delivered: each lane's lowest place that is still to come."""
    lowest = [2**62] * lanes
    result = []
    for _, lane, place in reversed(samples):
        lowest[lane] = min(lowest[lane], place)
        result.append(list(lowest))
    return result[::-1]


@pytest.mark.parametrize("streams", [1, 8])
def test_decoded_frames_stay_near_the_window(streams: int) -> None:
    """All lanes together, clips dropped when their last sample is out: the bound that the pool is sized by."""
    settings = PlanSettings(
        seed=1,
        shuffle=True,
        num_streams=streams,
        clip_frames=32,
        unit_frames=4096,
        clip_window=20_000,
        sample_window=800,
    )
    plan = Plan(np.full(60, 250), settings)
    order = share(plan, 0, 1)
    feed = order.clips()
    ends: list[int] = [0] * streams
    decoded = peak = 0
    for delivered, (_, lane, place) in enumerate(one_by_one(order)):
        while ends[lane] <= place:
            clip = next(feed)
            ends[clip.lane] = clip.place + len(clip.pending)
            decoded += len(clip.pending)
        peak = max(peak, decoded - delivered)
        if delivered == 2 * plan.total:
            break
    assert peak <= streams * (800 + 48)
    assert peak >= streams * 300  # about half a window is out of order at any time


def test_the_orders_of_a_few_epochs_are_kept() -> None:
    plan = Plan(np.full(5, 10), PlanSettings(0, True, 2, 4, 8, 16, 16))
    order = share(plan, 0, 2)
    assert order.order(1) is order.order(1)
    for epoch in range(2, 6):
        order.order(epoch)
    assert len(order._orders) == 4
    assert order.epoch_length(9) == 25


@given(plans(), st.data())
@examples(80)
def test_turns_are_known_before_samples_are_delivered(plan: Plan, data: st.DataObject) -> None:
    """Clip by clip, each sample's turn is the one at which it is delivered; epochs begin with a new batch."""
    if epoch_total(plan) == 0:
        return
    across_epochs = data.draw(st.booleans(), label="across_epochs")
    size = data.draw(st.integers(1, 9), label="batch size")
    consumed = [data.draw(st.integers(0, plan.epoch(1).stream_length(s))) for s in range(plan.settings.num_streams)]
    count = min(2 * epoch_total(plan) + 1, 3000)
    turn, before = 0, 1
    expected = {}
    for epoch, lane, place in take(share(plan, 0, 1, 1, consumed), count):
        if epoch != before and not across_epochs:
            turn = -(-turn // size) * size
        before = epoch
        expected[lane, place] = turn
        turn += 1
    turns = Turns(share(plan, 0, 1, 1, consumed), size, across_epochs)
    found = {}
    for clip in share(plan, 0, 1, 1, consumed).clips():
        places = clip.place + np.flatnonzero(clip.pending)
        found |= {(clip.lane, p): t for p, t in zip(places.tolist(), turns.of(clip.lane, places).tolist(), strict=True)}
        if len(found.keys() & expected.keys()) == len(expected):
            break
    assert {key: found[key] for key in expected} == expected
