"""The `robostream` command. Each subcommand is a module of its own; register it with one line below."""

from __future__ import annotations

import typer

from robostream.cli.bench import bench
from robostream.cli.common import CleanErrors
from robostream.cli.compare import compare
from robostream.cli.demo import demo
from robostream.cli.diagnose import diagnose
from robostream.cli.index import index
from robostream.cli.peek import peek
from robostream.cli.plan import plan
from robostream.cli.summarize import summarize
from robostream.cli.synth import synth
from robostream.cli.transcode import transcode

__all__ = ["app"]

app = typer.Typer(
    cls=CleanErrors,
    help="Streams LeRobot video datasets into PyTorch, exact to the frame.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("bench")(bench)
app.command("compare")(compare)
app.command("demo")(demo)
app.command("diagnose")(diagnose)
app.command("index")(index)
app.command("peek")(peek)
app.command("plan")(plan)
app.command("summarize")(summarize)
app.command("synth")(synth)
app.command("transcode")(transcode)
