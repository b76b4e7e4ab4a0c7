"""Checkpoints of a whole job in one folder each, written so that a crash at any moment leaves the last whole one.

A checkpoint `OUTPUT/checkpoints/step-0000200` holds

- `model.safetensors`, `optimizer.pt`: weights (with their normalisation) and the optimiser's state;
- `data.json`: where the data of the job stands, merged over all ranks; any number of ranks can go on from it;
- `rng.pt`: the random states of each rank; `job.json`: the step, and the settings of the run.

`OUTPUT/checkpoints/last` names the newest one. Only the main process writes; all nodes must see the folder to resume.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from safetensors.torch import load_model, save_model
from torch import nn

LAST = "last"


@dataclass(frozen=True)
class Job:
    """What is saved besides the data's position. settings: of the run, for people to read."""

    accelerator: Accelerator
    model: nn.Module
    optimizer: torch.optim.Optimizer
    settings: Mapping[str, Any]


def save(folder: Path, step: int, job: Job, data: Mapping[str, Any]) -> None:
    """Write a checkpoint into `folder` and make it the last one. To be called by all ranks.

    data: the position of the whole job's data, from `merge_states`.
    """
    rng = gather_object([_rng_state()])
    if job.accelerator.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".writing-*"):  # of a run that was killed while it wrote
            shutil.rmtree(left)
        name = f"step-{step:07d}"
        new = folder / f".writing-{name}"
        new.mkdir()
        save_model(job.accelerator.unwrap_model(job.model), str(new / "model.safetensors"))
        torch.save(job.optimizer.state_dict(), new / "optimizer.pt")
        torch.save(rng, new / "rng.pt")
        (new / "data.json").write_text(json.dumps(dict(data)))
        (new / "job.json").write_text(json.dumps({"step": step, "settings": dict(job.settings)}, indent=2))
        for path in new.iterdir():
            _sync(path)
        shutil.rmtree(folder / name, ignore_errors=True)
        os.replace(new, folder / name)
        _sync(folder)
        replace_text(folder / LAST, name)
    job.accelerator.wait_for_everyone()


def find(resume_from: str | None, output: Path) -> Path | None:
    """The checkpoint that `--resume_from` means, or None to begin anew.

    "auto": the last one of this run's own folder, if there is one. Else a checkpoint, or the folder of a run.
    Raises SystemExit if there is none where one was named.
    """
    if resume_from is None:
        return None
    start = output if resume_from == "auto" else Path(resume_from)
    if (start / "job.json").is_file():
        return start
    pointer = start / "checkpoints" / LAST
    if pointer.is_file():
        return pointer.parent / pointer.read_text().strip()
    if resume_from == "auto":
        return None
    raise SystemExit(f"--resume_from {resume_from}: neither a checkpoint nor the folder of a run that has one")


def load(checkpoint: Path, job: Job, seed: int) -> tuple[int, dict[str, Any]]:
    """Fill model, optimiser and random states; returns the step and the data's position.

    On another number of ranks there is no random state for each: they are seeded anew by step and rank.
    """
    load_model(job.accelerator.unwrap_model(job.model), str(checkpoint / "model.safetensors"))
    job.optimizer.load_state_dict(torch.load(checkpoint / "optimizer.pt", map_location="cpu", weights_only=True))
    step = int(json.loads((checkpoint / "job.json").read_text())["step"])
    states = torch.load(checkpoint / "rng.pt", weights_only=True)
    rank, world = job.accelerator.process_index, job.accelerator.num_processes
    if len(states) == world:
        _set_rng_state(states[rank])
    else:
        set_seed(seed + 7919 * step + rank)
    data: dict[str, Any] = json.loads((checkpoint / "data.json").read_text())
    return step, data


def replace_text(path: Path, text: str) -> None:
    """Replace a small file in one go."""
    new = path.with_name(f".writing-{path.name}.txt")
    new.write_text(text)
    _sync(new)
    os.replace(new, path)


def _sync(path: Path) -> None:
    """See that a file or folder has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rng_state() -> dict[str, Any]:
    name, keys, *rest = np.random.get_state()  # noqa: NPY002 - the global one is what libraries use
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _set_rng_state(state: Mapping[str, Any]) -> None:
    version, values, gauss = state["python"]
    random.setstate((version, tuple(values), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
