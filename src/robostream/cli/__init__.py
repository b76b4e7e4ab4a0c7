"""The `robostream` command. Each subcommand is a module of its own; register it with one line below."""

from __future__ import annotations

import typer

from robostream.cli.bench import bench
from robostream.cli.common import CleanErrors
from robostream.cli.demo import demo
from robostream.cli.index import index
from robostream.cli.peek import peek
from robostream.cli.synth import synth

__all__ = ["app"]

app = typer.Typer(
    cls=CleanErrors,
    help="Streams LeRobot video datasets into PyTorch, exact to the frame.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("bench")(bench)
app.command("demo")(demo)
app.command("index")(index)
app.command("peek")(peek)
app.command("synth")(synth)
