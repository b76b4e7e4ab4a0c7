"""Which versions of what decodes and reads are installed."""

from __future__ import annotations

import importlib
import platform
from importlib.metadata import PackageNotFoundError, version

import av
import torch

_PACKAGES = ("robostream", "torch", "torchcodec", "av", "huggingface_hub", "hf_xet", "fsspec", "obstore")


def versions() -> dict[str, str]:
    """Name → version for Python, the packages, the FFmpegs in them, and CUDA; "not installed" where there is none."""
    found = {"python": f"{platform.python_version()}, {platform.system()} {platform.machine()}"}
    found |= {name: _version(name) for name in _PACKAGES}
    found["FFmpeg in av"] = _ffmpeg_of_av()
    found["FFmpeg in torchcodec"] = _ffmpeg_of_torchcodec()
    found["CUDA in torch"] = torch.version.cuda or "none"
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _ffmpeg_of_av() -> str:
    codec = ".".join(map(str, av.library_versions.get("libavcodec", ())))
    return f"{getattr(av, 'ffmpeg_version_info', 'unknown')} (libavcodec {codec})"


def _ffmpeg_of_torchcodec() -> str:
    try:
        torchcodec = importlib.import_module("torchcodec")
    except ModuleNotFoundError:
        return "not installed"
    except (ImportError, RuntimeError, OSError):
        return "does not load"
    return str(getattr(torchcodec, "ffmpeg_major_version", "unknown"))
