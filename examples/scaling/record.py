"""What a run writes down: figures for each few steps, and, if asked for, which samples each batch held."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from checkpoint import replace_text


class Log:
    """`log.jsonl` of the job, written by the main process, and `batches-RANK.jsonl` of each rank.

    Lines of steps after `begun` are left over from a run that was killed, and are taken out.
    """

    def __init__(self, folder: Path, accelerator: Accelerator, begun: int, batches: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._accelerator = accelerator
        self._path = folder / "log.jsonl"
        self._batches = folder / f"batches-{accelerator.process_index}.jsonl" if batches else None
        if accelerator.is_main_process:
            _keep_until(self._path, begun)
        if self._batches is not None:
            _keep_until(self._batches, begun)

    def line(self, figures: Mapping[str, Any]) -> None:
        """Append figures, and print them."""
        if self._accelerator.is_main_process:
            _append(self._path, figures)
            shown = (
                f"{key} {value:.5g}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
            )
            print("  ".join(shown), flush=True)

    def batch(self, step: int, batch: Mapping[str, Any]) -> None:
        """Append a batch's rows, in order, and a digest of all that it holds."""
        if self._batches is not None:
            _append(self._batches, {"step": step, "rows": batch["index"].tolist(), "digest": digest(batch)})


def digest(batch: Mapping[str, Any]) -> str:
    """Equal for equal batches, bit for bit."""
    state = hashlib.blake2b(digest_size=16)
    for key, value in sorted(batch.items()):
        held = value.cpu().contiguous().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
        state.update(key.encode() + held)
    return state.hexdigest()


class Meter:
    """Frames (samples) per second of this process and of the job, and the share of time spent waiting for data."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._begun, self._frames, self._waited = time.perf_counter(), 0, 0.0

    def timed(self, batches: Iterator[dict[str, Any]]) -> dict[str, Any]:
        """The next batch."""
        asked = time.perf_counter()
        batch = next(batches)
        self._waited += time.perf_counter() - asked
        self._frames += len(batch["index"])
        return batch

    def figures(self) -> dict[str, float]:
        """Since the last call. To be called by all ranks."""
        seconds = time.perf_counter() - self._begun
        rate, waited = self._frames / seconds, self._waited / seconds
        each = torch.tensor([rate, waited], device=self._accelerator.device)
        total, waits = self._accelerator.reduce(each, "sum").tolist()
        self.restart()
        count = self._accelerator.num_processes
        return {"frames_per_s": total, "frames_per_s_process": total / count, "data_wait": waits / count}


def _append(path: Path, figures: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(dict(figures)) + "\n")


def _keep_until(path: Path, step: int) -> None:
    """Take out what is after a step; a line that was cut off in a crash goes, too."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError):
            continue
    replace_text(path, "".join(kept))
