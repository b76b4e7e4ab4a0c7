"""What Parquet rows may hold and how they may be written: images, lists, strings, tasks, types of other writers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cases import (
    ACTION,
    CAM0,
    CAM1,
    STATE,
    change_info,
    check_pairing,
    codes,
    data_path,
    indices,
    load,
    places,
    png,
    read_info,
    rewrite,
    set_column,
    stream,
    write,
    write_images,
)
from PIL import Image

from robostream import StreamingLeRobotDataset
from robostream.decode import decode_part
from robostream.errors import DataFileError, DecodeError, SelectionError

LENGTHS = [30, 12, 21]
LAYOUTS: dict[str, dict[str, Any]] = {
    "a row group an episode": {},
    "one row group": {"one_row_group_per_episode": False},
    "a file an episode": {"episodes_per_data_file": 1},
    "version 2": {"version": "v2.1"},
}


@pytest.fixture(scope="module", params=list(LAYOUTS))
def images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), LENGTHS, **LAYOUTS[request.param])


def declare(root: Path, **features: Any) -> None:
    """Declare features in info.json: name → (dtype, shape)."""
    declared = {key: {"dtype": dtype, "shape": list(shape)} for key, (dtype, shape) in features.items()}
    change_info(root, features=read_info(root)["features"] | declared)


def as_bytes(picture: torch.Tensor) -> torch.Tensor:
    return (picture * 255).round().to(torch.uint8)


# Images in rows --------------------------------------------------------------------------------------------------


def check_image(sample: dict[str, Any]) -> tuple[int, int]:
    """An image sample without windows is its row's, bit for bit."""
    place = int(sample["episode_index"]), int(sample["frame_index"])
    for number, camera in enumerate((CAM0, CAM1)):
        wanted = np.asarray(Image.open(io.BytesIO(png((64, 48), number, *place)))).transpose(2, 0, 1)
        assert sample[camera].dtype == torch.float32
        np.testing.assert_array_equal(sample[camera].numpy(), wanted.astype(np.float32) / 255)
    assert sample[STATE][-2:].tolist() == list(place)
    return place


@pytest.mark.parametrize("settings", [{}, {"shuffle": False}, {"buffer_size": 10, "clip_frames": 5}])
def test_images_in_rows(images: Path, settings: dict[str, Any]) -> None:
    dataset = stream(images, **settings)
    assert sorted(check_image(sample) for sample in dataset) == places(LENGTHS)
    assert [check_image(dataset[i]) for i in (0, 29, 30, 62)] == [(0, 0), (0, 29), (1, 0), (2, 20)]


def test_windows_of_images_stay_in_their_episode(images: Path) -> None:
    offsets = [-1.5, -0.1, 0.0, 2.0]
    for sample in stream(images, delta_timestamps={CAM1: offsets, ACTION: offsets}):
        episode, frame = int(sample["episode_index"]), int(sample["frame_index"])
        wanted = [frame + round(10 * offset) for offset in offsets]
        shown = [min(max(at, 0), LENGTHS[episode] - 1) for at in wanted]
        assert codes(as_bytes(sample[CAM1])) == [(1, episode, at) for at in shown]
        assert sample[ACTION][:, -1].tolist() == shown
        assert sample[f"{CAM1}_is_pad"].tolist() == [at != there for at, there in zip(wanted, shown, strict=True)]
        assert codes(as_bytes(sample[CAM0])) == [(0, episode, frame)]


def test_images_with_workers(images: Path) -> None:
    assert sorted(check_image(sample) for sample in load(stream(images), 2)) == places(LENGTHS)


def test_windows_of_numbers_decode_no_more_images(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def counting(decoder: Any, part: Any, fresh: Any, *rest: Any) -> None:
        decoded.append(len(fresh))
        decode_part(decoder, part, fresh, *rest)

    monkeypatch.setattr("robostream.pipeline.decode_part", counting)
    steps = [k / 10 for k in range(50)]
    dataset = stream(images, delta_timestamps={ACTION: steps, STATE: [-0.1, 0.0]}, memory_bytes=1 << 30)
    assert len(indices(dataset)) == sum(LENGTHS)
    dataset.close()
    assert sum(decoded) == 2 * sum(LENGTHS)
    assert dataset.metrics()["frames_decoded"] == 2 * sum(LENGTHS)


@pytest.mark.parametrize("per_episode", [True, False])
def test_without_cameras_no_image_bytes_are_read(tmp_path: Path, per_episode: bool) -> None:
    root = write_images(tmp_path, LENGTHS, size=(128, 96), one_row_group_per_episode=per_episode)
    image_bytes = len(png((128, 96), 0, 0, 0)) * sum(LENGTHS)
    dataset = stream(root, cameras=[], delta_timestamps={ACTION: [0.0, 1.0]})
    assert len(indices(dataset)) == sum(LENGTHS)
    assert 0 < dataset.metrics()["bytes_read"] < image_bytes / 10
    dataset = stream(root, cameras=[CAM0], shuffle=False)
    assert len(indices(dataset)) == sum(LENGTHS)
    assert dataset.metrics()["bytes_read"] > image_bytes


@pytest.mark.parametrize("names", [["channels", "height", "width"], ["height", "width", "channels"], None])
def test_shapes_of_images_may_be_declared_in_either_order(tmp_path: Path, names: list[str] | None) -> None:
    root = write_images(tmp_path, [5])
    first = names is not None and names[0] == "channels"
    feature = {"dtype": "image", "shape": [3, 48, 64] if first else [48, 64, 3], "names": names}
    change_info(root, features=read_info(root)["features"] | {CAM0: feature, CAM1: feature})
    assert sorted(check_image(sample) for sample in stream(root)) == places([5])


def test_a_broken_image_is_named_or_left_out(tmp_path: Path) -> None:
    root = write_images(tmp_path, [5, 4])
    cells = pq.read_table(data_path(root))[CAM1].to_pylist()
    cells[6]["bytes"] = cells[6]["bytes"][:100]
    set_column(data_path(root), CAM1, pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())])))
    with pytest.raises(DecodeError, match=rf"episode 1.*frame 1.*{CAM1}"):
        list(stream(root))
    dataset = stream(root, on_error="skip")
    assert set(places([5, 4], [0])) <= {check_image(sample) for sample in dataset} <= set(places([5, 4])) - {(1, 1)}
    dataset.close()
    assert dataset.metrics()["samples_skipped"] >= 1


def test_an_empty_image_is_named(tmp_path: Path) -> None:
    root = write_images(tmp_path, [5, 4])
    cells = pq.read_table(data_path(root))[CAM1].to_pylist()
    cells[6] = {"bytes": None, "path": "images/6.png"}
    set_column(data_path(root), CAM1, pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())])))
    with pytest.raises(DataFileError, match=rf"file-000.parquet: no image bytes in {CAM1} of episode 1, frame 1"):
        list(stream(root))


# Columns ---------------------------------------------------------------------------------------------------------


def test_ragged_columns_are_refused_with_the_way_out(tmp_path: Path) -> None:
    root = write(tmp_path, [12, 9])
    set_column(data_path(root), "points", pa.array([[0.5] * (k % 4 + 1) for k in range(21)]))
    declare(root, points=("float32", [4]))
    with pytest.raises(DataFileError, match=r"file-000.parquet: column 'points' has lists of 1 to 4 values.*features="):
        list(stream(root))
    seen = [check_pairing(sample) for sample in stream(root, features=[STATE, ACTION])]
    assert sorted(seen) == places([12, 9])


def test_lists_that_are_even_in_each_row_group_but_not_as_declared_are_refused(tmp_path: Path) -> None:
    root = write(tmp_path, [12, 9])
    table = pq.read_table(data_path(root))
    with pq.ParquetWriter(data_path(root), table.schema.append(pa.field("points", pa.list_(pa.float32())))) as writer:
        for episode, size in ((0, 4), (1, 3)):
            part = table.filter(pa.compute.equal(table["episode_index"], episode))
            writer.write_table(
                part.append_column("points", pa.array([[1.0] * size] * len(part), pa.list_(pa.float32())))
            )
    declare(root, points=("float32", [4]))
    with pytest.raises(DataFileError, match=r"points.* 3 a row.*\(4,\)"):
        list(stream(root))


@pytest.mark.parametrize("workers", [0, 2])
def test_strings(tmp_path: Path, workers: int) -> None:
    root = write(tmp_path, [12, 9])
    texts = [f"ünïcode {k}" if k % 3 else "" for k in range(21)]
    set_column(data_path(root), "note", pa.array(texts))
    declare(root, note=("string", [1]))
    for batch in load(stream(root), workers, batch_size=4):
        assert batch["note"] == [texts[index] for index in batch["index"].tolist()]
    assert stream(root)[5]["note"] == texts[5]


KINDS: dict[str, tuple[str, list[int], pa.DataType, torch.dtype]] = {
    "float64": ("float64", [1], pa.float64(), torch.float32),
    "float16": ("float16", [1], pa.float16(), torch.float32),
    "int8": ("int8", [1], pa.int8(), torch.int64),
    "uint8": ("uint8", [1], pa.uint8(), torch.int64),
    "uint32": ("uint32", [1], pa.uint32(), torch.int64),
    "list": ("float32", [2], pa.list_(pa.float32()), torch.float32),
    "large list": ("float64", [2], pa.large_list(pa.float64()), torch.float32),
    "fixed list": ("int32", [2], pa.list_(pa.int32(), 2), torch.int64),
    "list of one": ("float32", [1], pa.list_(pa.float32()), torch.float32),
    "lists of lists": ("float32", [2, 3], pa.list_(pa.list_(pa.float32())), torch.float32),
    "fixed lists of lists of lists": ("int64", [2, 1, 2], pa.list_(pa.list_(pa.list_(pa.int64())), 2), torch.int64),
}


@pytest.mark.parametrize(("dtype", "shape", "kind", "wanted"), KINDS.values(), ids=KINDS.keys())
def test_numbers_of_every_kind(
    tmp_path: Path, dtype: str, shape: list[int], kind: pa.DataType, wanted: torch.dtype
) -> None:
    root = write(tmp_path, [12, 9], cameras=0)
    values = np.arange(21 * int(np.prod(shape))).reshape(21, *shape) % 120
    nested = pa.types.is_nested(kind)
    cells = values.tolist() if nested else np.float16(values[:, 0]) if dtype == "float16" else values[:, 0].tolist()
    set_column(data_path(root), "extra", pa.array(cells, kind))
    declare(root, extra=(dtype, shape))
    windows = {"extra": [-0.1, 0.0]}
    for sample in stream(root):
        assert sample["extra"].dtype == wanted
        assert sample["extra"].tolist() == np.squeeze(values[sample["index"]], 0 if shape == [1] else ()).tolist()
    for sample in stream(root, delta_timestamps=windows):
        index = int(sample["index"])
        rows = values[[max(index - 1, 0 if index < 12 else 12), index]]
        assert sample["extra"].tolist() == (rows[:, 0] if shape == [1] else rows).tolist()


def test_booleans(tmp_path: Path) -> None:
    root = write(tmp_path, [12, 9], cameras=0)
    values = [k % 3 == 0 for k in range(21)]
    set_column(data_path(root), "next.done", pa.array(values))
    declare(root, **{"next.done": ("bool", [1])})
    for sample in stream(root):
        assert sample["next.done"].dtype == torch.bool
        assert bool(sample["next.done"]) == values[int(sample["index"])]


HUGGING_FACE: dict[str, Any] = {
    "none": None,
    "List": {"_type": "List", "feature": {"dtype": "float32", "_type": "Value"}, "length": 6},
    "Sequence": {"_type": "Sequence", "feature": {"dtype": "float32", "_type": "Value"}, "length": -1},
    "unknown": {"_type": "OfTheFuture"},
}


@pytest.mark.parametrize("feature", HUGGING_FACE.values(), ids=HUGGING_FACE.keys())
def test_the_feature_metadata_of_hugging_face_does_not_matter(tmp_path: Path, feature: Any) -> None:
    root = write(tmp_path, [12, 9])
    table = pq.read_table(data_path(root)).replace_schema_metadata(None)
    if feature is not None:
        text = json.dumps({"info": {"features": {STATE: feature}}})
        table = table.replace_schema_metadata({"huggingface": text})
    pq.write_table(table, data_path(root))
    assert sorted(check_pairing(sample) for sample in stream(root)) == places([12, 9])


# Tasks -----------------------------------------------------------------------------------------------------------

TEXTS = ["a", "b", "c"]
TASK_TABLES: dict[str, pd.DataFrame] = {
    "index named task": pd.DataFrame({"task_index": [2, 0, 1]}, index=pd.Index(["c", "a", "b"], name="task")),
    "index without a name": pd.DataFrame({"task_index": [1, 2, 0]}, index=["b", "c", "a"]),
    "plain column": pd.DataFrame({"task": ["c", "b", "a"], "task_index": [2, 1, 0]}),
    "more than there are": pd.DataFrame({"task_index": [9, 1, 2, 0]}, index=["z", "b", "c", "a"]),
}


def check_tasks(dataset: StreamingLeRobotDataset) -> None:
    seen = {(int(s["episode_index"]), int(s["task_index"]), s["task"]) for s in dataset}
    assert seen == {(episode, episode % 3, TEXTS[episode % 3]) for episode in range(4)}


@pytest.mark.parametrize("table", TASK_TABLES.values(), ids=TASK_TABLES.keys())
def test_tasks_are_looked_up_by_their_index(tmp_path: Path, table: pd.DataFrame) -> None:
    root = write(tmp_path, [4, 5, 6, 3])
    table.to_parquet(root / "meta/tasks.parquet")
    check_tasks(stream(root))


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_tasks_in_lines(tmp_path: Path, version: str) -> None:
    root = write(tmp_path, [4, 5, 6, 3], version=version)
    (root / "meta/tasks.parquet").unlink(missing_ok=True)
    lines = [json.dumps({"task_index": k, "task": TEXTS[k]}) for k in (2, 0, 1)]
    (root / "meta/tasks.jsonl").write_text("\n".join(lines) + "\n\n")
    check_tasks(stream(root))


def test_episodes_without_a_tasks_column(tmp_path: Path) -> None:
    root = write(tmp_path, [4, 5, 6, 3], tasks=TEXTS)
    rewrite(root / "meta/episodes/chunk-000/file-000.parquet", lambda table: table.drop_columns(["tasks"]))
    check_tasks(stream(root))


def test_a_dataset_without_tasks_has_no_task(tmp_path: Path) -> None:
    root = write(tmp_path, [4, 5])
    (root / "meta/tasks.parquet").unlink()
    for sample in stream(root):
        check_pairing(sample)
        assert "task" not in sample


def test_a_task_that_is_not_listed_is_named(tmp_path: Path) -> None:
    root = write(tmp_path, [4, 5, 6, 3])
    pd.DataFrame({"task_index": [0, 2]}, index=["a", "c"]).to_parquet(root / "meta/tasks.parquet")
    with pytest.raises(DataFileError, match=r"file-000.parquet: task_index 1 of episode 1 .*tasks"):
        list(stream(root))
    seen = [check_pairing(sample) for sample in stream(root, on_error="skip")]
    assert sorted(seen) == places([4, 5, 6, 3], [0, 2, 3])
    assert len(indices(stream(root, episodes=[0, 2]))) == 10


def test_language_columns_are_refused_with_the_way_out(tmp_path: Path) -> None:
    root = write(tmp_path, [4])
    declare(root, language_events=("language", [1]))
    with pytest.raises(SelectionError, match=r"language_events.*features="):
        stream(root)
    assert len(indices(stream(root, features=[STATE, ACTION]))) == 4
