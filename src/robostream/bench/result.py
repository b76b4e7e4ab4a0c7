"""The result of a benchmark: one definition of its fields, for JSON, CSV, the schema and the report."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.json_schema import GenerateJsonSchema

QUANTILES = (0, 1, 5, *range(10, 91, 10), 95, 99, 100)
"""Percent of the samples at which the latency distribution is kept."""


class Model(BaseModel):
    """Fields are described for the schema; unknown ones of newer versions are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, allow_inf_nan=False)


class CacheCounters(Model):
    """The pool of decoded pictures, which takes the place of a cache of decoders, over all workers."""

    hits: int = Field(ge=0)
    """Pictures of samples that were shown without being decoded again: they were in the pool."""
    misses: int = Field(ge=0)
    """Pictures that had to be decoded."""
    evictions: int = Field(ge=0)
    """Pictures that `memory_bytes` kept for the next epoch and that had to go before it; others leave once used."""
    hit_rate: float = Field(ge=0, le=1)
    """hits / (hits + misses); 0 if nothing was asked for."""
    size: int = Field(ge=0)
    """Pictures that the pool has room for, over all cameras."""


class BenchmarkResult(Model):
    """One run of `robostream bench`. Times are wall clock, in the process that consumes; counters are over all workers.

    Everything but `first_batch_latency_s`, `open_s` and memory is of the measured window: after the warm-up.
    """

    schema_version: Literal[1] = 1
    created: str
    """When the run ended; ISO 8601, UTC."""
    host: str
    """Name of the machine."""

    impl: Literal["robostream", "lerobot", "lerobot-map"]
    """What was measured: robostream, lerobot's streaming class, or its map-style class with a shuffling sampler."""
    loader: Literal["stream", "torch"]
    """`stream`: robostream's `StreamLoader`, with threads. `torch`: a `DataLoader`, with worker processes."""
    repo_id: str
    """Name of the dataset; of a local one without `--repo_id`, its folder's name."""
    source: str
    """The label given."""
    mode: Literal["single", "sarm", "sarm_images"]
    batch_size: int = Field(ge=1)
    num_workers: int = Field(ge=0)
    """Worker processes of the `DataLoader`, as given; `loader: stream` has none."""
    threads: int = Field(ge=0)
    """Decoding threads of each consumer (process or worker) of robostream; 0 for lerobot."""
    buffer_size: int = Field(ge=1)
    """Shuffle window, in frames."""
    memory_bytes: int | None = None
    """Memory in which decoded pictures are kept for the next epoch."""
    num_cameras: int = Field(ge=0)
    fps: float = Field(gt=0)
    """Of the dataset."""
    dataset_frames: int = Field(ge=0)
    dataset_episodes: int = Field(ge=0)
    video: str
    """Codec, picture size and keyframe spacing of the first camera's first file; "" if there is no video."""
    device: str
    """Where batches went."""
    video_decode_device: str
    video_backend: str
    return_uint8: bool
    """Whether pictures came as uint8; else as float32."""
    rank: int = Field(ge=0)
    world_size: int = Field(ge=1)
    processes_per_node: int = Field(ge=1)

    frames_measured: int = Field(ge=1)
    """Samples in the measured window; a sample is a frame of the dataset, with all its cameras."""
    batches_measured: int = Field(ge=1)
    batches_before: int = Field(ge=0)
    """Batches that were taken before the measured window: the first, the warm-up, and two fillings of the window."""
    wallclock_s: float = Field(gt=0)
    """Length of the measured window."""
    open_s: float = Field(ge=0)
    """From nothing to an opened dataset."""
    first_batch_latency_s: float = Field(ge=0)
    """From asking the opened dataset for its first batch to having it on the device."""
    samples_per_s: float = Field(gt=0)
    """frames_measured / wallclock_s, of this process."""
    frames_per_s_node: float = Field(gt=0)
    """samples_per_s × processes_per_node."""
    p50_sample_latency_ms: float = Field(ge=0)
    """From one batch on the device to the next, divided by the samples of a batch: the median over the batches."""
    p95_sample_latency_ms: float = Field(ge=0)
    p99_sample_latency_ms: float = Field(ge=0)
    latency_quantiles_ms: dict[str, float]
    """The same at more percents of the batches."""

    camera_frames_decoded_per_s: float | None = None
    """Pictures decoded in a second; not known of lerobot."""
    camera_frames_shown_per_s: float = Field(ge=0)
    """Pictures in the samples of a second, without padding: the figure to compare window modes by."""
    padded_share: float = Field(ge=0, le=1)
    """Share of window steps that lie outside of their episode; of the cameras' windows if they have any."""
    camera_frames_per_cpu_s: float | None = None
    """Pictures decoded in a second of CPU time, which other work on the machine hardly changes; one process only."""
    ceiling_camera_frames_per_s: float | None = None
    """Bare sequential decoding of the same clips with the same number of threads, in the same run."""
    ceiling_camera_frames_per_cpu_s: float | None = None
    """The same in a second of CPU time."""
    percent_of_ceiling: float | None = None
    """100 × camera_frames_decoded_per_s / ceiling_camera_frames_per_s."""

    bytes_read: int | None = None
    """All that came from the source: pictures and rows, with indexes and gaps between ranges."""
    bytes_needed: int | None = None
    """Of these, the pictures that were decoded, and the columns of rows."""
    baseline_rss_bytes: int | None = None
    """Resident memory before the dataset was opened: Python and its libraries."""
    peak_rss_bytes: int | None = None
    """The most resident memory, summed over this process and its workers."""
    memory_bound_bytes: int | None = None
    """What robostream keeps to at most, beyond the baseline, over all workers."""
    stages: dict[str, float]
    """Seconds spent in each stage, summed over the threads that spent them."""
    stage_use: dict[str, float]
    """For each stage, the share of its threads' time that it was busy, 0 to 1."""
    bottleneck: str
    """The stage that was busiest; "" if it is not known."""
    episodes_per_batch: float = Field(ge=0)
    """Distinct episodes in a batch, on average."""
    episodes_per_batch_counts: dict[str, int]
    """How many batches held how many distinct episodes."""
    video_decoder_cache: CacheCounters
    rows_expected: int | None = None
    """Rows that an epoch of this rank must deliver; from `--check_rows`."""
    rows_delivered: int | None = None
    """Different rows that an epoch delivered; from `--check_rows`."""

    cores: int = Field(ge=1)
    """Cores that the process could use."""
    cpu_model: str
    omp_num_threads: str
    """The environment's OMP_NUM_THREADS."""
    versions: dict[str, str]

    @field_validator("latency_quantiles_ms")
    @classmethod
    def _complete(cls, quantiles: dict[str, float]) -> dict[str, float]:
        missing = [str(percent) for percent in QUANTILES if str(percent) not in quantiles]
        if missing:
            raise ValueError(f"lacks the percents {', '.join(missing)}")
        return quantiles

    @property
    def stem(self) -> str:
        """Name of the result's files, without an ending."""
        name = f"{_safe(self.source)}_{self.mode}_bs{self.batch_size}_w{self.num_workers}_{_safe(self.device)}"
        name += "" if self.impl == "robostream" else f"_{self.impl}"
        return name if self.world_size == 1 else f"{name}_rank{self.rank}of{self.world_size}"

    def write(self, folder: Path) -> Path:
        """Write the JSON and the CSV to a folder; returns the JSON's path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.stem}.json"
        path.write_text(json.dumps(self.model_dump(), indent=2) + "\n")
        write_csv(folder / f"{self.stem}.csv", [self])
        return path


def _safe(text: str) -> str:
    """Text as a part of a file's name."""
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in text)


def flat(result: BenchmarkResult) -> dict[str, Any]:
    """A result as one row: nested fields by dotted names, without the distributions."""
    row: dict[str, Any] = {}
    for key, value in result.model_dump(exclude={"latency_quantiles_ms", "episodes_per_batch_counts"}).items():
        if isinstance(value, dict):
            row |= {f"{key}.{name}": part for name, part in value.items()}
        else:
            row[key] = value
    return row


def write_csv(path: Path, results: list[BenchmarkResult]) -> None:
    """One line for each result, with the columns of all."""
    rows = [flat(result) for result in results]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def schema() -> dict[str, Any]:
    """The JSON schema of a result."""
    made = BenchmarkResult.model_json_schema(mode="serialization")
    return {"$schema": GenerateJsonSchema.schema_dialect, **made}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2, ensure_ascii=False))
