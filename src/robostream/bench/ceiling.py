"""The decode ceiling: the same clips, decoded in sequence to RGB by the same number of threads, and nothing else.

This is PyAV alone: its codec contexts, its converter, no pool, no rows, no batches. A loader can't be faster than it
decodes, so its distance from this figure is what the loader itself costs.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import islice

import av
from av.video.reformatter import VideoReformatter

from robostream.build import Share
from robostream.consumer import ConsumerOrder
from robostream.dataset import StreamingLeRobotDataset
from robostream.decode import open_context
from robostream.metrics import Metrics
from robostream.mp4 import Coding
from robostream.rgb import REFORMAT
from robostream.video import CodedClip

_CLIPS = 64  # clips whose bytes are held; more would not change the rate


@dataclass(frozen=True)
class Ceiling:
    """frames_per_s: camera frames decoded to RGB in a second of wall clock. per_cpu_s: in a second of CPU time."""

    frames_per_s: float
    per_cpu_s: float


def measure_ceiling(dataset: StreamingLeRobotDataset, threads: int, seconds: float = 5.0) -> Ceiling:
    """Decode a dataset's clips, in its plan's order, without a pipeline. Datasets without videos have none: 0."""
    clips = _coded_clips(dataset)
    if not clips:
        return Ceiling(0.0, 0.0)
    counts = [0] * threads
    begin, begin_cpu = time.perf_counter(), time.process_time()
    workers = [
        threading.Thread(target=_decode_until, args=(clips, k, threads, begin + seconds, counts))
        for k in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    elapsed, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    return Ceiling(sum(counts) / elapsed, sum(counts) / cpu)


def _coded_clips(dataset: StreamingLeRobotDataset) -> list[CodedClip]:
    """The bytes of the first clips of the plan, one entry for each camera."""
    blueprint, share = dataset.blueprint, Share(dataset.rank, dataset.world_size, dataset.world_size)
    plan = blueprint.plan(share)
    streams = blueprint.streams(plan, share)
    fetcher = blueprint.fetcher(Metrics())
    works = islice(ConsumerOrder(plan, streams, 0, [0] * len(streams)).clips(), _CLIPS)
    parts = (part for work in works for part in fetcher.fetch(work).cameras)
    return [part.coded for part in parts if part.coded is not None]


def _decode_until(clips: list[CodedClip], k: int, step: int, end: float, counts: list[int]) -> None:
    reformatter = VideoReformatter()
    contexts: dict[Coding, av.VideoCodecContext] = {}
    while True:
        clip = clips[k % len(clips)]
        k += step
        skip = 0
        for first, last in clip.spans:
            coding = clip.table.coding(first)
            context = contexts.get(coding) or contexts.setdefault(coding, open_context(clip.name, coding))
            _decode_span(context, reformatter, clip, first, last, skip)
            skip += last - first
            counts[k % step] += last - first
            if time.perf_counter() >= end:
                return


def _decode_span(
    context: av.VideoCodecContext, reformatter: VideoReformatter, clip: CodedClip, first: int, last: int, skip: int
) -> None:
    for coded in clip.coded(first, last, skip):
        for frame in context.decode(av.Packet(coded)):  # type: ignore[arg-type]
            reformatter.reformat(frame, **REFORMAT)
    for frame in context.decode(None):
        reformatter.reformat(frame, **REFORMAT)
    context.flush_buffers()
