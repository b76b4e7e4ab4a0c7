"""What a job of many ranks will read, hold and wait for, computed from the plan alone: no data is read.

A rank's share, the mixing of its batches and its waits for the network follow from the plan of an epoch, the coded
size of a frame, and how fast a core decodes. What is estimated says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile

import numpy as np

from robostream.build import Blueprint, Share
from robostream.consumer import ClipWork, ConsumerOrder
from robostream.errors import SettingError
from robostream.plan import Clips, Float, Int, Plan, StreamOrder
from robostream.windows import Window
from robostream.windows import reach as window_reach

OF_CEILING = 0.75
"""What a loader gives of bare decoding; 0.69 to 0.83 were measured."""

_MOST_RANKS = 64  # whose shares are added up; of more ranks, these are taken at equal distances
_BATCHES = 1024  # streams × batches that are looked at for mixing
_CLIPS = 3000  # that the wait for the network is simulated over


@dataclass(frozen=True)
class Job:
    """A job to forecast. workers: DataLoader workers of each rank, 1 for `StreamLoader`. cores: of each rank."""

    ranks: int
    workers: int
    ranks_per_node: int
    batch_size: int
    cores: int

    def __post_init__(self) -> None:
        for name in ("ranks", "workers", "ranks_per_node", "batch_size", "cores"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name}={getattr(self, name)} must be at least 1")

    def share(self, rank: int, worker: int = 0) -> Share:
        return Share(rank * self.workers + worker, self.ranks * self.workers, self.ranks)

    @property
    def on_a_node(self) -> int:
        """Ranks on a full node."""
        return min(self.ranks, self.ranks_per_node)


@dataclass(frozen=True)
class Speeds:
    """decode: camera frames a second of one core. network: bytes a second into a node. model: samples a second that
    the model of one rank takes; None if it takes what comes."""

    decode: float
    network: float
    model: float | None = None

    def __post_init__(self) -> None:
        for name in ("decode", "network"):
            if not getattr(self, name) > 0:
                raise SettingError(f"{name} speed {getattr(self, name)} must be above 0")
        if self.model is not None and not self.model > 0:
            raise SettingError(f"model speed {self.model} must be above 0")


@dataclass(frozen=True)
class Reading:
    """What one rank reads in an epoch.

    frames: samples that it delivers. decoded: frames of each camera that it decodes, more than those where windows
    reach beyond a clip. bytes: of coded video.
    """

    rank: int
    episodes: int
    clips: int
    frames: int
    decoded: int
    bytes: int


@dataclass(frozen=True)
class Balance:
    """Over ranks: the most of each against the mean, 1.0 if all are equal."""

    frames: float
    decoded: float
    bytes: float


@dataclass(frozen=True)
class Mixing:
    """Distinct episodes in a global batch (mean over the epoch), and what drawing at random would give."""

    episodes: float
    random: float


@dataclass(frozen=True)
class Flow:
    """How a rank keeps up. samples_per_s: that it asks for (estimated). waiting: share of the time that it waits for
    the network in steady state, and first_s: seconds until the clips of its first batch are there. node_bytes_per_s:
    that a node's ranks read together without waiting."""

    samples_per_s: float
    node_bytes_per_s: float
    waiting: float
    first_s: float


@dataclass(frozen=True)
class Forecast:
    """A job's epoch. memory: bytes that a rank keeps to at most. readings: of all ranks, or of some of many."""

    job: Job
    steps: int
    readings: list[Reading]
    balance: Balance
    memory: int
    mixing: Mixing
    node_bytes: int
    flow: Flow
    seconds: float


def forecast(blueprint: Blueprint, job: Job, speeds: Speeds, epoch: int = 0) -> Forecast:
    """Forecast one epoch of a job. Raises SettingError if the plan cannot be split over its ranks."""
    plan = blueprint.plan(job.share(0))
    readings = [reading(blueprint, plan, job, rank, epoch) for rank in _some(job.ranks, _MOST_RANKS)]
    mean = {name: float(np.mean([getattr(r, name) for r in readings])) for name in ("frames", "decoded", "bytes")}
    most = {name: max(getattr(r, name) for r in readings) / max(1.0, value) for name, value in mean.items()}
    flow = _flow(blueprint, plan, job, speeds, mean, epoch)
    rate = flow.samples_per_s * (1 - flow.waiting)
    return Forecast(
        job,
        steps=int(plan.total // (job.ranks * job.batch_size)),
        readings=readings,
        balance=Balance(**most),
        memory=job.workers * blueprint.memory_bound(job.share(0), max(1, job.cores // job.workers)),
        mixing=mixing(plan, job, epoch),
        node_bytes=int(mean["bytes"] * job.on_a_node),
        flow=flow,
        seconds=mean["frames"] / rate if rate else float("inf"),
    )


def reading(blueprint: Blueprint, plan: Plan, job: Job, rank: int, epoch: int) -> Reading:
    """What a rank reads: the clips of its streams, and the frames that windows reach beyond them."""
    parts = list(_clips(blueprint, plan, job, rank, epoch))
    clips = Clips(*(np.concatenate(columns) for columns in zip(*parts, strict=True))) if parts else _no_clips()
    decoded = _decoded(blueprint, clips)
    return Reading(
        rank,
        episodes=len(np.unique(clips.episode)),
        clips=len(clips.start),
        frames=int((clips.stop - clips.start).sum()),
        decoded=int(decoded.sum()),
        bytes=int(decoded.sum() * frame_bytes(blueprint)),
    )


def frame_bytes(blueprint: Blueprint) -> float:
    """Coded bytes of one frame of all video cameras, by their first files. Images in Parquet don't count."""
    return sum(float(np.mean(table.size)) for table in blueprint.tables.values())


def mixing(plan: Plan, job: Job, epoch: int) -> Mixing:
    """Look at global batches spread over the epoch."""
    streams = plan.settings.num_streams
    order = plan.epoch(epoch)
    of_each = max(1, job.batch_size * job.ranks // streams)
    shortest = min(order.stream_length(stream) for stream in range(streams))
    places = np.unique(np.linspace(0, max(0, shortest - of_each), max(2, min(16, _BATCHES // streams)), dtype=int))
    lanes = [order.stream(stream) for stream in range(streams)]
    found = [len(np.unique(np.concatenate([_episodes(lane, int(at), of_each) for lane in lanes]))) for at in places]
    share = plan.lengths / max(1, plan.total)
    drawn = min(plan.total, job.batch_size * job.ranks)
    return Mixing(float(np.mean(found)), float((1 - (1 - share) ** drawn).sum()))


def _episodes(lane: StreamOrder, position: int, count: int) -> Int:
    """The episodes of `count` samples of a stream from a position on."""
    parts: list[Int] = []
    for samples in lane.samples(position):
        parts.append(samples.episode[:count])
        count -= len(parts[-1])
        if count <= 0:
            break
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _clips(blueprint: Blueprint, plan: Plan, job: Job, rank: int, epoch: int) -> Iterator[Clips]:
    order = plan.epoch(epoch)
    for worker in range(job.workers):
        for stream in blueprint.streams(plan, job.share(rank, worker)):
            yield from order.stream(stream).clips()


def _no_clips() -> Clips:
    return Clips(*(np.empty(0, np.int64) for _ in Clips._fields))


def _decoded(blueprint: Blueprint, clips: Clips) -> Int:
    """int64 [n]: frames that each clip decodes at most, the mean over cameras, with what windows reach beyond it."""
    length = blueprint.lengths[clips.episode]
    total = np.zeros(len(clips.start))
    for camera in blueprint.cameras:
        before, after = (0, 0) if camera.offsets is None else window_reach([Window(camera.key, camera.offsets)])
        total += np.minimum(clips.stop + after, length) - np.maximum(clips.start - before, 0)
    decoded: Int = np.round(total / max(1, len(blueprint.cameras))).astype(np.int64)
    return decoded


def _some(count: int, most: int) -> list[int]:
    return list(range(count)) if count <= most else np.linspace(0, count - 1, most, dtype=int).tolist()


# Waiting for the network ------------------------------------------------------------------------------------------


def _flow(blueprint: Blueprint, plan: Plan, job: Job, speeds: Speeds, mean: dict[str, float], epoch: int) -> Flow:
    """mean: frames, decoded and bytes of a rank."""
    frames = max(1.0, mean["frames"])
    pictures = max(1, len(blueprint.cameras)) * mean["decoded"] / frames  # decoded for one sample
    rate = OF_CEILING * speeds.decode * job.cores / max(pictures, 1e-9)
    if speeds.model is not None:
        rate = min(rate, speeds.model)
    place, size = _arrivals(blueprint, plan, job, epoch)
    ahead = job.workers * (max(1, job.cores // job.workers) + 2)
    waiting, first = waits(place, size, speeds.network / job.on_a_node, rate, ahead, job.batch_size)
    return Flow(rate, job.on_a_node * rate * mean["bytes"] / frames, waiting, first)


def _arrivals(blueprint: Blueprint, plan: Plan, job: Job, epoch: int) -> tuple[Float, Float]:
    """When the first clips of rank 0 are needed, in samples that it has delivered, and their bytes; float64 [n]."""
    window = plan.settings.sample_window if plan.settings.shuffle else 0
    place: list[float] = []
    works: list[ClipWork] = []
    lanes = 0
    for worker in range(job.workers):
        streams = blueprint.streams(plan, job.share(0, worker))
        order = ConsumerOrder(plan, streams, epoch, [0] * len(streams))
        own = list(takewhile(lambda work: work.epoch == epoch, islice(order.clips(), _CLIPS // job.workers)))
        works += own
        place += [float(work.place) for work in own]
        lanes += len(streams)
    clips = _no_clips()
    if works:
        clips = Clips(*(np.array([getattr(work, name) for work in works]) for name in Clips._fields))
    at: Float = np.array(place, np.float64)
    # A sample's key is its place + uniform(0, window): so many samples come before the first of a clip.
    needed: Float = np.where(at < window, at**2 / (2 * max(1, window)), at - window / 2) * lanes
    by_need = np.argsort(needed, kind="stable")
    size: Float = _decoded(blueprint, clips) * np.float64(frame_bytes(blueprint))
    return needed[by_need], size[by_need]


def waits(
    needed: Sequence[float] | Float, size: Sequence[float] | Float, network: float, rate: float, ahead: int, batch: int
) -> tuple[float, float]:
    """(share of the time that is spent waiting once it runs, seconds until the first batch's clips are there).

    needed: samples delivered before each clip is needed, ascending. size: its bytes. network: bytes a second.
    rate: samples a second if nothing waits. ahead: clips that are fetched before they are needed. batch: its samples.
    """
    begun: list[float] = []  # when each clip was there and needed
    there: list[float] = []  # when it was there
    arrived = 0.0
    for k, (at, count) in enumerate(zip(needed, size, strict=True)):
        room = begun[k - ahead] if k >= ahead else 0.0
        arrived = max(arrived, room) + count / network
        there.append(arrived)
        due = begun[-1] + (at - needed[k - 1]) / rate if begun else 0.0
        begun.append(max(arrived, due))
    if not begun:
        return 0.0, 0.0
    first = int(np.searchsorted(np.asarray(needed), batch))
    first_s = there[max(1, min(first, len(there))) - 1]
    half = len(begun) // 2  # the window has filled by then
    passed = begun[-1] - begun[half]
    busy = (needed[-1] - needed[half]) / rate
    return float(max(0.0, 1 - busy / passed) if passed > 0 else 0.0), float(first_s)
