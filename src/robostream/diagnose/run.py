"""The diagnosis of one file: from its first bytes to the samples/s that it allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from robostream.bench.modes import Mode
from robostream.diagnose.advice import advise
from robostream.diagnose.backends import (
    Attempt,
    Gpu,
    find_gpu,
    judge_device,
    pixel_format,
    try_pyav,
    try_torchcodec,
)
from robostream.diagnose.first_bytes import LENGTH, judge_first_bytes, show
from robostream.diagnose.index import IndexFacts, index_facts, judge_failure, judge_index
from robostream.diagnose.keyframes import judge_keyframes
from robostream.diagnose.nvdec import Coded
from robostream.diagnose.predict import Prediction, predict
from robostream.diagnose.report import Finding, Severity, error
from robostream.diagnose.target import Target
from robostream.diagnose.timing import Speed, measure_speed
from robostream.diagnose.versions import versions
from robostream.errors import DataFileError, RobostreamError
from robostream.index import VideoIndex
from robostream.mp4 import SampleTable


@dataclass
class Diagnosis:
    """What was found. What could not be had, because a step before it failed, is None.

    first_bytes: in hexadecimal and as text. coded: the kind of video. advice: what would raise the rate.
    """

    file: str
    camera: str | None
    episode: int | None
    versions: dict[str, str]
    gpu: Gpu | None = None
    size: int | None = None
    first_bytes: str | None = None
    index: IndexFacts | None = None
    coded: Coded | None = None
    attempts: list[Attempt] = field(default_factory=list)
    speed: Speed | None = None
    prediction: Prediction | None = None
    advice: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether the file can't be read as asked."""
        return any(finding.severity is Severity.error for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(
    target: Target,
    *,
    device: str = "cpu",
    mode: Mode = Mode.single,
    seconds: float = 6.0,
    said: Callable[[str], None] = lambda step: None,
) -> Diagnosis:
    """Look at a file. Never raises for what is wrong with it: that is in the findings.

    Args:
        device: what `video_decode_device` is to be, "cpu", "cuda" or "cuda:N".
        mode: what the prediction is for.
        seconds: how long to time decoding; 0 for not at all.
        said: called with the name of each step that begins.
    """
    found = Diagnosis(target.name, target.camera, target.episode, versions(), find_gpu(device))
    said("reading")
    table = _read_index(target, found)
    if table is None:
        found.findings += judge_device(device, found.gpu, None)
        return found
    said("decoding a picture")
    decodes = len(table.presented) > 0 and _decode_one(target, table, device, found)
    if decodes and seconds > 0:
        said("timing")
        _time(target, table, mode, seconds, found)
    return found


def _read_index(target: Target, found: Diagnosis) -> SampleTable | None:
    try:
        found.size = target.source.stat(target.path).size
        head = target.source.read_ranges(target.path, [0], [min(LENGTH, found.size)])[0]
        found.first_bytes = show(head)
        refused = judge_first_bytes(target.name, head, found.size)
        if refused is not None:
            found.findings.append(refused)
            return None
        table = VideoIndex(target.source).table(target.path)
    except DataFileError as failure:
        found.findings.append(judge_failure(failure))
        return None
    except RobostreamError as failure:
        found.findings.append(error("unreadable", str(failure), "See the message; check the address and the token."))
        return None
    found.index = index_facts(table)
    fps = target.meta.info.fps if target.meta is not None else None
    found.findings += judge_index(target.name, table, target.feature, fps)
    return table


def _decode_one(target: Target, table: SampleTable, device: str, found: Diagnosis) -> bool:
    """Whether the loader's decoder gives the episode's first picture."""
    picture = min(target.first, len(table.presented) - 1)
    found.coded = pixel_format(target, table)
    attempt, finding = try_pyav(target, table, picture)
    tried = [(attempt, finding), try_torchcodec(target, picture, "cpu")]
    found.findings += judge_device(device, found.gpu, found.coded)
    if found.gpu is not None:
        tried.append(try_torchcodec(target, picture, device if device != "cpu" else "cuda"))
    for attempt, finding in tried:
        found.attempts.append(attempt)
        if finding is not None and finding.kind not in {known.kind for known in found.findings}:
            found.findings.append(finding)
    if found.attempts[0].ms is None:
        return False
    false_keyframes = judge_keyframes(target, table)
    if false_keyframes is not None:
        found.findings.append(false_keyframes)
    return True


def _time(target: Target, table: SampleTable, mode: Mode, seconds: float, found: Diagnosis) -> None:
    try:
        found.speed = measure_speed(target, table, seconds)
    except RobostreamError as failure:
        found.findings.append(
            error(
                "undecodable",
                str(failure),
                "Part of the file is damaged. Download it again; else leave the episode out with `episodes=`.",
            )
        )
        return
    found.prediction = predict(target, table, found.speed, mode)
    frames = target.meta.total_frames if target.meta is not None else None
    assert found.index is not None
    found.advice = advise(found.prediction, found.index, frames=frames, gpu=found.gpu, video=found.coded)
