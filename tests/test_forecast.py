"""What a job is forecast to read, mix and wait for, held to what really happens."""

from __future__ import annotations

import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CAM0, CAM1, stream, write
from typer.testing import CliRunner

from robostream import StreamLoader
from robostream.cli import app
from robostream.errors import SettingError
from robostream.forecast import Forecast, Job, Speeds, forecast, waits

LENGTHS = [40, 63, 75, 52, 30, 60, 44, 36]
FAST = Speeds(decode=1000.0, network=1e12)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("forecast"), LENGTHS, episodes_per_video_file=3)


def of(
    root: Path, ranks: int, speeds: Speeds = FAST, *, workers: int = 1, batch: int = 16, **settings: Any
) -> Forecast:
    dataset = stream(root, rank=0, world_size=1, **({"buffer_size": 40, "clip_frames": 16} | settings))
    return forecast(dataset.blueprint, Job(ranks, workers, 2, batch, cores=2), speeds)


@pytest.mark.parametrize("ranks", [1, 3, 8])
@pytest.mark.parametrize("windows", [None, {CAM0: [-0.5, -0.3, -0.1, 0.0], CAM1: [0.0, 0.1]}])
def test_what_a_rank_reads_is_what_it_reads(root: Path, ranks: int, windows: dict[str, list[float]] | None) -> None:
    found = of(root, ranks, delta_timestamps=windows)
    assert sum(one.frames for one in found.readings) == sum(LENGTHS)
    for one in found.readings:
        settings: dict[str, Any] = {"buffer_size": 40, "clip_frames": 16, "delta_timestamps": windows}
        dataset = stream(root, rank=one.rank, world_size=ranks, **settings)
        samples = list(dataset)
        dataset.close()
        assert one.frames == len(samples)
        assert one.episodes == len({int(sample["episode_index"]) for sample in samples})
        # The next epoch's clips are begun while this one drains, so the loader's own count is a little ahead.
        assert 2 * one.decoded <= dataset.metrics()["frames_decoded"] * (1 if windows else 1.01)
    if windows is None:
        assert sum(one.decoded for one in found.readings) == sum(LENGTHS)
    else:
        assert sum(one.decoded for one in found.readings) > 1.1 * sum(LENGTHS)


def test_bytes_are_those_of_the_files(root: Path) -> None:
    files = sum(path.stat().st_size for path in root.glob("videos/**/*.mp4"))
    read = sum(one.bytes for one in of(root, 2).readings)
    assert 0.75 * files < read < files  # the rest are the files' indices


def test_shares_are_equal_and_nodes_read_the_sum_of_their_ranks(root: Path) -> None:
    found = of(root, 4)
    assert found.balance.frames == pytest.approx(1.0)
    assert 1.0 <= found.balance.bytes < 1.1
    assert found.node_bytes == pytest.approx(sum(one.bytes for one in found.readings) / 2, rel=1e-3)
    assert found.steps == sum(LENGTHS) // 64


def test_mixing_is_that_of_real_batches(root: Path) -> None:
    with StreamLoader(stream(root, buffer_size=40, clip_frames=16, repeat=True, num_threads=1), 16) as loader:
        real = [len(np.unique(batch["episode_index"].numpy())) for batch in islice(loader, 25)]
    found = of(root, 1).mixing
    assert found.episodes == pytest.approx(np.mean(real), rel=0.2)
    share = np.array(LENGTHS) / sum(LENGTHS)
    assert found.random == pytest.approx((1 - (1 - share) ** 16).sum())
    assert of(root, 8).mixing.episodes > found.episodes


def test_memory_is_the_bound_of_a_rank(root: Path) -> None:
    dataset = stream(root, buffer_size=40, clip_frames=16, rank=0, world_size=4)
    assert of(root, 4).memory == dataset.memory_bound
    assert of(root, 4, workers=2).memory > of(root, 4).memory


def test_throughput_is_what_cores_decode_or_the_model_takes(root: Path) -> None:
    rate = of(root, 1).flow.samples_per_s
    assert rate == pytest.approx(0.75 * 1000 * 2 / 2)  # of what a core decodes, two cores, two cameras
    assert of(root, 1, Speeds(1000.0, 1e12, model=100.0)).flow.samples_per_s == 100.0
    found = of(root, 1)
    assert found.seconds == pytest.approx(sum(LENGTHS) / rate, rel=1e-6)


def test_a_network_that_is_too_slow_is_waited_for(root: Path) -> None:
    needs = of(root, 2).flow.node_bytes_per_s
    assert of(root, 2, Speeds(1000.0, 4 * needs)).flow.waiting == pytest.approx(0, abs=0.02)
    assert of(root, 2, Speeds(1000.0, needs / 4)).flow.waiting == pytest.approx(0.75, abs=0.1)
    slow, fast = (of(root, 2, Speeds(1000.0, needs * factor)).flow.first_s for factor in (0.1, 10))
    assert slow > 5 * fast


def test_waits_by_hand() -> None:
    """Clips of 10 samples and 100 bytes: at 50 bytes a second one comes each 2 s, which 5 samples a second use up."""
    needed, size = [10.0 * k for k in range(100)], [100.0] * 100
    assert waits(needed, size, 50.0, 5.0, ahead=4, batch=1)[0] == pytest.approx(0.0)
    assert waits(needed, size, 50.0, 20.0, ahead=4, batch=1)[0] == pytest.approx(0.75)
    assert waits(needed, size, 1e9, 20.0, ahead=4, batch=1)[0] == pytest.approx(0.0)
    assert waits(needed, size, 50.0, 5.0, ahead=4, batch=1)[1] == pytest.approx(2.0)
    assert waits(needed, size, 50.0, 5.0, ahead=4, batch=31)[1] == pytest.approx(8.0)
    assert waits([], [], 50.0, 5.0, ahead=4, batch=1) == (0.0, 0.0)


@pytest.mark.parametrize("changes", [{"ranks": 0}, {"batch_size": 0}, {"cores": -1}])
def test_jobs_that_cannot_be_are_refused(changes: dict[str, int]) -> None:
    sizes = {"ranks": 1, "workers": 1, "ranks_per_node": 1, "batch_size": 1, "cores": 1} | changes
    with pytest.raises(SettingError, match=f"{next(iter(changes))}="):
        Job(**sizes)


def test_the_command_prints_tables_and_json(root: Path) -> None:
    words = ["plan", "--root", str(root), "--world_size", "4", "--batch_size", "8", "--frames_per_s", "900"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "4 ranks, 4 on a node" in shown.stdout
    assert f"8 episodes, {sum(LENGTHS)} frames × 2" in shown.stdout
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [one["job"]["ranks"] for one in found["simulated"]] == [1, 8, 64, 512]
    assert [one["frames"] for one in found["job"]["readings"]] == [100] * 4
    nodes = [one["node_bytes"] for one in found["simulated"]]
    assert nodes[1] == pytest.approx(nodes[0], rel=0.01)
    assert nodes[3] < nodes[2] < nodes[1]
    fixed = json.loads(CliRunner().invoke(app, [*words, "--num_streams", "8", "--json"]).stdout)
    assert [one["job"]["ranks"] for one in fixed["simulated"]] == [1, 8]
    refused = CliRunner().invoke(app, [*words, "--num_streams", "6"])
    assert refused.exit_code == 1
    assert "num_streams=6 must be a multiple of the number of consumers, 4" in refused.stderr


def test_a_rank_of_sixteen_reads_ahead_no_more_than_one_alone(tmp_path: Path) -> None:
    """Nor does it take more memory, once it has read as far ahead as it may."""
    root = write(tmp_path, [60] * 32, cameras=1, episodes_per_video_file=4)
    ahead = []
    for ranks in (1, 16):
        dataset = stream(root, rank=0, world_size=ranks, buffer_size=60, num_threads=1, repeat=True)
        with StreamLoader(dataset, 8, prefetch=1) as loader:
            batches = iter(loader)
            next(batches)
            found, quiet = loader.metrics(), 0
            while quiet < 5:
                time.sleep(0.1)
                now = loader.metrics()
                quiet, found = (quiet + 1 if now["clips"] == found["clips"] else 0), now
            batches.close()  # type: ignore[attr-defined]
            ahead.append((found["clips"], found["bytes_read"], found["frames_decoded"], float(loader.memory_bound)))
    for alone, of_many in zip(*ahead, strict=True):
        assert 0 < of_many <= 1.3 * alone
