"""What would raise the loader's rate, with figures where they follow from what was measured."""

from __future__ import annotations

import math

from robostream.diagnose.backends import Gpu
from robostream.diagnose.index import IndexFacts
from robostream.diagnose.nvdec import Coded, family_of
from robostream.diagnose.predict import Prediction

WRITTEN = ("av1", "h264", "hevc")
"""The codecs that transcode writes."""
_SPACING = 16  # frames from keyframe to keyframe that are advised
_LARGE = 320  # pixels of the shorter side above which policies, as a rule, shrink their pictures
_SMALL = 256
_KEEP_BYTES = 64 << 30  # decoded datasets up to this size may well fit a machine


def advise(
    prediction: Prediction,
    facts: IndexFacts,
    *,
    frames: int | None,
    gpu: Gpu | None,
    video: Coded | None,
) -> list[str]:
    """Sentences, each a thing to do. frames: of the dataset, if it is known."""
    if prediction.bound == "copying":
        return ["Pictures are copied faster than this only if they are smaller: ask for fewer steps or cameras."]
    found = [
        f"More cores: each adds about {prediction.samples_per_s / prediction.cores:,.0f} samples/s. The loader takes "
        "all that the process may use; with `num_threads` it takes fewer."
    ]
    if frames and frames * prediction.picture_bytes <= _KEEP_BYTES:
        size = frames * prediction.picture_bytes / 1e9
        room = f"{max(1, math.ceil(size * 1.1))}_000_000_000"
        found.append(
            f"Memory: the dataset decoded is {size:,.1f} GB. With memory_bytes={room} it is decoded in the first epoch "
            "only."
        )
    return found + _encoding(facts) + _hardware(gpu, video)


def _encoding(facts: IndexFacts) -> list[str]:
    found = []
    if facts.spacing < _SPACING:
        found.append(
            f"Fewer keyframes: one every {_SPACING} frames instead of every {facts.spacing} takes fewer bytes and "
            f"decodes faster in order, at random slower: {_command(facts.codec)}."
        )
    found.append("Fewer bytes: decoding time follows them. Try a higher --crf on one episode, and diagnose the result.")
    short = min(facts.width, facts.height)
    if short > _LARGE:
        width, height = (2 * round(side * _SMALL / short / 2) for side in (facts.width, facts.height))
        faster = (facts.width * facts.height) / (width * height)
        found.append(
            f"Smaller pictures: at {width}×{height} there are {faster:.1f} times fewer pixels to decode: "
            f"`robostream transcode SRC OUT --width {width} --height {height}`."
        )
    return found


def _command(codec: str) -> str:
    """The command that gives fewer keyframes."""
    return f"`robostream transcode SRC OUT --codec {codec if codec in WRITTEN else 'h264'} --gop {_SPACING}`"


def _hardware(gpu: Gpu | None, video: Coded | None) -> list[str]:
    family = family_of(gpu.name, gpu.capability) if gpu is not None else None
    if gpu is None or family is None or video is None:
        return []
    if video in family.takes:
        units = f", with {gpu.decoders} decoders" if gpu.decoders else ""
        return [f"The GPU: the decoder of {gpu.name}{units}, takes {video}."]
    return [f"The GPU: the decoder of {gpu.name} does not take {video}; H.264 and HEVC it does."]
