"""Why a video does not decode, or not fast: looks at one file the way the loader does, without loading anything."""

from robostream.diagnose.report import Finding, Severity
from robostream.diagnose.run import Diagnosis, diagnose
from robostream.diagnose.target import Target, find_target

__all__ = ["Diagnosis", "Finding", "Severity", "Target", "diagnose", "find_target"]
