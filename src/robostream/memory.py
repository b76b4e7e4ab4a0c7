"""Memory for large arrays that are written in scattered pieces.

NumPy asks for large pages, which the kernel clears as a whole when they are first touched. The pictures of the first
clips belong to batches all over the shuffle window, so that window's whole memory would be cleared before the first
batch is ready. Small pages are cleared one by one, and are as fast later.
"""

from __future__ import annotations

import math
import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

_LARGE = 4 << 20  # bytes from which on NumPy asks for large pages


def scattered(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array with undefined contents, of which only the pages that are touched become resident."""
    size = math.prod(shape) * dtype.itemsize
    if size < _LARGE or sys.platform != "linux":
        return np.empty(shape, dtype)
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(mapping, dtype).reshape(shape)
