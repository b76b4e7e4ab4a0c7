"""Which videos the decoders of NVIDIA's GPUs (NVDEC) take, by GPU.

From NVIDIA's "Video Encode and Decode GPU Support Matrix" and the capability table of the "NVDEC Application Note" of
Video Codec SDK 13. `docs/decode.md` shows the same table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from robostream.diagnose.report import TRANSCODE, Finding, error, note


@dataclass(frozen=True)
class Coded:
    """A kind of video. chroma: 420, 422 or 444. bits: of each sample."""

    codec: str
    chroma: int = 420
    bits: int = 8

    def __str__(self) -> str:
        name = {"h264": "H.264", "hevc": "HEVC", "av1": "AV1", "vp9": "VP9"}.get(self.codec, self.codec)
        detail = "" if self.chroma == 420 else f" {':'.join(str(self.chroma))}"
        return f"{name}{detail}, {self.bits} bits"


KINDS = (
    Coded("h264"),
    Coded("h264", bits=10),
    Coded("h264", chroma=444),
    Coded("hevc"),
    Coded("hevc", bits=10),
    Coded("hevc", chroma=444),
    Coded("vp9"),
    Coded("av1"),
    Coded("av1", bits=10),
    Coded("av1", chroma=444),
)
"""The kinds that the table tells apart."""

_VOLTA = frozenset({Coded("h264"), Coded("hevc"), Coded("hevc", bits=10), Coded("vp9")})
_TURING = _VOLTA | {Coded("hevc", chroma=444), Coded("hevc", chroma=444, bits=10)}
_AMPERE = _TURING | {Coded("av1"), Coded("av1", bits=10)}
_BLACKWELL = _AMPERE | {Coded("h264", bits=10), Coded("hevc", chroma=422), Coded("hevc", chroma=422, bits=10)}


@dataclass(frozen=True)
class Family:
    """GPUs with the same decoder. gpus: name → decoders (NVDEC units) of one GPU, None where not known here.

    chips: compute capabilities, (major, minor), by which a GPU is told whose name is not listed.
    """

    name: str
    gpus: dict[str, int | None]
    takes: frozenset[Coded]
    chips: frozenset[tuple[int, int]]


FAMILIES = (
    Family("Volta", {"V100": 1, "TITAN V": 1}, _VOLTA, frozenset({(7, 0)})),
    Family("Turing", {"T4": 2, "Quadro RTX": None, "RTX 20": None, "GTX 16": None}, _TURING, frozenset({(7, 5)})),
    Family("Ampere, GA100", {"A100": 5, "A800": 5, "A30": 4}, _TURING, frozenset({(8, 0)})),
    Family("Hopper", {"H100": 7, "H200": 7, "H20": 7, "H800": 7, "GH200": 7}, _TURING, frozenset({(9, 0)})),
    Family(
        "Ampere, GA10x",
        {"A10": 2, "A10G": 2, "A40": 2, "A16": 2, "A2": 2, "RTX A": None, "RTX 30": None},
        _AMPERE,
        frozenset({(8, 6)}),
    ),
    Family(
        "Ada",
        {"L4": 4, "L40": 3, "L40S": 3, "L20": 3, "L2": None, "RTX 6000 Ada": 3, "RTX Ada": None, "RTX 40": None},
        _AMPERE,
        frozenset({(8, 9)}),
    ),
    Family(
        "Blackwell",
        {"B100": None, "B200": 7, "GB200": 7, "B300": None, "RTX PRO": None, "RTX 50": None},
        _BLACKWELL,
        frozenset({(10, 0), (10, 3), (12, 0)}),
    ),
)


def family_of(gpu: str, capability: tuple[int, int] | None = None) -> Family | None:
    """The family of a GPU by the name that CUDA gives ("NVIDIA A100-SXM4-80GB"), or else by compute capability."""
    listed = [(len(name), family) for family in FAMILIES for name in family.gpus if _is_called(gpu, name)]
    if listed:
        return max(listed, key=lambda found: found[0])[1]
    return next((family for family in FAMILIES if capability in family.chips), None)


def decoders_of(gpu: str) -> int | None:
    """How many NVDEC units a GPU has, or None where that is not known here."""
    listed = [(len(n), count) for f in FAMILIES for n, count in f.gpus.items() if _is_called(gpu, n)]
    return max(listed, key=lambda found: found[0])[1] if listed else None


def _is_called(gpu: str, name: str) -> bool:
    """Whether a GPU is the one listed as `name`. "RTX 40" stands for RTX 4060 to 4090, "RTX A" for RTX A2000 and so on;
    "RTX Ada" for the workstation GPUs with "Ada Generation" in their name."""
    if name == "RTX Ada":
        return "RTX" in gpu and "Ada" in gpu
    if name == "RTX 6000 Ada":
        return re.search(r"\bRTX 6000 Ada\b", gpu) is not None
    if re.fullmatch(r"(RTX|GTX) \d\d", name):
        return re.search(rf"\b{name}\d\d\b", gpu) is not None and "Ada" not in gpu
    if name == "RTX A":
        return re.search(r"\bRTX A\d", gpu) is not None
    return re.search(rf"\b{re.escape(name)}(?![A-Za-z0-9])", gpu) is not None


def judge_gpu(gpu: str, capability: tuple[int, int] | None, video: Coded) -> Finding | None:
    """Whether a GPU's decoder takes a kind of video; None if it does."""
    family = family_of(gpu, capability)
    if family is None:
        return note(
            "gpu-unknown",
            f"{gpu}: not in the table of GPUs with hardware decoders",
            "Look it up in NVIDIA's Video Encode and Decode GPU Support Matrix, or decode on the CPU.",
        )
    if video in family.takes:
        return None
    others = [other.name for other in FAMILIES if video in other.takes]
    instead = f"use a GPU of {' or '.join(others)}, or " if others else ""
    return error(
        "nvdec-no-codec",
        f"{gpu} ({family.name}): its hardware decoder does not take {video}",
        f"Decode on the CPU, {instead}re-encode the dataset with {TRANSCODE} --codec h264 (or hevc).",
    )


def markdown_table() -> str:
    """The table of `docs/decode.md`: a row for each family, a column for each kind."""
    head = ["family", "GPUs (decoders)", *map(str, KINDS)]
    rows = [
        [family.name, _gpu_list(family), *("yes" if kind in family.takes else "–" for kind in KINDS)]
        for family in FAMILIES
    ]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _gpu_list(family: Family) -> str:
    plural = {"RTX 20": "RTX 20xx", "GTX 16": "GTX 16xx", "RTX 30": "RTX 30xx", "RTX 40": "RTX 40xx"}
    plural |= {"RTX 50": "RTX 50xx", "RTX A": "RTX A2000 … A6000", "RTX Ada": "other RTX … Ada"}
    return ", ".join(
        plural.get(name, name) + (f" ({count})" if count is not None else "") for name, count in family.gpus.items()
    )
