"""Train a policy on a streamed LeRobot dataset, on one process or on many nodes, and go on where a run stopped.

    python examples/scaling/train_streaming_multinode.py --root demo-out/dataset --output_dir out --steps 500
    accelerate launch --num_processes 8 examples/scaling/train_streaming_multinode.py ...
    torchrun --nproc_per_node 8 examples/scaling/train_streaming_multinode.py ...

Needs `pip install robostream[train]`. With `--resume_from auto` the same command starts a run and goes on with it.
`OUTPUT_DIR/log.jsonl` has a line of figures for every `--log_freq` steps.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import checkpoint
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import set_seed
from data import Batch, job_state, open_dataset, source_of, split_episodes, training_batches
from policy import make_policy
from record import Log, Meter

from robostream import StreamingLeRobotDataset, StreamLoader
from robostream.errors import RobostreamError

CLIP = 10.0  # the longest gradient


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--repo_id", help="the dataset's name on the Hub")
    add("--root", help="a local folder of the dataset")
    add("--data_files_root", help="URL of the folder that holds the data, where it is neither of them")
    add("--output_dir", type=Path, required=True, help="folder for checkpoints and the log; shared by all nodes")
    add("--steps", type=int, default=10_000, help="steps of the optimiser")
    add("--batch_size", type=int, default=64, help="samples in a batch of each process")
    add("--num_workers", type=int, default=0, help="decoding threads (0: one a core), or worker processes")
    add("--loader", choices=("threads", "workers"), default="threads", help="StreamLoader, or PyTorch's DataLoader")
    add("--buffer_size", type=int, default=2000, help="shuffle window in frames")
    add("--num_streams", type=int, help="fix it, to a multiple of all ranks × workers, to resume on other numbers")
    add("--even", action=argparse.BooleanOptionalAction, default=True, help="ranks' epochs are equally long")
    add("--video_decoder_cache_size", type=int, help="accepted for lerobot's sake; there is no decoder to cache")
    add("--n_action_steps", type=int, default=8, help="actions that the policy predicts")
    add("--policy", choices=("bc", "act"), default="bc", help="a small one of this example, or lerobot's ACT")
    add("--lr", type=float, default=1e-3, help="learning rate, after --warmup_steps")
    add("--warmup_steps", type=int, default=20)
    add("--seed", type=int, default=42)
    add("--mixed_precision", choices=("no", "bf16"), help="as Accelerate has it; by default what it was launched with")
    add("--gradient_accumulation_steps", type=int, default=1, help="batches for one step")
    add("--save_freq", type=int, default=500, help="steps between checkpoints; there is one at the end, too")
    add("--log_freq", type=int, default=20, help="steps between lines of the log")
    add("--val_episodes", type=int, default=0, help="hold out the last so many episodes")
    add("--val_freq", type=int, default=0, help="steps between validations; 0: at the start and the end")
    add("--resume_from", help="a checkpoint, the folder of a run, or 'auto': this run's last one, if there is one")
    add("--dummy", action="store_true", help="no model: take batches as fast as they come, to see how fast that is")
    add("--log_batches", action="store_true", help="write each batch's rows and a digest, to compare runs")
    options = parser.parse_args()
    for name in ("steps", "batch_size", "n_action_steps", "gradient_accumulation_steps", "save_freq", "log_freq"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    return options


class Training:
    """One process's part of a run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.accelerator = Accelerator(
            mixed_precision=options.mixed_precision, gradient_accumulation_steps=options.gradient_accumulation_steps
        )
        self.meta = StreamingLeRobotDataset(**source_of(options)).meta
        episodes, self.held_out = split_episodes(self.meta, options.val_episodes)
        dataset, self.batches = training_batches(options, self.meta, episodes, self.accelerator.device)
        set_seed(options.seed)  # the same weights on all ranks
        model = make_policy(options.policy, dataset, options.n_action_steps)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        set_seed(options.seed + self.accelerator.process_index)
        settings = {key: str(value) for key, value in vars(options).items()}
        self.job = checkpoint.Job(self.accelerator, self.model, self.optimizer, settings)
        self.folder = options.output_dir / "checkpoints"

    def run(self) -> None:
        """Train from where the run stands to its last step."""
        options, begun = self.options, self.resume()
        log = Log(options.output_dir, self.accelerator, begun, options.log_batches)
        if begun == 0:
            self.validate(log, 0)
        meter, batches, due = Meter(self.accelerator), iter(self.batches), False
        for step in range(begun + 1, options.steps + 1):
            loss = self.step(step, batches, meter, log)
            last = step == options.steps
            if step % options.log_freq == 0 or last:
                mean = float(self.accelerator.reduce(loss, "mean"))
                log.line({"step": step, "loss": mean, **meter.figures()})
            if (options.val_freq and step % options.val_freq == 0) or last:
                self.validate(log, step)
                meter.restart()
            due = due or step % options.save_freq == 0 or last
            if due and (position := job_state(self.batches)) is not None:
                checkpoint.save(self.folder, step, self.job, position)
                due = False
                meter.restart()

    def resume(self) -> int:
        """Load the checkpoint that was asked for; returns the steps that are done."""
        found = checkpoint.find(self.options.resume_from, self.options.output_dir)
        if found is None:
            return 0
        step, position = checkpoint.load(found, self.job, self.options.seed)
        self.batches.resume(position)
        self.accelerator.print(f"going on from {found}, after step {step}")
        return step

    def step(self, step: int, batches: Iterator[Batch], meter: Meter, log: Log) -> torch.Tensor:
        """One step of the optimiser; returns this rank's mean loss, []."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.lr * min(1.0, step / max(1, self.options.warmup_steps))
        losses = []
        for _ in range(self.options.gradient_accumulation_steps):
            batch = meter.timed(batches)
            log.batch(step, batch)
            with self.accelerator.accumulate(self.model):
                loss = self.model(batch)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
                self.optimizer.step()
                self.optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    @torch.no_grad()
    def validate(self, log: Log, step: int) -> None:
        """Log the mean loss over the held-out episodes, shared out over the ranks."""
        if not self.held_out:
            return
        # Without DistributedDataParallel, as ranks may have different numbers of batches here.
        model = self.accelerator.unwrap_model(self.model).eval()
        total = torch.zeros(2, device=self.accelerator.device)
        dataset = open_dataset(self.options, self.meta, self.held_out, shuffle=False)
        with StreamLoader(dataset, self.options.batch_size, device=self.accelerator.device) as loader:
            for batch in loader:
                count = len(batch["index"])
                total += torch.stack([model(batch) * count, torch.tensor(float(count), device=total.device)])
        model.train()
        loss, samples = self.accelerator.reduce(total, "sum").tolist()
        log.line({"step": step, "val_loss": loss / samples, "val_samples": int(samples)})


def check_launch() -> None:
    """`accelerate launch --cpu --num_processes 2` starts one process, unless MPI starts it, and does not say so."""
    names = os.environ.keys()
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true" and "MASTER_ADDR" in names:
        sizes = {"WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"}
        if not sizes & names:
            raise SystemExit(
                "accelerate launch --cpu starts a single process unless it is given --mpirun_hostfile. On CPUs, use\n"
                "  ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes N ...    or\n"
                "  torchrun --nproc_per_node N ..."
            )


def drain(options: argparse.Namespace) -> None:
    """Take batches as fast as they come, without a model."""
    accelerator = Accelerator()
    meta = StreamingLeRobotDataset(**source_of(options)).meta
    episodes, _ = split_episodes(meta, options.val_episodes)
    _, batches = training_batches(options, meta, episodes, accelerator.device)
    log = Log(options.output_dir, accelerator, 0, options.log_batches)
    meter, stream = Meter(accelerator), iter(batches)
    for step in range(1, options.steps + 1):
        log.batch(step, meter.timed(stream))
        if step % options.log_freq == 0 or step == options.steps:
            log.line({"step": step, **meter.figures()})


def main() -> None:
    options = parse()
    check_launch()
    try:
        drain(options) if options.dummy else Training(options).run()
    except RobostreamError as error:
        raise SystemExit(f"error: {error}") from None
    finally:
        PartialState().destroy_process_group()


if __name__ == "__main__":
    main()
