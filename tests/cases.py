"""Small datasets, and a slow reader of them that shares no code with the package: what its samples are held to."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch.utils.data import DataLoader, get_worker_info

from robostream import StreamingLeRobotDataset
from robostream.synth import SynthSettings, barcode_value, draw_barcode, split_barcode, write_dataset
from robostream.synth.barcode import BITS

CAM0, CAM1 = "observation.images.cam0", "observation.images.cam1"
STATE, ACTION = "observation.state", "action"

BUSY = 3
"""Times are held to this many times what they should be at most, since a machine does other things too."""

Sample = dict[str, Any]
Pictures = npt.NDArray[np.uint8]
Windows = Mapping[str, Sequence[float]]


def write(root: Path, lengths: Sequence[int], **changes: Any) -> Path:
    """A dataset whose pictures carry (camera, episode, frame) and whose state and action carry (episode, frame)."""
    base: dict[str, Any] = {"fps": 10, "width": 64, "height": 64, "codec": "h264", "gop": 2, "coded": True}
    write_dataset(root, SynthSettings(episodes=tuple(lengths), **(base | changes)))
    return root


def read_info(root: Path) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((root / "meta/info.json").read_text())
    return info


def change_info(root: Path, **changes: Any) -> None:
    """Change fields of info.json; a None removes the field."""
    info = {key: value for key, value in (read_info(root) | changes).items() if value is not None}
    (root / "meta/info.json").write_text(json.dumps(info))


def video_path(root: Path, camera: str = CAM0, file: int = 0) -> Path:
    return root / f"videos/{camera}/chunk-000/file-{file:03d}.mp4"


def data_path(root: Path, file: int = 0) -> Path:
    return root / f"data/chunk-000/file-{file:03d}.parquet"


def decode_file(path: Path) -> Pictures:
    """All pictures of a video in the order in which they are shown, uint8 [n, C, H, W]."""
    with av.open(str(path)) as container:
        frames = [(frame.pts, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    frames.sort(key=lambda pair: pair[0] or 0)
    pictures: Pictures = np.stack([picture for _, picture in frames]).transpose(0, 3, 1, 2)
    return pictures


class Reference:
    """A dataset of whole files in memory. Sound ones only: as many pictures in each video as it has rows."""

    def __init__(self, root: Path) -> None:
        info = read_info(root)
        self.fps = float(info["fps"])
        self.cameras = [key for key, feature in info["features"].items() if feature["dtype"] == "video"]
        self.columns = [key for key, feature in info["features"].items() if feature["dtype"] != "video"]
        tables = [pq.read_table(path).to_pandas() for path in sorted(root.glob("data/*/*.parquet"))]
        rows = pd.concat(tables).sort_values("index").reset_index(drop=True)
        self.values = {key: np.stack(rows[key].to_numpy()) for key in self.columns}
        self.lengths = rows["episode_index"].value_counts().to_dict()
        self.pictures: dict[tuple[str, int], Pictures] = {}
        if info["codebase_version"] == "v3.0":
            self.tasks = pd.read_parquet(root / "meta/tasks.parquet").reset_index().set_index("task_index")["task"]
            self._cut_files(root)
        else:
            self.tasks = pd.read_json(root / "meta/tasks.jsonl", lines=True).set_index("task_index")["task"]
            for path in root.glob("videos/*/*/*.mp4"):
                self.pictures[path.parent.name, int(path.stem.split("_")[1])] = decode_file(path)

    def _cut_files(self, root: Path) -> None:
        """Each file's pictures belong to its episodes in order, one a row."""
        episodes = pd.concat([pd.read_parquet(path) for path in sorted(root.glob("meta/episodes/*/*.parquet"))])
        for camera in self.cameras:
            place = [f"videos/{camera}/{name}" for name in ("chunk_index", "file_index", "from_timestamp")]
            for (chunk, file), part in episodes.sort_values(place).groupby(place[:2]):
                pictures = decode_file(root / f"videos/{camera}/chunk-{chunk:03d}/file-{file:03d}.mp4")
                assert len(pictures) == part["length"].sum()
                starts = np.cumsum(part["length"]) - part["length"]
                for episode, start, length in zip(part["episode_index"], starts, part["length"], strict=True):
                    self.pictures[camera, episode] = pictures[start : start + length]

    def __len__(self) -> int:
        return len(self.values["index"])

    def sample(self, index: int, windows: Windows | None = None) -> dict[str, Any]:
        """Sample `index` of the dataset: arrays, and the task."""
        windows = windows or {}
        episode, frame = int(self.values["episode_index"][index]), int(self.values["frame_index"][index])
        first, last = index - frame, index - frame + self.lengths[episode] - 1
        sample: dict[str, Any] = {"task": self.tasks[self.values["task_index"][index]]}
        for key in [*self.columns, *self.cameras]:
            wanted = [index + round(offset * self.fps) for offset in windows.get(key, [0.0])]
            shown = [min(max(at, first), last) for at in wanted]
            if key in self.cameras:
                values = self.pictures[key, episode][[at - first for at in shown]]
                sample[key] = values if len(wanted) > 1 else values[0]
            else:
                values = self.values[key][shown]
                sample[key] = values if key in windows else values[0]
            if key in windows:
                sample[f"{key}_is_pad"] = np.array([at != there for at, there in zip(wanted, shown, strict=True)])
        return sample


def check_sample(sample: Sample, wanted: Mapping[str, Any]) -> None:
    """Every key, value and type equal, bit for bit."""
    assert set(sample) == set(wanted)
    for key, value in wanted.items():
        if isinstance(value, str):
            assert sample[key] == value, key
            continue
        assert isinstance(sample[key], torch.Tensor), key
        found = sample[key].numpy()
        assert (found.dtype, found.shape) == (value.dtype, value.shape), key
        np.testing.assert_array_equal(found, value, err_msg=f"{key} of sample {int(sample['index'])}")


def check_all(samples: Iterable[Sample], reference: Reference, windows: Windows | None = None) -> list[int]:
    """Hold samples to the reference; returns their indices in the order in which they came."""
    seen = []
    for sample in samples:
        seen.append(int(sample["index"]))
        check_sample(sample, reference.sample(seen[-1], windows))
    return seen


def codes(pictures: torch.Tensor) -> list[tuple[int, int, int]]:
    """(camera, episode, frame) as read from the barcodes of uint8 [C, H, W] or [T, C, H, W] pictures."""
    stack = pictures.numpy().reshape(-1, *pictures.shape[-3:])
    block = stack.shape[3] // BITS
    light = stack[:, :, 4:12, : BITS * block].mean(axis=(1, 2), dtype=np.float32)
    values = (light.reshape(-1, BITS, block).mean(axis=2) > 127) @ (1 << np.arange(BITS))
    return [split_barcode(value) for value in values.tolist()]


def check_pairing(sample: Sample, cameras: Sequence[str] = (CAM0, CAM1)) -> tuple[int, int]:
    """The pictures, the state and the action of a sample without windows are its row's; returns (episode, frame)."""
    place = (int(sample["episode_index"]), int(sample["frame_index"]))
    for number, camera in enumerate(cameras):
        assert codes(sample[camera]) == [(number, *place)], camera
    assert tuple(sample[STATE][-2:].int().tolist()) == place
    assert tuple(sample[ACTION][-2:].int().tolist()) == place
    return place


def places(lengths: Sequence[int], episodes: Iterable[int] | None = None) -> list[tuple[int, int]]:
    """(episode, frame) of every row of the episodes, in dataset order."""
    chosen = range(len(lengths)) if episodes is None else sorted(episodes)
    return [(episode, frame) for episode in chosen for frame in range(lengths[episode])]


def stream(root: Path, **settings: Any) -> StreamingLeRobotDataset:
    """The dataset at `root`, with uint8 pictures and two decoding threads unless said otherwise."""
    return StreamingLeRobotDataset(root=root, **({"return_uint8": True, "num_threads": 2} | settings))


def indices(samples: Iterable[Sample]) -> list[int]:
    """The dataset indices of samples or batches, in the order in which they come."""
    return [index for sample in samples for index in sample["index"].reshape(-1).tolist()]


class WorkerStamp:
    """In place of each picture, the number of the DataLoader worker that made it; −1 outside of workers."""

    def __call__(self, picture: torch.Tensor) -> torch.Tensor:
        worker = get_worker_info()
        return torch.tensor(-1 if worker is None else worker.id)


def load(dataset: StreamingLeRobotDataset, workers: int, **settings: Any) -> DataLoader[Sample]:
    """The dataset in a DataLoader: single samples, forked workers, unless said otherwise."""
    base: dict[str, Any] = {"batch_size": None, "num_workers": workers}
    if workers:
        base["multiprocessing_context"] = "fork"
    return DataLoader(dataset, **(base | settings))


def write_images(root: Path, lengths: Sequence[int], *, size: tuple[int, int] = (64, 48), **changes: Any) -> Path:
    """A dataset whose two cameras are PNG images in the Parquet rows; pictures carry codes as those of videos do."""
    write(root, lengths, cameras=0, **changes)
    width, height = size
    info = read_info(root)
    feature = {"dtype": "image", "shape": [height, width, 3], "names": ["height", "width", "channels"]}
    change_info(root, features={CAM0: feature, CAM1: feature} | info["features"])
    for path in root.glob("data/*/*.parquet"):
        groups = pq.ParquetFile(path)
        tables = []
        for number in range(groups.num_row_groups):
            table = groups.read_row_group(number).replace_schema_metadata(None)
            rows = list(zip(table["episode_index"].to_pylist(), table["frame_index"].to_pylist(), strict=True))
            for camera, key in enumerate((CAM0, CAM1)):
                images = [{"bytes": png(size, camera, *row), "path": None} for row in rows]
                kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
                table = table.append_column(key, pa.array(images, kind))
            tables.append(table)
        with pq.ParquetWriter(path, tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)
    return root


def png(size: tuple[int, int], camera: int, episode: int, frame: int) -> bytes:
    """A PNG of noise, with its code."""
    pixels = np.random.default_rng([camera, episode, frame]).integers(0, 256, (size[1], size[0], 3), np.uint8)
    draw_barcode(pixels, barcode_value(camera, episode, frame))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace a Parquet file by `change` of its table, in one row group and without Hugging Face's metadata."""
    pq.write_table(change(pq.read_table(path)).replace_schema_metadata(None), path)


def set_column(path: Path, name: str, values: pa.Array) -> None:
    """Replace a column of a Parquet file, or add it."""

    def change(table: pa.Table) -> pa.Table:
        if name in table.schema.names:
            return table.set_column(table.schema.get_field_index(name), name, values)
        return table.append_column(name, values)

    rewrite(path, change)
