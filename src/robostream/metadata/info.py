"""`meta/info.json`: the format version, the frame rate, the declared features and the path templates."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Real
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from robostream.errors import DataFileError, MetadataError, UnsupportedVersionError
from robostream.metadata.files import read_json
from robostream.source import Source

INFO_PATH = "meta/info.json"
SUPPORTED_VERSIONS = {(3, 0): "v3.0", (2, 1): "v2.1", (2, 0): "v2.0"}

# Declared by the format, but not needed to read a dataset.
_IGNORED_KEYS = {
    "data_files_size_in_mb",
    "storage_format",
    "tools",
    "total_chunks",
    "total_tasks",
    "total_videos",
    "video_files_size_in_mb",
}


@dataclass(frozen=True, eq=False)
class Feature(Mapping[str, Any]):
    """One declared feature. Also reads as the mapping that lerobot's users know: `feature["shape"]`.

    dtype: as declared ("float32", "video", "image", "string", …). shape: per frame, as declared; for cameras
    (H, W, C) or (C, H, W). names: of the dimensions, list, dict or None. info: codec and depth parameters.
    """

    key: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    info: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, key: str, raw: Any) -> Feature:
        """Check one entry of `features`. Raises `ValueError` that names the key and the field."""
        if not isinstance(raw, dict):
            raise ValueError(f"{key}: must be an object, not {raw!r}")
        dtype, shape = raw.get("dtype"), raw.get("shape")
        if not isinstance(dtype, str):
            raise ValueError(f"{key}.dtype: must be a string, not {dtype!r}")
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"{key}.shape: must be a list of sizes, not {shape!r}")
        info: dict[str, Any] = {}
        for name in ("video_info", "info"):  # the first is the older name
            part = raw.get(name) or {}
            if not isinstance(part, dict):
                raise ValueError(f"{key}.{name}: must be an object, not {part!r}")
            info |= part
        return cls(key, dtype, tuple(shape), raw.get("names"), info)

    @property
    def is_video(self) -> bool:
        """Pictures are in MP4 files."""
        return self.dtype == "video"

    @property
    def is_image(self) -> bool:
        """Pictures are in the Parquet rows."""
        return self.dtype == "image"

    @property
    def is_camera(self) -> bool:
        """Pictures, in whichever files."""
        return self.is_video or self.is_image

    @property
    def is_depth(self) -> bool:
        """Pictures are depth maps, by the current flag or the older one."""
        return bool(self.info.get("is_depth_map") or self.info.get("video.is_depth_map"))

    @property
    def is_string(self) -> bool:
        """Text, one string per frame."""
        return self.dtype == "string"

    @property
    def is_language(self) -> bool:
        """Lists of annotation structs, which are not read here."""
        return self.dtype == "language"

    def __getitem__(self, name: str) -> Any:
        if name not in _FEATURE_FIELDS:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_FEATURE_FIELDS)

    def __len__(self) -> int:
        return len(_FEATURE_FIELDS)


_FEATURE_FIELDS = ("dtype", "shape", "names", "info")


def exact_fps(value: Any) -> Fraction:
    """The frame rate as an exact number of frames per second.

    Whole numbers are exact; a float near k·1000/1001 (29.97, 23.976…) is that broadcast rate; any other float
    is its decimal text. Raises `ValueError` for what is no positive, finite number.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
        raise ValueError(f"must be a number above 0, not {value!r}")
    rate = float(value)
    if rate.is_integer():
        return Fraction(int(rate))
    broadcast = Fraction(round(rate * 1.001) * 1000, 1001)
    return broadcast if abs(rate - broadcast) <= 1e-4 * rate else Fraction(repr(rate))


def _parse_features(value: Any) -> dict[str, Feature]:
    if not isinstance(value, dict):
        raise ValueError(f"must be an object, not {value!r}")
    if not value:
        raise ValueError("must not be empty: they say what is read")
    return {key: Feature.from_json(key, raw) for key, raw in value.items()}


class Info(BaseModel):
    """The fields of `meta/info.json` that reading needs. `fps` is exact; `features` are in declared order."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    codebase_version: str
    fps: Annotated[Fraction, PlainValidator(exact_fps)]
    features: Annotated[dict[str, Feature], PlainValidator(_parse_features)]
    total_episodes: int
    total_frames: int
    data_path: str
    video_path: str | None = None
    chunks_size: int = Field(1000, gt=0)
    robot_type: str | None = None
    splits: dict[str, Any] | None = None

    @property
    def version(self) -> tuple[int, int]:
        """(major, minor) of the format."""
        return _parse_version(self.codebase_version)


def load_info(source: Source) -> Info:
    """Read and check `meta/info.json`.

    Raises `MetadataError` where it is missing or a field is, or has the wrong kind, and
    `UnsupportedVersionError` for a format that is not read here. Unknown keys are warned of once.
    """
    name = source.describe(INFO_PATH)
    raw = _read_info(source)
    _check_format(name, raw)
    try:
        info = Info.model_validate(raw)
    except ValidationError as error:
        raise MetadataError(f"{name}: {_first_problem(error)}") from error
    unknown = sorted(raw.keys() - Info.model_fields.keys() - _IGNORED_KEYS)
    if unknown:
        warnings.warn(f"{name}: unknown keys are ignored: {', '.join(unknown)}", stacklevel=3)
    return info


def _read_info(source: Source) -> dict[str, Any]:
    try:
        return read_json(source, INFO_PATH)
    except DataFileError as error:
        if source.exists(INFO_PATH):
            raise
        raise MetadataError(
            f"{source.describe(INFO_PATH)}: no such file; a dataset's root is the folder that holds "
            "meta/info.json, data/ and, where it has video, videos/"
        ) from error


def _check_format(name: str, raw: dict[str, Any]) -> None:
    storage = raw.get("storage_format")
    if storage is not None and not str(storage).lower().startswith("parquet"):
        raise UnsupportedVersionError(
            f"{name}: storage_format {storage!r} is not supported, only Parquet with MP4 is: "
            "use the Parquet copy that the dataset was made from"
        )
    found = raw.get("codebase_version")
    version = _parse_version(found)
    if version not in SUPPORTED_VERSIONS:
        raise UnsupportedVersionError(
            f"{name}: codebase_version {found!r} is not supported, "
            f"{', '.join(SUPPORTED_VERSIONS.values())} are: {_way_out(version)}"
        )


def _way_out(version: tuple[int, int]) -> str:
    if version > max(SUPPORTED_VERSIONS):
        return "update robostream"
    if version >= (2, 0):
        return "convert the dataset with lerobot's convert_dataset_v21_to_v30.py"
    if version >= (1, 0):
        return "convert the dataset with lerobot's convert_dataset_v1_to_v2.py"
    return "write the version as lerobot does, or convert the dataset with lerobot"


def _parse_version(text: Any) -> tuple[int, int]:
    """(major, minor), or (0, 0) for what is not a version. A patch level doesn't change the format."""
    match = re.fullmatch(r"v?(\d+)\.(\d+)(\.\d+)?", text.strip()) if isinstance(text, str) else None
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{place}: missing"
    if problem["type"] == "value_error":  # raised here, with the value in it
        return f"{place}: {problem['ctx']['error']}"
    return f"{place}: {problem['msg']}, not {problem['input']!r}"
