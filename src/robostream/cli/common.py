"""What the commands share: where they print, how errors look, and the options of a dataset."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from robostream.errors import RobostreamError

_PIPED_WIDTH = 120  # columns of output that goes to a file or another program


class Timestamps(str, Enum):
    """How pictures are matched with rows."""

    by_clock = "check"
    by_index = "index"


class OnError(str, Enum):
    """What to do with what can't be read."""

    stop = "raise"
    skip = "skip"


class Backend(str, Enum):
    """What decodes."""

    pyav = "pyav"
    torchcodec = "torchcodec"


CamerasOption = Annotated[
    list[str] | None, typer.Option("--cameras", metavar="KEY", help="A camera to use; repeat for more. [default: all]")
]
FeaturesOption = Annotated[
    list[str] | None,
    typer.Option("--features", metavar="KEY", help="A key besides cameras to use; repeat for more. [default: all]"),
]
TimestampsOption = Annotated[
    Timestamps,
    typer.Option(
        "--timestamps", help="'check' holds the rows' clock against the video's; 'index' takes picture k for row k."
    ),
]
BackendOption = Annotated[Backend, typer.Option("--video-backend", help="What decodes the videos.")]


def console() -> Console:
    """Where results go."""
    return _console(stderr=False)


def error_console() -> Console:
    """Where errors and warnings go."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    fixed = stream.isatty() or "COLUMNS" in os.environ
    return Console(stderr=stderr, highlight=False, width=None if fixed else _PIPED_WIDTH)


class CleanErrors(TyperGroup):
    """Prints errors that were raised on purpose, and warnings, in one line each; exit code 1 for errors."""

    def invoke(self, ctx: Any) -> Any:
        """Run a subcommand."""
        handler = _LogLines()
        logger = logging.getLogger("robostream")
        logger.addHandler(handler)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except BrokenPipeError:
                raise
            except (RobostreamError, OSError) as error:
                print_error(error)
                raise typer.Exit(1) from None
            finally:
                logger.removeHandler(handler)


class _LogLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_warning(record.getMessage())


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print_warning(str(message))


def print_warning(message: str) -> None:
    """One yellow line."""
    error_console().print(Text(f"warning: {message}", style="yellow"), soft_wrap=True)


def print_error(error: Exception) -> None:
    """One red line, and below it the flags for the arguments that the message advises."""
    target = error_console()
    target.print(Text(f"error: {error}", style="red"), soft_wrap=True)
    flags = flags_of(str(error))
    if flags:
        target.print(Text(f"  on the command line: {flags}"), soft_wrap=True)


def flags_of(message: str) -> str:
    """The flags for the Python arguments that a message says to pass, or ""."""
    advised = re.findall(r"(?:pass|with) (\w+)=(\[[^\]]*\]|\"[^\"]*\"|'[^']*'|[\w.]+)", message)
    return " ".join(_flag(name, value) for name, value in advised)


def _flag(name: str, value: str) -> str:
    flag = "--" + name.replace("_", "-")
    if not value.startswith("["):
        return f"{flag} {value.strip(chr(34) + chr(39))}"
    items = re.findall(r"'([^']*)'|\"([^\"]*)\"", value)
    return " ".join(f"{flag} {a or b}" for a, b in items) or f"{flag} KEY"


def heading(target: Console, text: str) -> None:
    """The line above a table."""
    target.print(Text(text, style="bold"), soft_wrap=True)


def table(*columns: str, right: Sequence[str] = ()) -> Table:
    """An empty table in the style of all commands; columns in `right` hold numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(columns):
        side: Literal["left", "right"] = "right" if name in right else "left"
        made.add_column(name, justify=side, overflow="fold", no_wrap=place == 0)
    return made


def facts() -> Table:
    """An empty table of names and values without a head."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="cyan", no_wrap=True)
    made.add_column(overflow="fold")
    return made


def size_text(count: float) -> str:
    """Bytes for people: '1.5 MiB'."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def chosen_root(argument: Path | None, option: Path | None) -> Path:
    """The dataset's folder, given as an argument or an option."""
    root = argument or option
    if root is None or (argument and option):
        raise typer.BadParameter("give the dataset's folder, once: ROOT or --root ROOT")
    return root
