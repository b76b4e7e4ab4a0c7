"""`robostream summarize`: a folder of results as a table, a CSV and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from robostream.bench.report import write_report
from robostream.bench.result import write_csv
from robostream.bench.summary import COLUMNS, NUMBERS, cells, find_results
from robostream.cli.common import console, print_warning, table
from robostream.errors import BenchmarkError


def summarize(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of results, at any depth.", show_default=False)],
    out_dir: Annotated[
        Path | None,
        typer.Option(
            "--out_dir", help="Where to write summary.csv and report.html; by default DIR.", show_default=False
        ),
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Of the report.")] = "Dataloading benchmark",
) -> None:
    """Compare results: a table, all figures in summary.csv, and plots in report.html, which opens offline."""
    if not folder.is_dir():
        raise BenchmarkError(f"{folder} is not a folder")
    found = find_results(folder)
    for path, why in found.passed_over:
        print_warning(f"passed over {path}: {why}")
    if not found.results:
        raise BenchmarkError(f"{folder} holds no benchmark result")
    results = [result for _, result in found.results]
    columns = COLUMNS[:-1]  # as many as fit in the width of a page
    shown = table(*columns, right=NUMBERS)
    shown.collapse_padding = True
    for column in shown.columns:
        column.no_wrap = column.header in ("source", "mode", "impl")
    for result in results:
        shown.add_row(*cells(result)[: len(columns)])
    target = console()
    target.print(shown)
    out = out_dir or folder
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "summary.csv", results)
    write_report(out / "report.html", found, title)
    target.print(f"Written: {out / 'summary.csv'} and {out / 'report.html'}", soft_wrap=True)
