"""Processes, threads, memory and open files: what is shared, what stays bounded, and that everything ends."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from cases import (
    BUSY,
    CAM0,
    CAM1,
    STATE,
    check_pairing,
    data_path,
    indices,
    load,
    places,
    stream,
    video_path,
    write,
)

from robostream import StreamLoader
from robostream.errors import DataFileError, DecodeError
from robostream.pipeline import Pipeline

# More workers than cores are meant.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

LENGTHS = [30, 21, 25]
WINDOWS = {CAM1: [-0.2, 0.0, 0.1], STATE: [0.0, 0.5]}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("small"), LENGTHS, episodes_per_video_file=2)


def threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("robostream"))


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if "resource_tracker" not in cmdline(child)]


def cmdline(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def wait_for(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + BUSY * seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No thread, process or open file of the test is left two seconds after it, and nothing was warned of."""
    gc.collect()
    assert wait_for(lambda: not threads(), 2)
    files, before = psutil.Process().num_fds(), children()

    def left() -> list[psutil.Process]:
        return [child for child in children() if child not in before]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
        assert wait_for(lambda: not threads() and not left(), 2), (threads(), left())
        assert wait_for(lambda: psutil.Process().num_fds() <= files, 2)
    messages = [str(warning.message) for warning in caught if "worker processes" not in str(warning.message)]
    assert [text for text in messages if "fork() may lead to deadlocks" not in text] == []


# Forked and spawned workers --------------------------------------------------------------------------------------


def by_index(samples: Any) -> dict[int, dict[str, Any]]:
    return {int(sample["index"]): sample for sample in samples}


def check_equal(found: dict[int, dict[str, Any]], wanted: dict[int, dict[str, Any]]) -> None:
    assert found.keys() == wanted.keys()
    for index, sample in found.items():
        assert sample.keys() == wanted[index].keys()
        for key, value in sample.items():
            other = wanted[index][key]
            assert value == other if isinstance(value, str) else value.equal(other), (index, key)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_give_the_same_after_the_parent_has_read(small: Path, start: str) -> None:
    wanted = by_index(stream(small, delta_timestamps=WINDOWS))
    dataset = stream(small, delta_timestamps=WINDOWS)
    running = iter(dataset)
    first = [next(running), dataset[40]]
    check_equal(by_index(first), {int(s["index"]): wanted[int(s["index"])] for s in first})
    dataset.set_epoch(0)
    check_equal(by_index(load(dataset, 2, multiprocessing_context=start)), wanted)
    check_equal(by_index(dataset[i] for i in range(len(wanted))), wanted)


@pytest.mark.parametrize("before", [[0], [1], [3, 2], [2, 3]])
def test_workers_are_at_the_same_epoch_whatever_was_read_before(tmp_path: Path, before: list[int]) -> None:
    root = write(tmp_path, [4] * 16, cameras=0)
    dataset = stream(root)
    for workers in before:
        iterator = iter(load(dataset, workers))
        next(iterator)
        del iterator
    epochs = [indices(load(dataset, 4)) for _ in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(64))] * 2
    assert epochs[0] != epochs[1]


def test_workers_forked_while_threads_of_the_parent_hold_locks(small: Path) -> None:
    parent = stream(small, repeat=True, buffer_size=10, clip_frames=5)
    running = iter(parent)
    stop, stream_again = threading.Event(), stream(small)

    def read_on() -> None:
        while not stop.is_set():
            next(running)

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        for _ in range(2):
            samples = load(stream_again, 2, timeout=20)
            assert sorted(check_pairing(sample) for sample in samples) == places(LENGTHS)
    finally:
        stop.set()
        reader.join()


def test_a_fork_while_the_counters_are_being_read(small: Path) -> None:
    """A lock that another thread holds at a fork never opens in the child."""
    dataset = stream(small)
    with dataset._metrics._lock:
        assert len(indices(load(dataset, 2, timeout=20))) == sum(LENGTHS)


# Bounds ----------------------------------------------------------------------------------------------------------

MANY = 1500  # episodes, with one video for each of two cameras
FRAMES = 3


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 small videos: copies of two, so pictures tell the camera and frame, and rows the episode."""
    one = write(tmp_path_factory.mktemp("one"), [FRAMES], width=64, height=48, version="v2.1")
    root = tmp_path_factory.mktemp("many")
    shutil.copytree(one / "meta", root / "meta")
    rows = pq.read_table(next(one.glob("data/*/*.parquet"))).replace_schema_metadata(None)
    for episode in range(MANY):
        chunk = f"chunk-{episode // 1000:03d}"
        for camera in (CAM0, CAM1):
            target = root / f"videos/{chunk}/{camera}/episode_{episode:06d}.mp4"
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(one / f"videos/chunk-000/{camera}/episode_000000.mp4", target)
        table = rows
        for name, values in (
            ("episode_index", pa.array([episode] * FRAMES)),
            ("index", pc.add(rows["index"], FRAMES * episode)),
        ):
            table = table.set_column(table.schema.get_field_index(name), name, values)
        path = root / f"data/{chunk}/episode_{episode:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps(info | {"total_episodes": MANY, "total_frames": FRAMES * MANY}))
    lines = [
        json.dumps({"episode_index": e, "tasks": ["put the gripper on the target"], "length": FRAMES})
        for e in range(MANY)
    ]
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_many_files_stay_within_files_and_memory(many_files: Path, workers: int) -> None:
    dataset = stream(many_files, buffer_size=200)
    seen, files, memory, others = [], [], [], children()
    for number, batch in enumerate(load(dataset, workers, batch_size=30)):
        seen += batch["index"].tolist()
        if number % 15 == 14:
            processes = [psutil.Process(), *(child for child in children() if child not in others)]
            files.append(sum(process.num_fds() for process in processes))
            memory.append(sum(process.memory_info().rss for process in processes))
    assert sorted(seen) == list(range(FRAMES * MANY))
    assert seen[:100] != sorted(seen[:100])
    third = len(files) // 3
    assert max(files[third:]) <= max(files[:third]) + 20
    assert max(files) < 100 + 150 * workers
    assert memory[-1] <= memory[third] + (20 << 20)


# Ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_breaking_ends_everything(small: Path, workers: int, persistent: bool) -> None:
    dataset = stream(small)
    for count, _ in enumerate(load(dataset, workers, batch_size=4, persistent_workers=persistent and workers > 0)):
        if count == 2:
            break
    if not workers:
        assert wait_for(lambda: not threads(), 2)
    assert sorted(check_pairing(sample) for sample in dataset) == places(LENGTHS)
    dataset.close()
    assert threads() == []


@pytest.mark.usefixtures("nothing_left")
def test_breaking_without_a_loader_ends_all_threads_at_once(small: Path) -> None:
    dataset = stream(small)
    for number, _ in enumerate(dataset):
        if number == 2:
            assert threads()
            break
    assert threads() == []


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_in_the_consumer_ends_everything(small: Path, workers: int) -> None:
    def consume() -> None:
        for number, _ in enumerate(load(stream(small), workers, batch_size=4)):
            if number == 2:
                raise KeyError("of the consumer")

    with pytest.raises(KeyError, match="of the consumer"):
        consume()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("finished", [True, False])
def test_dropping_the_dataset_ends_all_threads(small: Path, finished: bool) -> None:
    dataset = stream(small)
    iterator = iter(dataset)
    next(iterator)
    if finished:
        assert len(list(iterator)) == sum(LENGTHS) - 1
        assert threads()
    del dataset, iterator
    assert wait_for(lambda: not threads(), 2)


@pytest.mark.usefixtures("nothing_left")
def test_closing_twice_and_before_use(small: Path) -> None:
    dataset = stream(small)
    dataset.close()
    next(iter(dataset))
    dataset.close()
    dataset.close()
    assert threads() == []
    assert len(indices(dataset)) == sum(LENGTHS)
    dataset.close()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("damage", ["picture", "rows"])
@pytest.mark.parametrize("loader", [False, True])
def test_an_error_in_a_stage_ends_all_threads(tmp_path: Path, damage: str, loader: bool) -> None:
    root = write(tmp_path, LENGTHS, episodes_per_video_file=1, episodes_per_data_file=1)
    if damage == "picture":
        data = bytearray(video_path(root, CAM1, 1).read_bytes())
        start = data.index(b"mdat")
        data[start + 8 :] = bytes(len(data) - start - 8)
        video_path(root, CAM1, 1).write_bytes(data)
    else:
        data_path(root, 1).write_bytes(b"PAR1")
    dataset = stream(root)
    before = time.monotonic()
    for _ in range(2):
        with pytest.raises((DecodeError, DataFileError), match=r"file-001\.(mp4|parquet)"):
            list(StreamLoader(dataset, 5) if loader else dataset)
        assert wait_for(lambda: not threads(), 2 if loader else 0)
    assert time.monotonic() - before < BUSY * 4
    assert len(indices(stream(root, episodes=[0, 2]))) == LENGTHS[0] + LENGTHS[2]


@pytest.mark.parametrize("shuffle", [True, False])
def test_nothing_comes_in_place_of_a_clip_that_was_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    root = write(tmp_path, [20] * 4, episodes_per_data_file=1)
    data_path(root, 1).write_bytes(b"PAR1")
    fail = Pipeline._fail

    def slowly(self: Pipeline, error: BaseException) -> None:
        time.sleep(0.1)
        fail(self, error)

    monkeypatch.setattr(Pipeline, "_fail", slowly)
    seen: list[tuple[int, int]] = []
    with pytest.raises(DataFileError, match=r"file-001\.parquet"):
        seen.extend(check_pairing(sample) for sample in stream(root, num_threads=3, shuffle=shuffle, buffer_size=1))
    assert len(set(seen)) == len(seen)
    assert not set(seen) & set(places([20] * 4, [1]))


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("loader", [False, True])
@pytest.mark.parametrize("place", ["decode", "fetch"])
def test_the_garbage_collector_may_find_a_dataset_in_one_of_its_threads(
    small: Path, monkeypatch: pytest.MonkeyPatch, place: str, loader: bool
) -> None:
    """A cycle of references keeps a dataset until the collector runs, in whatever thread that is."""
    dropped, collected = threading.Event(), threading.Event()
    target = "robostream.pipeline.decode_part" if place == "decode" else "robostream.fetch.ClipFetcher.fetch"
    module, name = target.rsplit(".", 1)
    original = getattr(sys.modules[module] if place == "decode" else sys.modules["robostream.fetch"].ClipFetcher, name)

    def collecting(*arguments: Any) -> Any:
        time.sleep(0.005)  # so that there is still work ahead when the dataset is dropped
        if dropped.is_set() and not collected.is_set():
            gc.collect()
            collected.set()
        return original(*arguments)

    monkeypatch.setattr(target, collecting)
    gc.collect()
    dataset = stream(small, clip_frames=5, buffer_size=1000, repeat=True)
    cycle: list[Any] = [dataset, iter(StreamLoader(dataset, 2) if loader else dataset)]
    next(cycle[1])
    cycle.append(cycle)
    gc.disable()
    try:
        del dataset, cycle
        dropped.set()
        assert collected.wait(10)
    finally:
        gc.enable()
    assert wait_for(lambda: not threads(), 2)


@pytest.mark.parametrize("loader", [False, True])
def test_dropping_a_sample_runs_no_python_code(small: Path, loader: bool) -> None:
    """Python throws away an interrupt that arrives in a finalizer, so Ctrl-C would be lost there."""
    dataset = stream(small)
    samples = [sample for sample, _ in zip(StreamLoader(dataset, 4) if loader else dataset, range(12), strict=False)]
    dataset.close()
    called: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    sys.setprofile(note)
    samples.clear()
    sys.setprofile(None)
    assert called == []


@pytest.mark.parametrize("loader", [False, True])
def test_an_interrupt_leaves_no_lock_behind(small: Path, loader: bool) -> None:
    """A lock that is taken by Python code is never released if an interrupt arrives before that code returns."""
    dataset = stream(small, buffer_size=20)
    called = set[str]()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == "__enter__" and frame.f_code.co_filename == threading.__file__:
            called.add(frame.f_code.co_filename)

    iterator = iter(StreamLoader(dataset, 4) if loader else dataset)
    next(iterator)
    sys.setprofile(note)
    count = sum(1 for _ in iterator)
    sys.setprofile(None)
    dataset.close()
    assert count == (sum(LENGTHS) // 4 - 1 if loader else sum(LENGTHS) - 1)
    assert called == set()


SCRIPT = """
import signal, sys, torch
from robostream import StreamingLeRobotDataset, StreamLoader
from torch.utils.data import DataLoader
signal.signal(signal.SIGINT, signal.default_int_handler)
dataset = StreamingLeRobotDataset(root=sys.argv[1], return_uint8=True, repeat=True, buffer_size=20, num_threads=2)
kind, start = sys.argv[2], sys.argv[3]
if kind == "StreamLoader":
    loader = StreamLoader(dataset, 2)
elif kind == "DataLoader":
    loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=start)
else:
    loader = dataset
def main():
    for number, _ in enumerate(loader):
        if number == 20:
            print("running", flush=True)
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("kind", "start"), [("dataset", ""), ("StreamLoader", ""), ("DataLoader", "fork"), ("DataLoader", "spawn")]
)
def test_ctrl_c_ends_everything_within_two_seconds(small: Path, tmp_path: Path, kind: str, start: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    flags = ["-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning"]
    process = subprocess.Popen(
        [sys.executable, *flags, str(script), str(small), kind, start],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n", process.communicate()[1]
    time.sleep(random.uniform(0, 0.1))
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= (2 if start else 0)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
    begun = time.monotonic()
    try:
        _, errors = process.communicate(timeout=20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert time.monotonic() - begun < BUSY * 2 + (1 if start else 0)
    assert "KeyboardInterrupt" in errors
    if not start:  # PyTorch's own workers leave a socket behind where they are caught while handing over a tensor
        assert "ResourceWarning" not in errors
        assert "Exception ignored" not in errors
    assert wait_for(lambda: not any(child.is_running() for child in family), 2)


def test_a_script_that_just_ends_ends(small: Path) -> None:
    script = (
        "import sys; from robostream import StreamingLeRobotDataset as D\n"
        "d = D(root=sys.argv[1], repeat=True); i = iter(d); next(i); e = iter(D(root=sys.argv[1])); print(len(list(e)))"
    )
    command = [sys.executable, "-X", "dev", "-c", script, str(small)]
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert time.monotonic() - begun < BUSY * 10
    assert done.stdout == f"{sum(LENGTHS)}\n"
    assert done.stderr == ""
