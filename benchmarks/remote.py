"""Throughput of a remote dataset against the same one on local disk: a server behind a round trip and a bandwidth.

python benchmarks/remote.py [DATASET] [--kind http|s3|hub|bucket] [--rtt-ms 50] [--gbit 1]

The servers are those of the tests, each in a process of its own on this machine, so their work is part of the load:
a real server leaves more to the reader.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from servers.process import ServerProcess
from servers.s3 import S3Server

_RUN = """
import json, sys, time
from robostream import StreamingLeRobotDataset, StreamLoader
place, settings, samples = json.loads(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
begin = time.perf_counter()
dataset = StreamingLeRobotDataset(**place, **settings, return_uint8=True, repeat=True)
opened = time.perf_counter() - begin
with StreamLoader(dataset, 64) as loader:
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - begin
    done, warm = 64, samples // 5
    while done < warm:
        next(batches)
        done += 64
    start, steady = time.perf_counter(), 0
    while steady < samples:
        next(batches)
        steady += 64
    rate = steady / (time.perf_counter() - start)
    metrics = dataset.metrics()
print(json.dumps({"opened": opened, "first": first, "rate": rate, "samples": done + steady, **metrics}))
"""


def run(place: dict[str, Any], settings: dict[str, Any], samples: int, environment: dict[str, str]) -> dict[str, float]:
    """One run in a process of its own."""
    command = [sys.executable, "-c", _RUN, json.dumps(place), json.dumps(settings), str(samples)]
    done = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def serve(
    stack: contextlib.ExitStack, kind: str, root: Path, way: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Puts the dataset on a server behind a proxy; the arguments that open it from there, and the environment."""

    def proxy(target: str, name: str = "127.0.0.1") -> str:
        url: str = stack.enter_context(ServerProcess("proxy", target=target, name=name, **way)).url
        return url

    if kind == "http":
        return {"root": proxy(stack.enter_context(ServerProcess("files", folder=str(root))).url)}, {}
    if kind == "s3":
        store = S3Server()
        stack.callback(store.close)
        options = {**store.options, "endpoint_url": proxy(store.url)}
        return {"root": store.upload(root, "benchmark"), "storage_options": options}, {}
    hub = stack.enter_context(ServerProcess("hub"))
    hub.set(cdn_url=proxy(hub.cdn_url, "localhost"))
    environment = {"HF_ENDPOINT": proxy(hub.url), "HF_HOME": stack.enter_context(tempfile.TemporaryDirectory())}
    environment["HF_HUB_DISABLE_TELEMETRY"] = environment["HF_HUB_DISABLE_XET"] = "1"
    if kind == "hub":
        hub.push("benchmark/dataset", str(root))
        return {"repo_id": "benchmark/dataset"}, environment
    hub.put_bucket("benchmark/bucket", str(root))
    return {"repo_id": "benchmark/bucket", "repo_type": "bucket"}, environment


def make(folder: str) -> Path:
    """Three cameras of 256×256, AV1 with a keyframe every 2 frames, in files of ten episodes."""
    from robostream.synth import SynthSettings, write_dataset

    root = Path(folder, "dataset")
    write_dataset(root, SynthSettings(episodes=(150,) * 40, cameras=3, width=256, height=256))
    return root


def main(
    dataset: Annotated[Path | None, typer.Argument(help="A local dataset; by default one is made.")] = None,
    kind: Annotated[str, typer.Option(help="http, s3, hub or bucket.")] = "http",
    rtt_ms: Annotated[float, typer.Option(help="Round trip in ms.")] = 50.0,
    gbit: Annotated[float, typer.Option(help="Bandwidth in Gbit/s, shared by all connections.")] = 1.0,
    samples: Annotated[int, typer.Option(help="Samples of each run, after a fifth as many to warm up.")] = 6000,
    runs: Annotated[int, typer.Option(help="Runs of each kind, in turn; the table has their medians.")] = 3,
    buffer_size: Annotated[int, typer.Option(help="Shuffle window in frames.")] = 2000,
    slow_start: Annotated[bool, typer.Option(help="New connections begin slowly, as TCP's do.")] = True,
) -> None:
    """Local and remote runs in turn; each remote run but the first finds the index in the cache."""
    way = {"rtt": rtt_ms / 1e3, "bandwidth": gbit * 1e9 / 8, "slow_start": slow_start}
    with contextlib.ExitStack() as stack:
        root = dataset or make(stack.enter_context(tempfile.TemporaryDirectory()))
        place, environment = serve(stack, kind, root.absolute(), way)
        environment["ROBOSTREAM_CACHE"] = stack.enter_context(tempfile.TemporaryDirectory())
        settings = {"buffer_size": buffer_size}
        cold = run(place, settings, 64, environment)
        local, remote = [], []
        for _ in range(runs):
            local.append(run({"root": str(root)}, settings, samples, environment))
            remote.append(run(place, settings, samples, environment))
    report(kind, cold, local, remote)


def report(kind: str, cold: dict[str, float], local: list[dict[str, float]], remote: list[dict[str, float]]) -> None:
    def middle(found: list[dict[str, float]], name: str) -> float:
        return statistics.median(result[name] for result in found)

    table = Table("", "local", kind)
    table.add_row("samples/s", *(f"{middle(found, 'rate'):,.0f}" for found in (local, remote)))
    table.add_row("of local", "", f"{middle(remote, 'rate') / middle(local, 'rate'):.1%}")
    table.add_row("first batch, nothing cached", "", f"{cold['first']:.2f} s (opened in {cold['opened']:.2f} s)")
    table.add_row("first batch, index cached", *(f"{middle(found, 'first'):.2f} s" for found in (local, remote)))
    table.add_row("bytes read ÷ needed", "", f"{middle(remote, 'bytes_read') / middle(remote, 'bytes_needed'):.3f}")
    each = [1000 * result["requests"] / result["samples"] for result in remote]
    table.add_row("requests per 1,000 samples", "", f"{statistics.median(each):.1f}")
    mean = [1e3 * result["first_byte_s"] / result["requests"] for result in remote]
    table.add_row("time to first byte", "", f"{statistics.median(mean):.0f} ms")
    table.add_row("retries", "", f"{middle([{'retries': 0} | result for result in remote], 'retries'):.0f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
