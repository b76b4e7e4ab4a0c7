"""Streams LeRobot video datasets into PyTorch training at the speed of the video decoder, exact to the frame."""

from robostream.dataset import StreamingLeRobotDataset
from robostream.errors import RobostreamError

__all__ = ["RobostreamError", "StreamingLeRobotDataset"]
__version__ = "0.1.0"
