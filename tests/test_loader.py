"""`StreamLoader`: whole batches in reused memory, and its exact state."""

from __future__ import annotations

import json
import threading
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch

from robostream import StreamingLeRobotDataset, StreamLoader, merge_states
from robostream.errors import SettingError, StateError
from robostream.synth import SynthSettings, read_barcode, split_barcode, write_dataset

CAMERA = "observation.images.cam0"
WINDOWS = {"action": [0.0, 0.1, 0.2], CAMERA: [-0.2, 0.0]}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loader") / "dataset"
    write_dataset(
        folder,
        SynthSettings(
            episodes=[30, 17, 44, 25, 9, 38], cameras=2, width=64, height=64, fps=10, codec="h264", coded=True,
            episodes_per_video_file=2,
        ),
    )  # fmt: skip
    return folder


def open_dataset(root: Path, **settings: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset(root=root, **{"return_uint8": True, "buffer_size": 60, **settings})


def rows(batches: list[dict[str, Any]]) -> list[int]:
    return [row for batch in batches for row in batch["index"].tolist()]


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    if a.keys() != b.keys():
        return False
    return all(torch.equal(v, b[k]) if isinstance(v, torch.Tensor) else v == b[k] for k, v in a.items())


def test_batches_hold_the_samples_that_the_dataset_yields(root: Path) -> None:
    samples = list(open_dataset(root, delta_timestamps=WINDOWS))
    with StreamLoader(open_dataset(root, delta_timestamps=WINDOWS), 16) as loader:
        assert len(loader) == 11
        batches = list(loader)
    assert [len(batch["index"]) for batch in batches] == [16] * 10 + [3]
    flat = [{k: v[i] for k, v in batch.items()} for batch in batches for i in range(len(batch["index"]))]
    assert len(flat) == len(samples) == 163
    assert all(same(a, b) for a, b in zip(flat, samples, strict=True))
    assert batches[0][CAMERA].shape == (16, 2, 3, 64, 64)


def test_a_kept_batch_is_never_overwritten(root: Path) -> None:
    with StreamLoader(open_dataset(root), 8, prefetch=1) as loader:
        kept = list(loader)
        for _ in range(2):
            for _ in loader:
                pass
    for batch in kept:
        for k in range(len(batch["index"])):
            code = split_barcode(read_barcode(batch[CAMERA][k].permute(1, 2, 0).numpy()))
            assert code == (0, int(batch["episode_index"][k]), int(batch["frame_index"][k]))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("size", [163, 500])
@pytest.mark.parametrize(
    "settings",
    [
        {"shuffle": False, "delta_timestamps": WINDOWS},
        {"delta_timestamps": WINDOWS, "num_streams": 3},
        {"memory_bytes": 1 << 14, "shuffle": False},
        {"on_error": "skip"},
        {"cameras": []},
    ],
)
def test_a_batch_may_be_larger_than_all_that_is_decoded_ahead(root: Path, size: int, settings: dict[str, Any]) -> None:
    tiny = {"buffer_size": 1, "clip_frames": 2, "num_threads": 1, "repeat": True, **settings}
    with StreamLoader(open_dataset(root, **tiny), size) as large, StreamLoader(open_dataset(root, **tiny), 1) as small:
        batches = list(islice(large, 2))
        samples = list(islice(small, 2 * size))
    assert [len(batch["index"]) for batch in batches] == [size, size]
    flat = [{k: v[i : i + 1] for k, v in batch.items()} for batch in batches for i in range(size)]
    assert all(same(a, b) for a, b in zip(flat, samples, strict=True))


def test_the_memory_bound_counts_windows_and_batches(root: Path) -> None:
    def bound(size: int, steps: int, **settings: Any) -> int:
        windows = {"action": [step / 10 for step in range(steps)], CAMERA: [-0.1, 0.0]}
        with StreamLoader(open_dataset(root, delta_timestamps=windows, **settings), size, prefetch=1) as loader:
            return loader.memory_bound

    dataset = open_dataset(root)
    step = 4 * dataset.meta.features["action"].shape[0] + 1  # of an action, float32, and its mask
    assert bound(1, 10_001) - bound(1, 1) >= 10_000 * step * 60
    shown, decoded = 2 + 1, 1 + 1  # pictures of a sample: one camera has a window, whose pictures are shared
    picture = dataset.cameras[0].frame_bytes
    assert bound(1001, 1, shuffle=False) - bound(1, 1, shuffle=False) >= 1000 * ((1 + 3) * shown + decoded) * picture


def test_memory_of_dropped_batches_is_used_again(root: Path) -> None:
    dataset = open_dataset(root, buffer_size=16, clip_frames=8, num_threads=1, repeat=True)
    with StreamLoader(dataset, 8) as loader:
        places = set()
        for batch in islice(loader, 300):
            places.add(batch[CAMERA].data_ptr())
            del batch
    # For each camera: 12 batches that are being decoded (16 frames and 6 clips of at most 13), and at most two that
    # wait, one that is handed over, one in use.
    assert len(places) <= 2 * 16


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_windows_of_one_camera_leave_the_others_right(root: Path, size: int, repeat: bool) -> None:
    dataset = open_dataset(root, delta_timestamps={CAMERA: [-0.1, 0.0]}, repeat=repeat, num_streams=3)
    reference = open_dataset(root, delta_timestamps={CAMERA: [-0.1, 0.0]})
    with StreamLoader(dataset, size) as loader:
        for batch in chain(islice(loader, 3), islice(loader, 2 if repeat else None)):  # from a second epoch, too
            for k, row in enumerate(batch["index"].tolist()):
                assert same({key: value[k] for key, value in batch.items()}, reference[row])


def test_another_batch_size_may_follow(root: Path) -> None:
    dataset = open_dataset(root)
    for size in (8, 8, 5):
        batches = list(StreamLoader(dataset, size))
        assert sorted(rows(batches)) == list(range(163))
        for batch in batches:
            codes = [split_barcode(read_barcode(picture.permute(1, 2, 0).numpy())) for picture in batch[CAMERA]]
            shown = zip(batch["episode_index"].tolist(), batch["frame_index"].tolist(), strict=True)
            assert codes == [(0, episode, frame) for episode, frame in shown]


def test_drop_last_and_length(root: Path) -> None:
    with StreamLoader(open_dataset(root), 16, drop_last=True) as loader:
        assert len(loader) == 10
        assert [len(batch["index"]) for batch in loader] == [16] * 10


def test_repeat_goes_on_with_full_batches(root: Path) -> None:
    with StreamLoader(open_dataset(root, repeat=True), 16) as loader:
        taken = []
        for batch in loader:
            taken.append(batch)
            if len(taken) == 25:
                break
    assert all(len(batch["index"]) == 16 for batch in taken)
    order = rows(taken)
    assert sorted(order[:163]) == list(range(163))
    assert sorted(order[163:326]) == list(range(163))
    assert order[:163] != order[163:326]


def test_contiguous_pictures_have_the_same_values(root: Path) -> None:
    with (
        StreamLoader(open_dataset(root), 16) as views,
        StreamLoader(open_dataset(root), 16, contiguous=True) as copies,
    ):
        for a, b in zip(views, copies, strict=True):
            assert b[CAMERA].is_contiguous()
            assert not a[CAMERA].is_contiguous()
            assert same(a, b)


def test_float_pictures_are_the_bytes_divided_by_255(root: Path) -> None:
    with (
        StreamLoader(open_dataset(root), 16) as whole,
        StreamLoader(open_dataset(root, return_uint8=False), 16) as scaled,
    ):
        for a, b in zip(whole, scaled, strict=True):
            assert b[CAMERA].dtype == torch.float32
            assert torch.equal(a[CAMERA].float() / 255, b[CAMERA])


def test_transforms_see_each_sample(root: Path) -> None:
    seen: list[tuple[int, ...]] = []

    def invert(picture: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(picture.shape))
        return 255 - picture

    with (
        StreamLoader(open_dataset(root), 16) as plain,
        StreamLoader(open_dataset(root, image_transforms=invert), 16) as inverted,
    ):
        for a, b in zip(plain, inverted, strict=True):
            assert torch.equal(255 - a[CAMERA], b[CAMERA])
    assert set(seen) == {(3, 64, 64)}
    assert len(seen) == 2 * 163


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_order_does_not_depend_on_threads(root: Path, threads: int) -> None:
    with StreamLoader(open_dataset(root, num_threads=threads), 16) as loader:
        batches = list(loader)
    with StreamLoader(open_dataset(root, num_threads=2), 16) as loader:
        assert all(same(a, b) for a, b in zip(batches, loader, strict=True))


@pytest.mark.parametrize("stop", [1, 4, 10, 11, 15])
def test_a_resumed_run_goes_on_bit_for_bit(root: Path, stop: int) -> None:
    def run(loader: StreamLoader, count: int) -> list[dict[str, Any]]:
        taken: list[dict[str, Any]] = []
        while len(taken) < count:
            for batch in loader:
                taken.append(batch)
                if len(taken) == count:
                    break
        return taken

    with StreamLoader(open_dataset(root, delta_timestamps=WINDOWS), 16) as loader:
        whole = run(loader, 22)
    with StreamLoader(open_dataset(root, delta_timestamps=WINDOWS), 16) as loader:
        head = run(loader, stop)
        state = json.loads(json.dumps(loader.state_dict()))
    with StreamLoader(open_dataset(root, delta_timestamps=WINDOWS), 16) as loader:
        loader.load_state_dict(state)
        tail = run(loader, 22 - stop)
    assert all(same(a, b) for a, b in zip([*head, *tail], whole, strict=True))


def test_states_of_other_runs_are_refused_by_name(root: Path) -> None:
    loader = StreamLoader(open_dataset(root), 16)
    state = loader.state_dict()
    for change, word in (
        ({"seed": 7}, "seed: saved 42, now 7"),
        ({"episodes": [0, 1]}, "num_episodes: saved 6, now 2"),
        ({"buffer_size": 80}, "sample_window: saved 60, now 80"),
        ({"delta_timestamps": WINDOWS}, "windows"),
    ):
        with pytest.raises(StateError, match=word):
            StreamLoader(open_dataset(root, **change), 16).load_state_dict(state)
    with pytest.raises(StateError, match="not a state"):
        loader.load_state_dict({"epoch": 0})


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (4, 1)])
def test_a_job_resumes_on_another_number_of_ranks(root: Path, before: int, after: int) -> None:
    def rank_loader(rank: int, world: int) -> StreamLoader:
        return StreamLoader(open_dataset(root, num_streams=4, rank=rank, world_size=world), 16 // world)

    states, first = [], []
    for rank in range(before):
        with rank_loader(rank, before) as loader:
            batches = iter(loader)
            first += rows([next(batches) for _ in range(4)])
            states.append(loader.state_dict())
            batches.close()  # type: ignore[attr-defined]
    state = merge_states(states)
    rest = []
    for rank in range(after):
        with rank_loader(rank, after) as loader:
            loader.load_state_dict(state)
            rest += rows(list(loader))
    assert len(first) == 64
    assert sorted(first + rest) == list(range(163))


def test_kept_pictures_are_not_decoded_again(root: Path) -> None:
    with StreamLoader(open_dataset(root, memory_bytes=64 << 20), 16) as loader:
        first = rows(list(loader))
        decoded = loader.metrics()["frames_decoded"]
        second = list(loader)
        assert loader.metrics()["frames_decoded"] == decoded == 2 * 163
    assert sorted(first) == sorted(rows(second)) == list(range(163))
    for batch in second:
        for k in range(len(batch["index"])):
            code = split_barcode(read_barcode(batch[CAMERA][k].permute(1, 2, 0).numpy()))
            assert code == (0, int(batch["episode_index"][k]), int(batch["frame_index"][k]))


def test_kept_pictures_within_too_little_memory_stay_right(root: Path) -> None:
    with StreamLoader(open_dataset(root, memory_bytes=90 * 2 * 64 * 64 * 3, buffer_size=20), 16) as loader:
        for epoch in range(3):
            batches = list(loader)
            assert sorted(rows(batches)) == list(range(163))
            for batch in batches:
                for k in range(len(batch["index"])):
                    code = split_barcode(read_barcode(batch[CAMERA][k].permute(1, 2, 0).numpy()))
                    assert code == (0, int(batch["episode_index"][k]), int(batch["frame_index"][k])), epoch
        metrics = loader.metrics()
    assert 2 * 163 < metrics["frames_decoded"] < 3 * 2 * 163


def test_leaving_the_loop_ends_all_threads(root: Path) -> None:
    for batch in StreamLoader(open_dataset(root), 16):
        assert len(batch["index"]) == 16
        break
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("robostream")]


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("prefetch", 0)])
def test_impossible_settings_are_refused(root: Path, name: str, value: int) -> None:
    with pytest.raises(SettingError, match=f"{name}={value}"):
        StreamLoader(open_dataset(root), **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", "x"), ("buffer_size", 1.5), ("buffer_size", 0), ("image_transforms", 3), ("num_threads", 0)],
)
def test_impossible_settings_of_the_dataset_are_refused(root: Path, name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=name):
        open_dataset(root, **{name: value})


@pytest.mark.parametrize("size", [0, -1, 2.5, "8", None])
def test_batch_sizes_that_are_none(root: Path, size: object) -> None:
    with pytest.raises(SettingError, match="batch_size="):
        StreamLoader(StreamingLeRobotDataset(root=root), size)  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", [-1, 1.5, "a", 1 << 63])
def test_epochs_that_are_none(root: Path, epoch: object) -> None:
    with pytest.raises(SettingError, match="epoch"):
        StreamingLeRobotDataset(root=root).set_epoch(epoch)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, "1", 100_000])
def test_numbers_of_streams_that_can_not_be(root: Path, count: object) -> None:
    with pytest.raises(SettingError, match="num_streams="):
        list(StreamingLeRobotDataset(root=root, num_streams=count))
