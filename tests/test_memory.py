"""Memory of large arrays: small pages while it is written for the first time, then large ones."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from robostream.assemble import BufferPool
from robostream.memory import Memory

SHAPE = (64, 256, 256, 3)
LARGE = int(np.prod(SHAPE))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_touch_here_and_there_makes_little_resident() -> None:
    before = resident()
    memory = Memory(SHAPE, np.dtype(np.uint8), pin=False)
    memory.array[::8, 0, 0, 0] = 1
    assert resident() - before < LARGE / 10


@pytest.mark.parametrize("shape", [SHAPE, (3, 5)])
def test_merged_memory_holds_what_was_written(shape: tuple[int, ...]) -> None:
    memory = Memory(shape, np.dtype(np.uint8), pin=False)
    wanted = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    memory.array[:] = wanted
    for _ in range(2):
        memory.merge_pages()
        assert np.array_equal(memory.array, wanted)
    assert memory.array.flags.writeable


def test_a_lent_array_outlives_its_pool() -> None:
    pool = BufferPool()
    array = pool.get(SHAPE, np.uint8)
    array[:] = 7
    del pool
    assert (array == 7).all()
