"""The table of GPUs and what their decoders take, and that the docs show it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from robostream.diagnose.nvdec import FAMILIES, Coded, decoders_of, family_of, judge_gpu, markdown_table

DOCS = Path(__file__).parents[1] / "docs/decode.md"
AV1, H264, HEVC = Coded("av1"), Coded("h264"), Coded("hevc")


@pytest.mark.parametrize(
    ("gpu", "family", "decoders"),
    [
        ("NVIDIA A100-SXM4-80GB", "Ampere, GA100", 5),
        ("NVIDIA A30", "Ampere, GA100", 4),
        ("NVIDIA H100 80GB HBM3", "Hopper", 7),
        ("NVIDIA H200", "Hopper", 7),
        ("NVIDIA GH200 480GB", "Hopper", 7),
        ("NVIDIA A10", "Ampere, GA10x", 2),
        ("NVIDIA A10G", "Ampere, GA10x", 2),
        ("NVIDIA A16", "Ampere, GA10x", 2),
        ("NVIDIA A40", "Ampere, GA10x", 2),
        ("NVIDIA RTX A6000", "Ampere, GA10x", None),
        ("NVIDIA GeForce RTX 3090", "Ampere, GA10x", None),
        ("NVIDIA L4", "Ada", 4),
        ("NVIDIA L40", "Ada", 3),
        ("NVIDIA L40S", "Ada", 3),
        ("NVIDIA GeForce RTX 4090", "Ada", None),
        ("NVIDIA RTX 4000 Ada Generation", "Ada", None),
        ("NVIDIA RTX 6000 Ada Generation", "Ada", 3),
        ("Tesla T4", "Turing", 2),
        ("Quadro RTX 6000", "Turing", None),
        ("NVIDIA GeForce RTX 2080 Ti", "Turing", None),
        ("Tesla V100-SXM2-16GB", "Volta", 1),
        ("NVIDIA B200", "Blackwell", 7),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "Blackwell", None),
        ("NVIDIA GeForce RTX 5090", "Blackwell", None),
    ],
)
def test_a_gpu_is_known_by_its_name(gpu: str, family: str, decoders: int | None) -> None:
    found = family_of(gpu)
    assert found is not None
    assert found.name == family
    assert decoders_of(gpu) == decoders


def test_a_gpu_that_is_not_listed_is_known_by_its_capability() -> None:
    found = family_of("NVIDIA Something 9", (8, 9))
    assert found is not None
    assert found.name == "Ada"
    assert family_of("NVIDIA Something 9", (99, 0)) is None
    assert decoders_of("NVIDIA Something 9") is None


@pytest.mark.parametrize("gpu", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "Tesla T4"])
def test_gpus_without_an_av1_decoder(gpu: str) -> None:
    finding = judge_gpu(gpu, None, AV1)
    assert finding is not None
    assert finding.kind == "nvdec-no-codec"
    assert gpu in finding.what
    assert "AV1, 8 bits" in finding.what
    for way_out in ("CPU", "Ada", "Ampere, GA10x", "--codec h264 (or hevc)"):
        assert way_out in finding.do
    assert judge_gpu(gpu, None, H264) is None
    assert judge_gpu(gpu, None, HEVC) is None
    assert judge_gpu(gpu, None, Coded("hevc", bits=10)) is None


@pytest.mark.parametrize("gpu", ["NVIDIA L4", "NVIDIA L40", "NVIDIA GeForce RTX 4090", "NVIDIA A10", "NVIDIA A40"])
def test_gpus_with_an_av1_decoder(gpu: str) -> None:
    assert judge_gpu(gpu, None, AV1) is None
    assert judge_gpu(gpu, None, Coded("av1", bits=10)) is None
    assert judge_gpu(gpu, None, Coded("av1", chroma=444)) is not None


def test_h264_of_ten_bits_needs_blackwell() -> None:
    takes = [family.name for family in FAMILIES if Coded("h264", bits=10) in family.takes]
    assert takes == ["Blackwell"]


def test_an_unknown_gpu_is_no_error() -> None:
    finding = judge_gpu("NVIDIA Something 9", (99, 0), AV1)
    assert finding is not None
    assert (finding.kind, finding.severity.value) == ("gpu-unknown", "note")


def test_the_docs_show_this_table() -> None:
    assert markdown_table() in DOCS.read_text(encoding="utf-8")


def test_the_docs_explain_every_finding() -> None:
    source = "".join(path.read_text() for path in (DOCS.parents[1] / "src/robostream/diagnose").glob("*.py"))
    kinds = set(re.findall(r'(?:note|warning|error)\(\s*"([a-z0-9-]+)"', source))
    assert len(kinds) > 20
    explained = set(re.findall(r"^\| `([a-z0-9-]+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    assert explained == kinds
