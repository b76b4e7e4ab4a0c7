"""One exception type for each kind of failure. Every message says what, where, and what to do."""

from __future__ import annotations


class RobostreamError(Exception):
    """Base of every error that this package raises on purpose."""


class MetadataError(RobostreamError):
    """The dataset's metadata is missing, contradicts itself, or has a field of the wrong kind."""


class UnsupportedVersionError(MetadataError):
    """The dataset is written in a format version, or a storage format, that is not read here."""


class SelectionError(RobostreamError, ValueError):
    """`episodes=`, `cameras=` or `features=` asks for something that the dataset does not have."""


class SettingError(RobostreamError, ValueError):
    """An argument has a value that cannot work, alone or together with another one."""


class WindowError(RobostreamError, ValueError):
    """`delta_timestamps` names an unknown key, or an offset that is not a multiple of 1/fps."""


class DataFileError(RobostreamError):
    """A data or video file is missing, truncated, or is not what its name says."""


class FileMissingError(DataFileError):
    """A file of the dataset is not there."""


class SourceError(RobostreamError):
    """A source of files answers in a way that can't be used. Never left out by `on_error="skip"`."""


class AccessError(SourceError):
    """A source refuses access: no credentials, wrong ones, or no permission."""


class SourceUnavailableError(SourceError):
    """A source did not answer, or not usably, until the deadline of its retries."""


class SourceChangedError(SourceError):
    """A file was replaced while the dataset was open: it has another size or etag than before."""


class PictureMatchError(RobostreamError):
    """No picture of the video belongs to a row within the tolerance."""


class DecodeError(RobostreamError):
    """A video or image could not be decoded to the frames that its index promises."""


class StateError(RobostreamError, ValueError):
    """A saved state does not belong to this dataset, seed or setting, or cannot be made here."""


class IterationEndedError(RobostreamError, RuntimeError):
    """An iteration was asked for more after its dataset or loader was closed or iterated anew."""


class BenchmarkError(RobostreamError):
    """A benchmark measured nothing, or what it should measure is not there."""
