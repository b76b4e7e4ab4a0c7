"""`robostream plan`: what a job of many ranks will read, hold and wait for."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from robostream import machine
from robostream.bench.ceiling import measure_ceiling
from robostream.bench.modes import Mode, delta_timestamps
from robostream.cli.common import console, facts, heading, size_text, table
from robostream.dataset import StreamingLeRobotDataset
from robostream.errors import SettingError
from robostream.forecast import OF_CEILING, Forecast, Job, Speeds, forecast

SIMULATED = (1, 8, 64, 512)
_ROWS = 16  # ranks that are shown; the JSON has all that were computed
_MEASURE_S = 2.0


def plan(
    repo_id: Annotated[str | None, typer.Option("--repo_id", help="Name of the dataset on the Hub.")] = None,
    root: Annotated[str | None, typer.Option("--root", help="Folder or URL of the dataset.")] = None,
    data_files_root: Annotated[
        str | None, typer.Option("--data_files_root", help="URL that holds the data, if elsewhere.")
    ] = None,
    world_size: Annotated[int, typer.Option("--world_size", min=1, help="Ranks of the job.")] = 8,
    ranks_per_node: Annotated[int, typer.Option("--ranks_per_node", min=1)] = 8,
    cores_per_rank: Annotated[
        int, typer.Option("--cores_per_rank", help="0: this machine's, shared out among the ranks of a node.")
    ] = 0,
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, help="Samples in a batch of each rank.")] = 64,
    num_workers: Annotated[
        int, typer.Option("--num_workers", help="DataLoader workers of each rank; 0: StreamLoader.")
    ] = 0,
    buffer_size: Annotated[int, typer.Option("--buffer_size", help="Shuffle window in frames.")] = 2000,
    num_streams: Annotated[
        int | None, typer.Option("--num_streams", help="As in the training; a multiple of ranks × workers.")
    ] = None,
    mode: Annotated[Mode, typer.Option("--mode", help="What a sample is, as in `robostream bench`.")] = Mode.single,
    network_gbps: Annotated[float, typer.Option("--network_gbps", help="Gigabits a second into a node.")] = 10.0,
    frames_per_s: Annotated[
        float,
        typer.Option("--frames_per_s", help="Camera frames a second that a core decodes; 0: measure it here."),
    ] = 0.0,
    model_samples_per_s: Annotated[
        float | None,
        typer.Option("--model_samples_per_s", help="What a rank's model takes. [default: all that comes]"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the order.")] = 42,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Forecast an epoch: shares, balance, memory, mixing, bytes per node, and waits for the network."""
    if not network_gbps > 0:
        raise SettingError(f"--network_gbps {network_gbps} must be above 0")
    dataset = StreamingLeRobotDataset(
        repo_id=repo_id,
        root=root,
        data_files_root=data_files_root,
        delta_timestamps=lambda meta: delta_timestamps(mode, meta) or {},
        return_uint8=True,
        buffer_size=buffer_size,
        num_streams=num_streams,
        seed=seed,
        rank=0,
        world_size=1,
    )
    decode = frames_per_s or measure_ceiling(dataset, 1, _MEASURE_S).frames_per_s
    if not decode:
        raise SettingError("the dataset has no videos to measure decoding with; pass --frames_per_s")
    speeds = Speeds(decode, network_gbps * 1e9 / 8, model_samples_per_s)

    def of(ranks: int) -> Forecast:
        cores = cores_per_rank or max(1, machine.cores() // min(ranks, ranks_per_node))
        return forecast(dataset.blueprint, Job(ranks, max(1, num_workers), ranks_per_node, batch_size, cores), speeds)

    asked = of(world_size)
    consumers = max(1, num_workers)
    fitting = [ranks for ranks in SIMULATED if num_streams is None or num_streams % (ranks * consumers) == 0]
    others = [asked if ranks == world_size else of(ranks) for ranks in fitting]
    if as_json:
        found: dict[str, Any] = {"frames": dataset.num_frames, "episodes": dataset.num_episodes, **asdict(speeds)}
        print(json.dumps({**found, "job": asdict(asked), "simulated": [asdict(other) for other in others]}, indent=2))
    else:
        _show(dataset, speeds, asked, others)


def _show(dataset: StreamingLeRobotDataset, speeds: Speeds, asked: Forecast, others: list[Forecast]) -> None:
    target, job = console(), asked.job
    sizes = dataset.blueprint.sizes
    rows = facts()
    rows.add_row(
        "dataset", f"{dataset.num_episodes:,} episodes, {dataset.num_frames:,} frames × {len(dataset.cameras)}"
    )
    rows.add_row(
        "job", f"{job.ranks} ranks, {job.on_a_node} on a node, {job.cores} cores each, batches of {job.batch_size}"
    )
    rows.add_row("epoch", f"{asked.steps:,} whole steps, {_time(asked.seconds)}")
    rows.add_row("clips", f"{sizes.clip_frames} frames, decoded as a unit")
    rows.add_row("a core decodes", f"{speeds.decode:,.0f} camera frames/s; {OF_CEILING:.0%} of it is reckoned with")
    rows.add_row("memory of a rank", f"at most {size_text(asked.memory)} of pictures, coded clips and rows")
    rows.add_row("throughput", f"{asked.flow.samples_per_s:,.0f} samples/s a rank, before any wait for the network")
    most = asked.balance
    rows.add_row(
        "balance", f"most / mean: frames {most.frames:.3f}, decoded {most.decoded:.3f}, bytes {most.bytes:.3f}"
    )
    heading(target, "Forecast of an epoch")
    target.print(rows)

    shares = table(
        "rank", "episodes", "clips", "frames", "decoded", "read", right=("episodes", "clips", "frames", "decoded")
    )
    for one in asked.readings[:_ROWS]:
        counts = (one.episodes, one.clips, one.frames, one.decoded)
        shares.add_row(str(one.rank), *(f"{count:,}" for count in counts), size_text(one.bytes))
    heading(target, "\nWhat each rank reads")
    target.print(shares)
    left = job.ranks - min(len(asked.readings), _ROWS)
    if left:
        target.print(f"and {left} ranks more (--json has more)")

    names = (
        "ranks",
        "nodes",
        "steps",
        "time",
        "episodes in a batch",
        "at random",
        "read by a node",
        "needs",
        "waits",
        "first",
    )
    scaling = table(*names, right=names)
    for other in others:
        scaling.add_row(*_line(other))
    heading(target, "\nAn epoch on other numbers of ranks")
    target.print(scaling)
    target.print(
        f"needs: Gbit/s into a node, of {speeds.network * 8e-9:g}; waits: share of the time spent waiting for it; "
        "first: until the first batch's clips are there",
        soft_wrap=True,
    )


def _line(other: Forecast) -> list[str]:
    job, flow = other.job, other.flow
    return [
        f"{job.ranks:,}",
        f"{-(-job.ranks // job.ranks_per_node):,}",
        f"{other.steps:,}",
        _time(other.seconds),
        f"{other.mixing.episodes:,.1f}",
        f"{other.mixing.random:,.1f}",
        size_text(other.node_bytes),
        f"{flow.node_bytes_per_s * 8e-9:.2g}",
        f"{flow.waiting:.1%}",
        f"{flow.first_s:.2g} s",
    ]


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
