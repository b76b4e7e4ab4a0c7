"""What an MP4's index tells of how it can be read."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from robostream.diagnose.report import TRANSCODE, Finding, error, note, warning
from robostream.errors import DataFileError
from robostream.metadata import Feature
from robostream.mp4 import SampleTable
from robostream.sizing import keyframe_spacing

_FAR = 64  # frames between keyframes above which fetching one picture is dear
_RATE_TOLERANCE = 5e-3


@dataclass(frozen=True)
class IndexFacts:
    """spacing: frames from keyframe to keyframe, as a rule. first_pts: seconds. moov: "head" or "tail"."""

    codec: str
    width: int
    height: int
    fps: float
    pictures: int
    keyframes: int
    spacing: int
    bframes: bool
    first_pts: float
    moov: str
    bytes_of_picture: int
    bytes_read: int


def index_facts(table: SampleTable) -> IndexFacts:
    """The facts of a sample table."""
    shown = table.pts[table.presented]
    return IndexFacts(
        codec=table.codec,
        width=table.width,
        height=table.height,
        fps=float(table.frame_rate),
        pictures=len(table.presented),
        keyframes=int(table.keyframe.sum()),
        spacing=keyframe_spacing(table),
        bframes=bool((np.diff(table.pts) < 0).any()),
        first_pts=float(shown[0] / table.timescale) if len(shown) else 0.0,
        moov="head" if table.moov_at_head else "tail",
        bytes_of_picture=int(table.size.mean()) if len(table.size) else 0,
        bytes_read=table.bytes_read,
    )


def judge_failure(failure: DataFileError) -> Finding:
    """The diagnosis of a file whose index can't be read."""
    said = str(failure)
    if "truncated" in said or "shorter than" in said:
        return error(
            "truncated",
            said,
            "Download or copy the file again. If it is a recording that was never finished, record the episode again "
            "or leave it out with `episodes=`.",
        )
    if "fragmented" in said:
        return error("fragmented", said, "Rewrite the file as the message says; nothing is encoded again.")
    if "no such file" in said or "does not exist" in said:
        return error("missing-file", said, "Download the file, or leave its camera out with `cameras=`.")
    return error("broken-index", said, "Rewrite the file without loss: `ffmpeg -i IN.mp4 -c copy OUT.mp4`.")


def judge_index(name: str, table: SampleTable, feature: Feature | None, fps: Fraction | None) -> list[Finding]:
    """Findings of a sample table. feature, fps: the camera and the frame rate that info.json declares, if known."""
    facts = index_facts(table)
    found = _keyframes(name, facts, table, feature)
    if facts.pictures == 0:
        found.append(error("no-pictures", f"{name}: the video track shows no picture", "Record or download it again."))
    if facts.moov == "tail":
        found.append(
            note(
                "moov-at-tail",
                f"{name}: the index ('moov') lies behind the pictures: a remote store is asked once more for it",
                "`ffmpeg -i IN.mp4 -c copy -movflags +faststart OUT.mp4` moves it; transcode puts it in front.",
            )
        )
    if facts.bframes:
        found.append(
            note(
                "b-frames",
                f"{name}: frames are stored in another order than shown (B-frames)",
                "Nothing: they are read right. Without them single pictures are reached with fewer frames decoded.",
            )
        )
    if fps is not None and facts.fps and abs(facts.fps / float(fps) - 1) > _RATE_TOLERANCE:
        found.append(
            warning(
                "other-fps",
                f"{name}: the video has {facts.fps:g} fps, info.json declares {float(fps):g}",
                'Correct info.json, or pass timestamps="index" if picture k belongs to row k.',
            )
        )
    if feature is not None and not {facts.width, facts.height} <= set(feature.shape):
        found.append(
            warning(
                "other-size",
                f"{name}: pictures are {facts.width}×{facts.height}, info.json declares {list(feature.shape)}",
                "Correct info.json. The loader goes by the video.",
            )
        )
    return found


def _keyframes(name: str, facts: IndexFacts, table: SampleTable, feature: Feature | None) -> list[Finding]:
    reencode = f"Re-encode with {TRANSCODE}."
    if facts.pictures and not table.keyframe.any():
        what = f"{name}: none of its {len(table.keyframe)} frames is marked as a keyframe"
        return [error("no-keyframes", what, f"Decoding has nowhere to begin but the file's start. {reencode}")]
    if facts.pictures and not table.keyframe[0]:
        first = int(np.argmax(table.keyframe))
        what = f"{name}: the first keyframe is frame {first}; the {first} frames before it can't be relied on"
        return [error("late-keyframe", what, f"The file was cut in the middle of a group of pictures. {reencode}")]
    declared = feature.info.get("video.g") if feature is not None else None
    found = []
    if isinstance(declared, int) and facts.spacing > 2 * max(1, declared):
        what = f"{name}: a keyframe every {facts.spacing} frames, where info.json declares one every {declared}"
        found.append(warning("fewer-keyframes", what, f"Loaders that seek count on the declared number. {reencode}"))
    if facts.spacing > _FAR:
        what = (
            f"{name}: a keyframe only every {facts.spacing} frames" if facts.keyframes > 1 else _only_one(name, facts)
        )
        found.append(
            warning(
                "keyframes-far",
                what,
                "Streaming decodes clips in order and hardly minds; `dataset[i]` and loaders that seek decode up to "
                "that many frames for one picture. For those: `robostream transcode SRC OUT --gop 16`.",
            )
        )
    return found


def _only_one(name: str, facts: IndexFacts) -> str:
    return f"{name}: only one keyframe in {facts.pictures} pictures"
