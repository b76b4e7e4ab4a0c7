"""Compares benchmark results: the same as `robostream summarize`."""

import sys

from robostream.cli import app

if __name__ == "__main__":
    app(["summarize", *sys.argv[1:]])
