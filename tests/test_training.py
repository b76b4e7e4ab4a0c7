"""The training example in real processes: killed and resumed, on other numbers of ranks, and over uneven data."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from accelerate.state import AcceleratorState, GradientState

from robostream.synth import SynthSettings, write_dataset

EXAMPLE = Path(__file__).parents[1] / "examples/scaling/train_streaming_multinode.py"
TRAIN = [30, 26, 41, 33, 22, 40]  # 192 rows: 12 global batches of 16
HELD_OUT = 15


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "a dataset"
    lengths = [*TRAIN, HELD_OUT]
    write_dataset(folder, SynthSettings(episodes=lengths, cameras=1, width=64, height=64, fps=10, codec="h264"))
    return folder


def command(launcher: list[str], root: Path, output: Path, **flags: Any) -> list[str]:
    """Flags of the value True stand alone."""
    base = {"log_freq": 1, "save_freq": 5, "num_workers": 1, "buffer_size": 60, "val_episodes": 1, "log_batches": True}
    given = {"root": root, "output_dir": output} | base | flags
    words = [[f"--{name}"] if value is True else [f"--{name}", str(value)] for name, value in given.items()]
    return [*launcher, str(EXAMPLE), *(word for pair in words for word in pair)]


def accelerate(ranks: int) -> list[str]:
    return [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", f"--num_processes={ranks}", *_free()]


def torchrun(ranks: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]


def _free() -> list[str]:
    return ["--main_process_port=0", "--rdzv_backend=c10d"]


Here = Callable[[list[str]], None]
ENVIRONMENT = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}


def run(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[list[str]], None]]:
    """Runs the example in this process, which is quicker to start."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    for name in ("MASTER_ADDR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")

    def run_here(words: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", words)
        importlib.import_module(EXAMPLE.stem).main()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more would spin on cores that others need
    yield run_here
    torch.set_num_threads(threads)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def batches(output: Path, rank: int = 0) -> list[dict[str, Any]]:
    return lines(output / f"batches-{rank}.jsonl")


def losses(output: Path) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in lines(output / "log.jsonl") if "loss" in line}


def validation(output: Path) -> dict[int, float]:
    return {line["step"]: line["val_loss"] for line in lines(output / "log.jsonl") if "val_loss" in line}


def kill(process: subprocess.Popen[Any]) -> None:
    """SIGKILL for all at once; the launcher's ranks are in sessions of their own."""
    family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for member in family:
        member.kill()
    psutil.wait_procs(family)
    process.wait()


SHARED = {"batch_size": 8, "num_streams": 4}
STEPS = 40


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks that nothing interrupts."""
    output = tmp_path_factory.mktemp("whole")
    run(command(accelerate(2), root, output, steps=STEPS, **SHARED))
    return output


def test_what_a_run_leaves_behind(whole: Path) -> None:
    folder = whole / "checkpoints"
    steps = [f"step-{step:07d}" for step in range(5, STEPS + 1, 5)]
    assert sorted(path.name for path in folder.iterdir()) == ["last", *steps]
    assert (folder / "last").read_text() == steps[-1]
    assert sorted(path.name for path in (folder / steps[0]).iterdir()) == [
        "data.json",
        "job.json",
        "model.safetensors",
        "optimizer.pt",
        "rng.pt",
    ]
    state = json.loads((folder / "step-0000010" / "data.json").read_text())
    assert state["epoch"] == 0
    assert state["consumed"] == dict.fromkeys("0123", 40)
    assert list(losses(whole)) == list(range(1, STEPS + 1))
    assert list(validation(whole)) == [0, STEPS]
    assert validation(whole)[STEPS] < validation(whole)[0]
    figures = lines(whole / "log.jsonl")[-2]
    assert figures["frames_per_s"] == pytest.approx(2 * figures["frames_per_s_process"])
    assert 0 <= figures["data_wait"] <= 1


def test_ranks_share_each_epoch(whole: Path) -> None:
    for epoch in range(3):
        steps = range(12 * epoch + 1, 12 * epoch + 13)
        rows = [
            row for rank in (0, 1) for line in batches(whole, rank) if line["step"] in steps for row in line["rows"]
        ]
        assert sorted(rows) == list(range(sum(TRAIN)))


def test_killed_in_mid_epoch_it_goes_on_bit_for_bit(whole: Path, root: Path, tmp_path: Path) -> None:
    words = command(accelerate(2), root, tmp_path, steps=10_000, resume_from="auto", **SHARED)
    with (tmp_path / "out.txt").open("w") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out, env=ENVIRONMENT, start_new_session=True)
        log, end = tmp_path / "batches-1.jsonl", time.monotonic() + 120
        while time.monotonic() < end and not (log.exists() and len(log.read_text().splitlines()) > 7):
            assert process.poll() is None, (tmp_path / "out.txt").read_text()
            time.sleep(0.005)
        kill(process)
    last = int((tmp_path / "checkpoints/last").read_text().removeprefix("step-"))
    assert 5 <= last < STEPS
    (tmp_path / "checkpoints/.writing-step-0000099").mkdir()  # as if it was killed while it wrote
    with (tmp_path / "log.jsonl").open("a") as log_file:
        log_file.write('{"step": 3, "lo')
    said = run(command(accelerate(2), root, tmp_path, steps=STEPS, resume_from="auto", **SHARED))
    assert f"after step {last}" in said
    for rank in (0, 1):
        assert batches(tmp_path, rank) == batches(whole, rank)
    assert losses(tmp_path) == losses(whole)
    assert validation(tmp_path)[STEPS] == validation(whole)[STEPS]
    assert not list(tmp_path.glob("checkpoints/.writing*"))


def test_on_half_the_ranks_every_sample_of_the_epoch_comes_once(whole: Path, root: Path, tmp_path: Path) -> None:
    """And with the global batch kept, each step has the samples that it would have had."""
    start = whole / "checkpoints/step-0000005"
    run(
        command(
            [sys.executable], root, tmp_path, steps=24, resume_from=start, batch_size=16, num_streams=4, save_freq=100
        )
    )
    before = [row for rank in (0, 1) for line in batches(whole, rank)[:5] for row in line["rows"]]
    after = batches(tmp_path)
    assert [line["step"] for line in after] == list(range(6, 25))
    assert sorted(before + [row for line in after[:7] for row in line["rows"]]) == list(range(sum(TRAIN)))
    for line in after:
        there = [row for rank in (0, 1) for row in batches(whole, rank)[line["step"] - 1]["rows"]]
        assert sorted(line["rows"]) == sorted(there)
    # Each rank takes the mean over its own steps that are no padding, so losses are close, not equal.
    assert losses(tmp_path)[24] == pytest.approx(losses(whole)[24], rel=0.3)


def test_three_ranks_over_uneven_data_go_through_their_epochs(root: Path, tmp_path: Path) -> None:
    flags = {"steps": 30, "batch_size": 7, "no-even": True, "val_episodes": 2, "save_freq": 8}
    run(command(torchrun(3), root, tmp_path, **flags))
    total = sum(TRAIN[:-1])
    first: list[int] = []
    for rank in range(3):
        rows = [row for line in batches(tmp_path, rank) for row in line["rows"]]
        assert len(rows) == 7 * 30
        length = total // 3 + 1
        if len(set(rows[:length])) < length or set(rows[:length]) & set(first):
            length -= 1
        first += rows[:length]
    assert sorted(first) == list(range(total))
    assert (tmp_path / "checkpoints/last").read_text() == "step-0000030"
    assert losses(tmp_path)[30] < losses(tmp_path)[1]


def test_worker_processes_go_on_bit_for_bit(root: Path, tmp_path: Path, here: Here) -> None:
    flags = {"batch_size": 8, "loader": "workers", "num_workers": 2}
    here(command([], root, tmp_path / "whole", steps=30, **flags))
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    again = command([], root, tmp_path / "again", steps=30, **flags)
    here([*again, "--resume_from", str(tmp_path / "whole/checkpoints/step-0000015")])
    assert batches(tmp_path / "again") == batches(tmp_path / "whole")
    assert losses(tmp_path / "again") == losses(tmp_path / "whole")
    other = command([], root, tmp_path / "other", steps=30, **{**flags, "num_workers": 1})
    with pytest.raises(SystemExit, match="goes on only as it was saved"):
        here([*other, "--resume_from", str(tmp_path / "whole")])


def test_bf16_with_accumulated_gradients(root: Path, tmp_path: Path, here: Here) -> None:
    flags = {"steps": 6, "batch_size": 8, "mixed_precision": "bf16", "gradient_accumulation_steps": 2}
    here(command([], root, tmp_path, **flags))
    assert [line["step"] for line in batches(tmp_path)] == [step for step in range(1, 7) for _ in range(2)]
    assert losses(tmp_path)[6] < losses(tmp_path)[1]
    state = json.loads((tmp_path / "checkpoints/last").with_name("step-0000005").joinpath("data.json").read_text())
    assert state["consumed"] == {"0": 80}


def test_dummy_takes_batches_without_a_model(
    root: Path, tmp_path: Path, here: Here, capsys: pytest.CaptureFixture[str]
) -> None:
    here(command([], root, tmp_path, steps=26, dummy=True, batch_size=16))
    assert [line["step"] for line in lines(tmp_path / "log.jsonl")] == list(range(1, 27))
    rows = [row for line in batches(tmp_path) for row in line["rows"]]
    assert sorted(rows[: sum(TRAIN)]) == list(range(sum(TRAIN)))
    assert "frames_per_s" in capsys.readouterr().out
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    ("flags", "variables", "message"),
    [
        ({"policy": "act"}, {}, "--policy act needs lerobot"),
        ({"resume_from": "nowhere"}, {}, "--resume_from nowhere: neither a checkpoint"),
        ({"val_episodes": 7}, {}, "--val_episodes 7: the dataset has 7 episodes"),
        ({"num_streams": 0}, {}, "num_streams=0 must be a whole number, at least 1"),
        ({}, {"MASTER_ADDR": "127.0.0.1"}, "starts a single process"),
    ],
)
def test_what_cannot_work_is_one_clear_error(
    root: Path,
    tmp_path: Path,
    here: Here,
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, Any],
    variables: dict[str, str],
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, "lerobot", None)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=message):
        here(command([], root, tmp_path, steps=1, **flags))
