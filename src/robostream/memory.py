"""Memory for large arrays that are written in scattered pieces.

NumPy asks for large pages, which the kernel clears as a whole when they are first touched. The pictures of the first
clips belong to batches all over the shuffle window, so that window's whole memory would be cleared before the first
batch is ready. Small pages are cleared one by one. They are merged once all of them have been written, as large pages
are faster from then on.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_LARGE = 4 << 20  # bytes from which on NumPy asks for large pages
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1; older kernels refuse it, and pages stay small


_TORCH = {
    np.dtype(np.uint8): torch.uint8,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.bool_): torch.bool,
}


class Memory:
    """An array with undefined contents, and what it lies in.

    Args:
        pin: page-locked memory, from which a GPU can copy by itself.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], pin: bool) -> None:
        size = math.prod(shape) * dtype.itemsize
        self._mapping: mmap.mmap | None = None
        self.array: npt.NDArray[Any]
        if pin:
            self.array = torch.empty(shape, dtype=_TORCH[dtype], pin_memory=True).numpy()
        elif size >= _LARGE and sys.platform == "linux":
            self._mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.array = np.frombuffer(self._mapping, dtype).reshape(shape)
        else:
            self.array = np.empty(shape, dtype)

    def merge_pages(self) -> None:
        """Call when all of it has been written; again does nothing."""
        if self._mapping is not None:
            with contextlib.suppress(OSError):  # a matter of speed only
                self._mapping.madvise(_COLLAPSE)
            self._mapping = None  # the array keeps it alive
