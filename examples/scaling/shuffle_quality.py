"""Does streaming shuffle well enough to train on? The same policy, samples and steps; only the order differs.

    robostream synth shuffle-data --codec h264 --gop 30 --width 96 --height 96 --cameras 2 --episodes 44
    python examples/scaling/shuffle_quality.py --root shuffle-data

Orders: `random` draws each epoch as a map-style dataset with a RandomSampler does; `stream N` is what
StreamingLeRobotDataset yields with buffer_size N; `in order` is not shuffled at all, to show what is at stake.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from policy import ACTION, STATE, BcTask, Inputs, shrink
from rich.console import Console
from rich.table import Table

from robostream import StreamingLeRobotDataset, StreamLoader

Rows = Iterator[np.ndarray[Any, Any]]
STEPS_AHEAD = 8
HELD_OUT = 4


def open_dataset(root: str, episodes: list[int], **settings: Any) -> StreamingLeRobotDataset:
    fps = StreamingLeRobotDataset(root=root).fps
    windows = {ACTION: [step / fps for step in range(STEPS_AHEAD)]}
    return StreamingLeRobotDataset(
        root=root, episodes=episodes, delta_timestamps=windows, return_uint8=True, **settings
    )


def read_all(dataset: StreamingLeRobotDataset, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Every sample of a dataset in memory, in dataset order, with small pictures."""
    keys = [*inputs.cameras, STATE, ACTION, f"{ACTION}_is_pad", "index"]
    parts: dict[str, list[torch.Tensor]] = {key: [] for key in keys}
    with StreamLoader(dataset, 64) as loader:
        for batch in loader:
            for key in keys:
                value = batch[key]
                small = (shrink(value, BcTask.SIZE) * 255).to(torch.uint8) if value.ndim == 4 else value
                parts[key].append(small.clone())
    joined = {key: torch.cat(values) for key, values in parts.items()}
    order = torch.argsort(joined["index"])
    return {key: value[order] for key, value in joined.items()}


def random_order(rows: np.ndarray[Any, Any], seed: int) -> Rows:
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.permutation(rows)


def stream_order(root: str, episodes: list[int], seed: int, buffer_size: int, shuffle: bool = True) -> Rows:
    """The order of a real run: the dataset is streamed, and its rows are noted."""
    dataset = open_dataset(
        root, episodes, seed=seed, buffer_size=buffer_size, shuffle=shuffle, repeat=True, memory_bytes=4 << 30
    )
    with StreamLoader(dataset, 64) as loader:
        for batch in loader:
            yield from batch["index"].tolist()


def train(
    order: Rows, samples: dict[str, torch.Tensor], held_out: dict[str, torch.Tensor], task: BcTask, options: Any
) -> float:
    """The validation loss after all steps, averaged over the last few looks at it."""
    place = {int(row): number for number, row in enumerate(samples["index"])}
    optimizer = torch.optim.AdamW(task.parameters(), lr=options.lr)
    looks = []
    for step in range(1, options.steps + 1):
        chosen = torch.tensor([place[int(next(order))] for _ in range(options.batch_size)])
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(1.0, 2 * (1 - (step - 1) / options.steps))
        loss = task({key: value[chosen] for key, value in samples.items()})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step > options.steps - 3:
            with torch.no_grad():
                looks.append(float(task(held_out)))
    return float(np.mean(looks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--buffer_sizes", type=int, nargs="+", default=[1000, 250])
    options = parser.parse_args()
    known = StreamingLeRobotDataset(root=options.root).meta.episodes.index.tolist()
    training, held = known[:-HELD_OUT], known[-HELD_OUT:]
    dataset = open_dataset(options.root, training)
    inputs = Inputs.of(dataset, STEPS_AHEAD)
    samples = read_all(dataset, inputs)
    held_out = read_all(open_dataset(options.root, held), inputs)
    rows = samples["index"].numpy()
    orders: dict[str, Callable[[int], Rows]] = {"random": lambda seed: random_order(rows, seed)}
    for size in options.buffer_sizes:
        orders[f"stream {size}"] = lambda seed, size=size: stream_order(options.root, training, seed, size)
    orders["in order"] = lambda seed: stream_order(options.root, training, seed, 1000, shuffle=False)
    found: dict[str, list[float]] = {name: [] for name in orders}
    for seed in options.seeds:
        for name, order in orders.items():
            torch.manual_seed(seed)
            task = BcTask(inputs, dataset.meta.stats)
            found[name].append(train(order(seed), samples, held_out, task, options))
            print(json.dumps({"seed": seed, "order": name, "val_loss": found[name][-1]}), flush=True)
    table = Table("order", "validation loss", "against random")
    for name, losses in found.items():
        ratio = np.mean(losses) / np.mean(found["random"])
        table.add_row(name, f"{np.mean(losses):.4f} ± {np.std(losses):.4f}", f"{100 * (ratio - 1):+.1f} %")
    Console().print(f"{len(rows):,} samples, {options.steps} steps of {options.batch_size}, {len(options.seeds)} seeds")
    Console().print(table)


if __name__ == "__main__":
    main()
