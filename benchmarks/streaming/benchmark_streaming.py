"""The dataloading benchmark: the same as `robostream bench`, with its flags."""

import sys

from robostream.cli import app

if __name__ == "__main__":
    app(["bench", *sys.argv[1:]])
