"""The scripts in slurm/ on a real SLURM of two nodes, which is started here and ended afterwards."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from robostream.synth import SynthSettings, write_dataset

REPO = Path(__file__).parents[1]
CLUSTER = REPO / "tests/slurm_cluster.sh"
NEEDED = ("sbatch", "slurmctld", "slurmd", "munged")
MISSING = [name for name in NEEDED if shutil.which(name) is None]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)} here (Debian: slurm-wlm, munge)"),
    pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="starting SLURM needs root"),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """The environment in which to talk to the cluster."""
    folder = Path(f"/tmp/robostream-slurm-{os.getpid()}")  # short: paths of sockets may not be long
    if subprocess.run([CLUSTER, "start", folder, str(_free_ports())], check=False, timeout=90).returncode:
        _stop(folder)
        pytest.skip("SLURM's daemons don't start here")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    yield {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": path, "OMP_NUM_THREADS": "1"}
    _stop(folder)


def _stop(folder: Path) -> None:
    subprocess.run([CLUSTER, "stop", folder], check=True, timeout=60)
    shutil.rmtree(folder, ignore_errors=True)


def _free_ports() -> int:
    """The first of four ports in a row that nobody uses."""
    for port in range(17400, 30000, 10):
        try:
            for number in range(port, port + 4):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port
    raise AssertionError("no free ports")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("slurm") / "bob's data set"
    write_dataset(folder, SynthSettings(episodes=[90, 80, 95], cameras=1, width=64, height=64, fps=10, codec="h264"))
    return folder


def call(words: list[str], environment: dict[str, str], **knobs: object) -> str:
    variables = environment | {key: str(value) for key, value in knobs.items()}
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=60, check=False, cwd=REPO)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def job(number: str, environment: dict[str, str]) -> dict[str, str]:
    """What SLURM says of a job."""
    shown = call(["scontrol", "show", "job", number, "--oneliner"], environment)
    return dict(re.findall(r"(\w+)=(\S*)", shown))


def wait_for(done: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def finished(numbers: list[str], environment: dict[str, str], folder: Path) -> list[str]:
    """The states in which jobs ended."""

    def states() -> list[str]:
        return [job(number, environment)["JobState"] for number in numbers]

    wait_for(
        lambda: not {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"} & set(states()), 200, f"{states()} in {folder}"
    )
    return states()


QUICK = {"NUM_BATCHES": 3, "BATCH_SIZE": 8, "BENCH_ARGS": "--ceiling_seconds 0 --warmup_batches 0 --threads 1"}


def test_the_matrix_runs_one_job_after_another(slurm: dict[str, str], root: Path, tmp_path: Path) -> None:
    out = tmp_path / "results of bob's"
    small = {"CPU_WORKERS": 1, "CPU_BUFFER": 50, "MEM": "500M", "TIME": 5}
    knobs = {"ROOT": root, "OUT_DIR": out, "SOURCES": "local", "MODES": "wrong single sarm", **small, **QUICK}
    submitted = call(["bash", str(REPO / "slurm/run_streaming_matrix.sh")], slurm, **knobs)
    assert [line.split()[1:] for line in submitted.splitlines()] == [
        ["local", mode, "cpu"] for mode in ("wrong", "single", "sarm")
    ]
    numbers = [line.split()[0] for line in submitted.splitlines()]
    assert job(numbers[2], slurm)["Dependency"].startswith(f"afterany:{numbers[1]}")
    states = finished(numbers, slurm, out)
    assert states == ["FAILED", "COMPLETED", "COMPLETED"], [path.read_text() for path in (out / "logs").iterdir()]
    for before, after in itertools.pairwise(numbers):
        assert job(before, slurm)["EndTime"] <= job(after, slurm)["StartTime"]
    results = [json.loads(path.read_text()) for path in out.glob("*.json")]
    assert sorted(result["mode"] for result in results) == ["sarm", "single"]
    assert all((result["source"], result["batch_size"]) == ("local", 8) for result in results)
    assert {"robostream-local-single-cpu", "robostream-local-sarm-cpu", "robostream-local-wrong-cpu"} == {
        path.name.rsplit("-", 1)[0] for path in (out / "logs").iterdir()
    }


def test_the_matrix_at_the_same_time(slurm: dict[str, str], root: Path, tmp_path: Path) -> None:
    knobs = {"ROOT": root, "OUT_DIR": tmp_path, "SOURCES": "local", "SERIAL": 0, "CPU_WORKERS": 1, "MEM": "500M"}
    submitted = call(["bash", str(REPO / "slurm/run_streaming_matrix.sh")], slurm, **knobs)
    numbers = [line.split()[0] for line in submitted.splitlines()]
    assert [job(number, slurm)["Dependency"] for number in numbers] == ["(null)"] * 2
    call(["scancel", *numbers], slurm)
    finished(numbers, slurm, tmp_path)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"SOURCES": "bucket"}, "BUCKET is not set"),
        ({"SOURCES": "moon"}, "SOURCES has moon; known are hub"),
        ({"DECODES": "cuda", "GPUS": "0"}, "DECODES has cuda, but GPUS is 0"),
    ],
)
def test_the_matrix_refuses_before_it_submits(
    slurm: dict[str, str], tmp_path: Path, knobs: dict[str, str], message: str
) -> None:
    words = ["bash", str(REPO / "slurm/run_streaming_matrix.sh")]
    variables = slurm | {"OUT_DIR": str(tmp_path)} | knobs
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stdout == ""


def test_a_benchmark_on_each_node(slurm: dict[str, str], root: Path, tmp_path: Path) -> None:
    knobs = {"ROOT": root, "OUT_DIR": tmp_path / "out put", "BUFFER": 50, "WORKERS": 1, **QUICK}
    words = ["sbatch", "--parsable", "--nodes=2", f"--output={tmp_path}/log", "slurm/benchmark_streaming_robocasa.sh"]
    number = call(words, slurm, **knobs).strip()
    assert finished([number], slurm, tmp_path) == ["COMPLETED"], (tmp_path / "log").read_text()
    for node in ("node0", "node1"):
        results = [json.loads(path.read_text()) for path in (tmp_path / "out put" / node).glob("*.json")]
        assert sorted(result["mode"] for result in results) == ["sarm", "single"]


def test_training_on_two_nodes_is_cancelled_and_goes_on(slurm: dict[str, str], root: Path, tmp_path: Path) -> None:
    output = tmp_path / "out put"
    knobs = {
        "ROOT": root,
        "OUTPUT_DIR": output,
        "BATCH_SIZE": 8,
        "WORKERS": 1,
        "SAVE_FREQ": 5,
        "NUM_STREAMS": 4,
        "TRAIN_ARGS": "--log_freq 1 --log_batches",
    }
    words = ["sbatch", "--parsable", f"--output={tmp_path}/log-%j", "slurm/train_streaming_robocasa.sh"]
    first = call(words, slurm, STEPS=100_000, **knobs).strip()
    last = output / "checkpoints/last"
    wait_for(last.exists, 120, f"no checkpoint; the log: {(tmp_path / f'log-{first}')}")
    call(["scancel", first], slurm)
    assert finished([first], slurm, tmp_path) == ["CANCELLED"]
    done = int(last.read_text().removeprefix("step-"))
    second = call(words, slurm, STEPS=done + 10, **knobs).strip()
    assert finished([second], slurm, tmp_path) == ["COMPLETED"], (tmp_path / f"log-{second}").read_text()
    said = (tmp_path / f"log-{second}").read_text()
    assert "2 nodes × 1 processes" in said
    assert f"after step {done}" in said
    for rank in (0, 1):
        lines = [json.loads(line) for line in (output / f"batches-{rank}.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, done + 11))
    steps = min(265 // 4 * 4 // 16, done + 10)  # whole batches of both nodes in the first epoch
    rows = [
        row
        for rank in (0, 1)
        for line in (output / f"batches-{rank}.jsonl").read_text().splitlines()[:steps]
        for row in json.loads(line)["rows"]
    ]
    assert len(set(rows)) == len(rows) == 16 * steps
