"""What a benchmark is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch

from robostream import machine
from robostream.bench.modes import Mode
from robostream.errors import SettingError


class Impl(str, Enum):
    """robostream; lerobot: its `StreamingLeRobotDataset`. lerobot-map: its `LeRobotDataset`, shuffled."""

    robostream = "robostream"
    lerobot = "lerobot"
    lerobot_map = "lerobot-map"


class LoaderKind(str, Enum):
    """stream: `StreamLoader`, with threads. torch: a `DataLoader`, with worker processes."""

    stream = "stream"
    torch = "torch"


class DecodeDevice(str, Enum):
    """Where videos are decoded."""

    cpu = "cpu"
    cuda = "cuda"


@dataclass(frozen=True)
class Options:
    """The flags of `robostream bench`; see its help. threads=0: one for each core, shared out among workers.

    max_seconds, ceiling_seconds: 0 for no limit and for no ceiling.
    """

    repo_id: str | None = None
    root: str | Path | None = None
    data_files_root: str | None = None
    mode: Mode = Mode.single
    source: str = "local"
    batch_size: int = 64
    num_workers: int = 8
    buffer_size: int = 2000
    video_decoder_cache_size: int | None = None
    video_decode_device: DecodeDevice = DecodeDevice.cpu
    num_batches: int = 200
    warmup_batches: int = 5
    device: str = "cpu"
    impl: Impl = Impl.robostream
    loader: LoaderKind = LoaderKind.stream
    threads: int = 0
    memory_bytes: int = 0
    video_backend: str = "pyav"
    return_uint8: bool = True
    max_seconds: float = 0.0
    ceiling_seconds: float = 5.0
    check_rows: bool = False

    def __post_init__(self) -> None:
        if self.num_batches < 1:
            raise SettingError(f"num_batches={self.num_batches}: nothing would be measured; ask for at least 1")
        if self.batch_size < 1:
            raise SettingError(f"batch_size={self.batch_size} must be at least 1")
        for name in ("num_workers", "warmup_batches", "threads", "memory_bytes", "max_seconds", "ceiling_seconds"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name}={getattr(self, name)} must not be negative")
        try:
            kind = torch.device(self.device).type
        except RuntimeError:
            raise SettingError(f"device={self.device!r} is none that PyTorch knows: cpu, cuda, cuda:1, …") from None
        if kind == "cuda" and not torch.cuda.is_available():
            raise SettingError(f"device={self.device!r}: PyTorch finds no GPU here")

    @property
    def uses_workers(self) -> bool:
        """Whether a `DataLoader` makes the batches; lerobot has nothing else."""
        return self.loader is LoaderKind.torch or self.impl is not Impl.robostream

    @property
    def worker_processes(self) -> int:
        return self.num_workers if self.uses_workers else 0

    @property
    def consumers(self) -> int:
        """Processes that each run a pipeline."""
        return max(1, self.worker_processes)

    @property
    def decode_threads(self) -> int:
        """Decoding threads of each consumer of robostream."""
        return self.threads or max(1, machine.cores() // self.consumers)
