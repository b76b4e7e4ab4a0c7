"""`robostream diagnose` as a script."""

import sys

from robostream.cli import app

if __name__ == "__main__":
    app(["diagnose", *sys.argv[1:]])
