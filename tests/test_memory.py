"""Memory of large arrays that are written in scattered pieces."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from robostream.assemble import BufferPool
from robostream.memory import scattered

SHAPE = (64, 256, 256, 3)
LARGE = int(np.prod(SHAPE))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_touch_here_and_there_makes_little_resident() -> None:
    before = resident()
    array = scattered(SHAPE, np.dtype(np.uint8))
    array[::8, 0, 0, 0] = 1
    assert resident() - before < LARGE / 10


@pytest.mark.parametrize("shape", [SHAPE, (3, 5)])
def test_it_holds_what_was_written(shape: tuple[int, ...]) -> None:
    array = scattered(shape, np.dtype(np.int64))
    wanted = np.random.default_rng(0).integers(0, 256, shape)
    array[:] = wanted
    assert array.shape == shape
    assert array.flags.c_contiguous
    assert np.array_equal(array, wanted)


def test_a_lent_array_outlives_its_pool() -> None:
    pool = BufferPool()
    array = pool.get(SHAPE, np.uint8)
    array[:] = 7
    del pool
    assert (array == 7).all()
