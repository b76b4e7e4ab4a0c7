"""Where videos are decoded: what `video_decode_device` may say, and why a GPU can't be used."""

from __future__ import annotations

import re

import torch

from robostream.errors import SettingError


def check_decode_device(device: str) -> None:
    """Raise SettingError, with the reason and the way out, if videos can't be decoded on `device`."""
    if device == "cpu":
        return
    if not re.fullmatch(r"cuda(:\d+)?", str(device)):
        raise SettingError(f"video_decode_device={device!r} must be 'cpu' or 'cuda'")
    reason = cuda_problem() or "videos are decoded on the CPU only in this version"
    raise SettingError(
        f"video_decode_device={device!r}: {reason}. Use 'cpu'; "
        "`robostream diagnose --video_decode_device cuda` says what this machine's GPU could decode."
    )


def cuda_problem() -> str | None:
    """Why PyTorch can't use a CUDA GPU here; None if it can."""
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return f"PyTorch finds no usable GPU ({str(error).splitlines()[0].rstrip('.')})"
    return None if torch.cuda.device_count() else "PyTorch finds no GPU"
