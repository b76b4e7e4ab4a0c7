"""`robostream diagnose` as a script."""

from robostream.cli import app

if __name__ == "__main__":
    import sys

    app(["diagnose", *sys.argv[1:]])
