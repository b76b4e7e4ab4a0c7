"""The loaders that a benchmark measures, behind one face: something that gives batches without an end."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from robostream.assemble import Batch
from robostream.bench.modes import Mode, delta_timestamps
from robostream.bench.options import DecodeDevice, Impl, Options
from robostream.dataset import StreamingLeRobotDataset
from robostream.errors import BenchmarkError, RobostreamError
from robostream.loader import StreamLoader

HOW_TO_GET_LEROBOT = (
    "lerobot is not installed in this Python; benchmarks/streaming/setup_lerobot.sh FOLDER makes an environment that "
    "has it, whose FOLDER/bin/python runs this benchmark, or is the --peer_python of `robostream compare`"
)


def open_dataset(options: Options, **settings: Any) -> StreamingLeRobotDataset:
    """robostream's dataset for these options; it also describes what the other implementations read."""
    return StreamingLeRobotDataset(
        options.repo_id,
        options.root,
        delta_timestamps=partial(delta_timestamps, options.mode),
        buffer_size=options.buffer_size,
        return_uint8=options.return_uint8,
        video_decoder_cache_size=options.video_decoder_cache_size,
        data_files_root=options.data_files_root,
        video_decode_device=options.video_decode_device.value,
        memory_bytes=options.memory_bytes or None,
        num_threads=options.decode_threads,
        **{"repeat": True, "video_backend": options.video_backend, **settings},
    )


def batches(options: Options, dataset: StreamingLeRobotDataset) -> Iterator[Batch]:
    """Batches on the device, all of the same size, epoch after epoch. Close it to end threads and processes.

    Raises BenchmarkError if another implementation fails, or an epoch has no whole batch.
    """
    if options.impl is Impl.robostream:
        return _stream(options, dataset) if not options.uses_workers else _torch(options, lambda: dataset)
    return _guarded(options, _torch(options, partial(_lerobot, options, dataset)))


def _stream(options: Options, dataset: StreamingLeRobotDataset) -> Iterator[Batch]:
    with StreamLoader(dataset, options.batch_size, drop_last=True, device=options.device) as loader:
        while True:
            yield from loader


def _torch(options: Options, make: Callable[[], Any]) -> Iterator[Batch]:
    """Batches of a DataLoader of what `make` opens."""
    on_gpu = torch.device(options.device).type == "cuda"
    decodes_there = options.video_decode_device is DecodeDevice.cuda
    loader = DataLoader(
        dataset := make(),
        options.batch_size,
        shuffle=True if options.impl is Impl.lerobot_map else None,
        num_workers=options.num_workers,
        drop_last=True,
        pin_memory=on_gpu and not decodes_there,
        # A process that was forked can't use CUDA.
        multiprocessing_context="spawn" if decodes_there and options.num_workers else None,
    )
    try:
        while True:
            count = 0
            for batch in loader:
                yield _moved(batch, options.device, on_gpu)
                count += 1
            if not count:
                raise BenchmarkError(f"an epoch has no whole batch of {options.batch_size} samples")
    finally:
        if isinstance(dataset, StreamingLeRobotDataset):
            dataset.close()


def _moved(batch: Batch, device: str, on_gpu: bool) -> Batch:
    moved = {k: v.to(device, non_blocking=True) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    if on_gpu:
        torch.cuda.current_stream(device).synchronize()  # only then is it there
    return moved


def _lerobot(options: Options, described: StreamingLeRobotDataset) -> Any:
    """lerobot's dataset for these options. Raises BenchmarkError if lerobot is not installed."""
    name = "streaming_dataset" if options.impl is Impl.lerobot else "lerobot_dataset"
    try:
        module = importlib.import_module(f"lerobot.datasets.{name}")
    except ImportError as error:
        raise BenchmarkError(f"{HOW_TO_GET_LEROBOT} ({error})") from error
    repo_id = options.repo_id or f"local/{described.meta.repo_id or 'dataset'}"
    settings = {
        "root": options.root,
        "delta_timestamps": delta_timestamps(options.mode, described.meta),
        "return_uint8": options.return_uint8,
    }
    if options.impl is Impl.lerobot:
        return module.StreamingLeRobotDataset(repo_id, buffer_size=options.buffer_size, **settings)
    return module.LeRobotDataset(repo_id, **settings)


def _guarded(options: Options, inner: Iterator[Batch]) -> Iterator[Batch]:
    """The same batches; what another implementation raises becomes one line."""
    try:
        yield from inner
    except RobostreamError:
        raise
    except Exception as error:
        raise BenchmarkError(f"{options.impl.value} failed: {_last_line(error)}") from error


def _last_line(error: Exception) -> str:
    """What an error of another implementation says; one from a worker process ends with what it was there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said, kind = lines[-1] if lines else "", type(error).__name__
    return said if said.startswith(kind) else f"{kind}: {said}"


def delivered_rows(options: Options) -> tuple[int, int] | None:
    """(rows that an epoch must deliver, different rows that it does), counted without decoding any picture.

    None for lerobot's map-style class: its sampler asks for each row by number.
    """
    if options.impl is Impl.lerobot_map:
        return None
    options = replace(options, mode=Mode.single)
    with closing(open_dataset(options, cameras=[], repeat=False)) as dataset:
        expected = len(dataset)
        rows = np.concatenate([batch["index"].numpy().copy() for batch in _whole_epoch(options, dataset)])
    return expected, len(np.unique(rows))


def _whole_epoch(options: Options, dataset: StreamingLeRobotDataset) -> Iterable[Batch]:
    """The batches of one epoch, the short last ones, too."""
    if not options.uses_workers:
        return StreamLoader(dataset, options.batch_size)
    source: Any = dataset
    if options.impl is Impl.lerobot:
        source = _lerobot(options, dataset)
        source._query_videos = _no_pictures
    return DataLoader(source, options.batch_size, num_workers=options.num_workers)


def _no_pictures(*_: Any) -> dict[str, Any]:
    return {}
