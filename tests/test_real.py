"""A recorded dataset, where a copy of it is at hand: declared and stored contents differ in several ways."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from robostream import StreamingLeRobotDataset
from robostream.errors import MetadataError, PictureMatchError

ROOT = Path(os.environ.get("ROBOSTREAM_REAL_DATA", Path(__file__).parents[2] / "shared" / "real"))
GR1 = ROOT / "gr1_picknplace"
CAMERA = "observation.images.ego_view"

pytestmark = pytest.mark.skipif(not GR1.is_dir(), reason="the recorded dataset gr1_picknplace is not at hand")


def test_a_declared_camera_without_files_is_named_with_the_way_out() -> None:
    with pytest.raises(
        MetadataError, match=r"observation\.images\.egoview.*cameras=\[.observation\.images\.ego_view.\]"
    ):
        StreamingLeRobotDataset(root=GR1)


def test_a_clock_that_starts_late_is_refused_with_the_way_out() -> None:
    dataset = StreamingLeRobotDataset(root=GR1, cameras=[CAMERA])
    with pytest.raises(PictureMatchError, match=r'starts at 0\.05.*timestamps="index"'):
        next(iter(dataset))


def test_all_rows_come_with_their_pictures() -> None:
    dataset = StreamingLeRobotDataset(
        root=GR1, cameras=[CAMERA], timestamps="index", return_uint8=True, buffer_size=500
    )
    means = np.load(ROOT / "gr1_picknplace_means.npz")
    starts = dict(zip(dataset.meta.episodes.index.tolist(), dataset.meta.episodes.start.tolist(), strict=True))
    seen: set[tuple[int, int]] = set()
    worst = 0.0
    for sample in dataset:
        episode = int(sample["episode_index"])
        frame = int(sample["index"]) - starts[episode]
        seen.add((episode, frame))
        picture = sample[CAMERA].permute(1, 2, 0).numpy()
        assert picture.shape == (256, 256, 3)
        blocks = picture.reshape(8, 32, 8, 32, 3).mean(axis=(1, 3))
        want = means[f"{CAMERA}/episode_{episode:06d}"][frame].astype(np.float32)
        worst = max(worst, float(abs(blocks - want).max()))
    assert len(seen) == dataset.num_frames == 2096
    assert worst <= 3
