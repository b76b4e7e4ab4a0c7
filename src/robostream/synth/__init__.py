"""Writes small, valid LeRobot datasets: moving scenes a policy can learn, every frame marked with a barcode.

Needs only PyAV, pyarrow and numpy. Used by the demo, the tests and the benchmarks.
"""

from .barcode import barcode_value, draw_barcode, read_barcode, split_barcode
from .scene import Motion, Scene, episode_motion
from .settings import SynthSettings
from .write import write_dataset

__all__ = [
    "Motion",
    "Scene",
    "SynthSettings",
    "barcode_value",
    "draw_barcode",
    "episode_motion",
    "read_barcode",
    "split_barcode",
    "write_dataset",
]
