"""`robostream index`: reads the index of every video of a dataset ahead."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from robostream.cli.common import console, facts, heading, size_text
from robostream.diskcache import cache_home
from robostream.errors import SettingError
from robostream.index import STORED_PATH, IndexEntry, VideoIndex, write_stored
from robostream.metadata import DatasetMetadata, load_metadata
from robostream.source import Source, open_source

_AT_ONCE = 256  # files read ahead of the one that is written


def index(
    root: Annotated[str, typer.Argument(help="Folder or URL of the dataset: hf://datasets/OWNER/NAME, s3://…")],
    store: Annotated[
        bool, typer.Option("--store", help=f"Write {STORED_PATH} into the dataset's folder, for all who open it.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write the index to this file, to be put into the dataset by hand.")
    ] = None,
) -> None:
    """Read the index of every video ahead, into this machine's cache or one file beside the dataset."""
    source = open_source(root=root).source
    if store and source.is_remote:
        raise SettingError(f"--store writes to local folders only; pass --out FILE and upload it as {STORED_PATH}")
    if not (store or out or source.is_remote):
        raise SettingError("a local dataset needs no index; pass --store to write one for those who read it elsewhere")
    target = Path(root) / STORED_PATH if store else out
    meta = load_metadata(source)
    paths = sorted({path for placement in meta.episodes.videos.values() for path in placement.files})
    held = _build(source, paths, target)
    _print_summary(meta, paths, held, target)


def _build(source: Source, paths: list[str], target: Path | None) -> int:
    """Read all entries under a bar; returns the bytes of the index."""
    held = 0
    screen = console()
    columns = (TextColumn("indexing"), BarColumn(), MofNCompleteColumn(), TextColumn("videos"))
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, *times, console=screen, transient=True, disable=not screen.is_terminal) as progress,
        ThreadPoolExecutor(source.parallel) as pool,
    ):
        task = progress.add_task("", total=len(paths))

        def counted(entries: Iterable[IndexEntry]) -> Iterator[IndexEntry]:
            nonlocal held
            for entry in entries:
                held += len(entry.moov)
                progress.advance(task)
                yield entry

        entries = counted(_entries(VideoIndex(source), paths, pool))
        if target is None:
            for _ in entries:
                pass
        else:
            aside = target.with_name(target.name + ".tmp")
            write_stored(aside, entries)
            aside.replace(target)
    return held


def _entries(videos: VideoIndex, paths: list[str], pool: ThreadPoolExecutor) -> Iterator[IndexEntry]:
    for begin in range(0, len(paths), _AT_ONCE):
        yield from pool.map(videos.entry, itertools.islice(paths, begin, begin + _AT_ONCE))


def _print_summary(meta: DatasetMetadata, paths: list[str], held: int, target: Path | None) -> None:
    metrics = meta.source.board.snapshot()
    rows = facts()
    rows.add_row("videos", f"{len(paths):,} of {len(meta.video_keys)} cameras")
    rows.add_row("index", size_text(held))
    rows.add_row("read", f"{size_text(metrics.get('bytes_read', 0))} in {metrics.get('requests', 0):,} requests")
    rows.add_row("written to", str(target or cache_home() / "index"))
    screen = console()
    heading(screen, f"Index of {meta.source.describe('')}".rstrip("/"))
    screen.print(rows)
