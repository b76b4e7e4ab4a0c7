"""Re-encodes the videos of a dataset into a dataset beside it, and checks every picture."""

from robostream.transcode.run import Progress, Summary, transcode
from robostream.transcode.settings import TranscodeSettings

__all__ = ["Progress", "Summary", "TranscodeSettings", "transcode"]
