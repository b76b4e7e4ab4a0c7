#!/usr/bin/env bash
# Makes an environment with a released lerobot and this package, for `robostream compare --peer_python FOLDER/bin/python`.
#
#   setup_lerobot.sh FOLDER [VERSION]
#
# Needs Python 3.12 or newer (PYTHON=python3.13 to choose one) and an FFmpeg that torchcodec finds. Takes several GB
# where PyPI's torch is a CUDA build.
set -euo pipefail

[ $# -ge 1 ] && [ $# -le 2 ] || { echo "usage: $0 FOLDER [VERSION]" >&2; exit 2; }
folder=$1
version=${2:-0.6.1}
here=$(cd "$(dirname "$0")/../.." && pwd)

python=${PYTHON:-}
for candidate in python3.12 python3.13 python3; do
  [ -n "$python" ] && break
  "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && python=$candidate
done
[ -n "$python" ] || { echo "no Python 3.12 or newer found; pass PYTHON=/path/to/python" >&2; exit 1; }

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' || { echo "$python is older than 3.12" >&2; exit 1; }
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check "lerobot[dataset]==$version" -e "$here"
HF_HUB_OFFLINE=1 "$folder/bin/python" - <<'PYTHON'
from importlib.metadata import version

from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: F401
from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset  # noqa: F401
from torchcodec.decoders import VideoDecoder  # noqa: F401

import robostream  # noqa: F401

print("ready:", ", ".join(f"{name} {version(name)}" for name in ("lerobot", "torch", "torchcodec", "av", "robostream")))
PYTHON
