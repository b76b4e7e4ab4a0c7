"""`python -m robostream.cli`."""

from robostream.cli import app

app(prog_name="robostream")
