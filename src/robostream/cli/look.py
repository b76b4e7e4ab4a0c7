"""What `demo` and `peek` show of a dataset: the windows they ask for, a sample's schema, a contact sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from robostream.cli.common import table
from robostream.contact_sheet import contact_sheet
from robostream.dataset import StreamingLeRobotDataset
from robostream.errors import SettingError
from robostream.metadata import Feature

CAMERA_STEPS = (-4, -2, 0)
_SHOWN = 4  # numbers that are written out; more are given as a range
_TEXT = 40  # letters of a text that are shown
_PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def open_dataset(root: Path, window: int, **options: Any) -> StreamingLeRobotDataset:
    """A dataset with example windows of `window` steps and uint8 pictures. options: of `StreamingLeRobotDataset`."""
    return StreamingLeRobotDataset(
        root=root,
        return_uint8=True,
        delta_timestamps=lambda meta: example_windows(meta.features, float(meta.info.fps), window),
        **options,
    )


def example_windows(features: Mapping[str, Feature], fps: float, steps: int) -> dict[str, list[float]]:
    """A window of each kind, in seconds: the state's past, the action's future, and the first camera's past."""
    windows: dict[str, Sequence[int]] = {}
    for key, feature in features.items():
        if feature.is_camera and not any(k for k in windows if features[k].is_camera):
            windows[key] = CAMERA_STEPS
        elif feature.dtype.startswith("float") and len(feature.shape) == 1:
            if key == "observation.state":
                windows[key] = range(1 - steps, 1)
            elif key == "action" or key.startswith("action."):
                windows[key] = range(steps)
    return {key: [step / fps for step in found] for key, found in windows.items()}


def schema_table(sample: Mapping[str, Any]) -> Table:
    """Key, shape, type and values of everything in a sample."""
    rows = table("key", "shape", "dtype", "values")
    for key, value in sample.items():
        if isinstance(value, torch.Tensor):
            shape = " × ".join(map(str, value.shape)) or "scalar"
            rows.add_row(key, shape, str(value.dtype).removeprefix("torch."), _values(value))
        else:
            text = str(value)
            rows.add_row(key, "", type(value).__name__, text if len(text) <= _TEXT else text[:_TEXT] + "…")
    return rows


def _values(value: torch.Tensor) -> str:
    if value.numel() == 0:
        return ""
    if value.dtype == torch.bool:
        return f"{int(value.sum())} of {value.numel()} true" if value.numel() > 1 else str(bool(value))
    if value.numel() <= _SHOWN:
        return ", ".join(f"{number:.6g}" for number in value.reshape(-1).tolist())
    return f"{value.min().item():.4g} … {value.max().item():.4g}"


def check_sheet(path: Path) -> None:
    """Raise SettingError if a contact sheet can't be written under this name."""
    if path.suffix.lower() not in _PICTURES:
        raise SettingError(f"{path}: the contact sheet is a picture; end its name in {', '.join(_PICTURES)}")


def write_sheet(
    dataset: StreamingLeRobotDataset, samples: Sequence[Mapping[str, Any]], path: Path, title: str
) -> tuple[int, int]:
    """Write a contact sheet of samples; returns its size in pixels."""
    windows = {key: window.offsets.tolist() for key, window in dataset.blueprint.windows.items()}
    cameras = dataset.meta.camera_keys
    curves = [key for key in windows if key not in cameras]
    sheet = contact_sheet(samples, cameras, windows=windows, curves=curves, title=title)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    return sheet.size
