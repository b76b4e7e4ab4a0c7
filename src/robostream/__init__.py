"""Streams LeRobot video datasets into PyTorch training at the speed of the video decoder, exact to the frame."""

from robostream.dataset import StreamingLeRobotDataset
from robostream.errors import RobostreamError
from robostream.loader import StreamLoader
from robostream.source import RetryPolicy
from robostream.state import merge_states

__all__ = ["RetryPolicy", "RobostreamError", "StreamLoader", "StreamingLeRobotDataset", "merge_states"]
__version__ = "0.1.0"
