"""`python -m robostream`."""

from robostream.cli import app

app(prog_name="robostream")
