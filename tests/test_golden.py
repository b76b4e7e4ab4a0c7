"""Every golden dataset streams to exactly what lerobot's map-style reader returned for the same frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robostream import StreamingLeRobotDataset
from robostream.synth import barcode_value

GOLDEN = sorted(p.parent for p in (Path(__file__).parent / "golden").glob("*/expected.json"))
BACKENDS = ["pyav", pytest.param("torchcodec", marks=pytest.mark.torchcodec)]
IDS = [p.name for p in GOLDEN]


def expected(golden: Path) -> dict[str, Any]:
    return json.loads((golden / "expected.json").read_text())


def check(sample: dict[str, Any], want: dict[str, Any], arrays: Any, where: str) -> None:
    assert set(sample) == set(want), where
    for key, spec in want.items():
        if "value" in spec:
            assert sample[key] == spec["value"], (where, key)
            continue
        value = sample[key]
        assert isinstance(value, torch.Tensor), (where, key)
        assert list(value.shape) == spec["shape"], (where, key)
        assert str(value.dtype).removeprefix("torch.") == spec["dtype"].removeprefix("torch."), (where, key)
        np.testing.assert_array_equal(value.numpy(), arrays[f"{where}/{key}"], err_msg=f"{where} {key}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("view", ["plain", "windowed"])
@pytest.mark.parametrize("golden", GOLDEN, ids=IDS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_samples_equal_lerobots(golden: Path, view: str, backend: str, shuffle: bool) -> None:
    want = expected(golden)
    arrays = np.load(golden / "expected.npz")
    dataset = StreamingLeRobotDataset(
        root=golden / "dataset",
        delta_timestamps=want["delta_timestamps"] if view == "windowed" else None,
        return_uint8=True,
        shuffle=shuffle,
        buffer_size=40,
        video_backend=backend,
    )
    assert dataset.num_frames == want["total_frames"]
    assert len(dataset) == want["total_frames"]
    seen = []
    for sample in dataset:
        index = int(sample["index"])
        seen.append(index)
        if index in want["indices"]:
            check(sample, want[view][str(index)], arrays, f"{view}/{index}")
    assert sorted(seen) == list(range(want["total_frames"]))
    assert (seen == sorted(seen)) != shuffle


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("golden", GOLDEN, ids=IDS)
def test_random_access_equals_lerobots(golden: Path, backend: str) -> None:
    want = expected(golden)
    arrays = np.load(golden / "expected.npz")
    dataset = StreamingLeRobotDataset(
        root=golden / "dataset",
        delta_timestamps=want["delta_timestamps"],
        return_uint8=True,
        video_backend=backend,
    )
    for index in want["indices"]:
        check(dataset[index], want["windowed"][str(index)], arrays, f"windowed/{index}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("golden", GOLDEN, ids=IDS)
def test_every_picture_shows_its_own_row(golden: Path, backend: str) -> None:
    dataset = StreamingLeRobotDataset(root=golden / "dataset", return_uint8=True, buffer_size=50, video_backend=backend)
    for sample in dataset:
        for number, key in enumerate(dataset.meta.camera_keys):
            picture = sample[key]
            if picture.is_floating_point():
                picture = (picture * 255).round().to(torch.uint8)
            code = barcode_value(number, int(sample["episode_index"]), int(sample["frame_index"]))
            assert read_bits(picture) == [code >> bit & 1 for bit in range(24)][: len(read_bits(picture))], key


def read_bits(picture: torch.Tensor) -> list[int]:
    """The barcode's bits, lowest first, of a uint8 [C, H, W] picture; blocks are at least four pixels wide."""
    block = max(4, picture.shape[2] // 24)
    bits = min(24, picture.shape[2] // block)
    top = picture[:, 4:12, : bits * block].float().mean(dim=(0, 1))
    return (top.reshape(bits, block).mean(dim=1) > 127).int().tolist()
