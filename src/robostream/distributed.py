"""Rank and world size of this process. Nothing is initialised on the user's behalf."""

from __future__ import annotations

import os
import sys

import torch.distributed

from robostream.errors import SettingError


def resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size): from the arguments, else an initialised Accelerate state, else torch.distributed, else the
    environment's RANK and WORLD_SIZE, else (0, 1).

    Raises SettingError if only one is given, or the rank lies outside the world.
    """
    if (rank is None) != (world_size is None):
        raise SettingError(f"rank={rank} and world_size={world_size} must be given together, or neither")
    if rank is None or world_size is None:
        rank, world_size = _surroundings()
    if not 0 <= rank < world_size:
        raise SettingError(f"rank={rank} must lie in [0, world_size={world_size})")
    return rank, world_size


def _surroundings() -> tuple[int, int]:
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None and accelerate.PartialState._shared_state:
        state = accelerate.PartialState()
        return int(state.process_index), int(state.num_processes)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world_size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or world_size is None:
        return 0, 1
    try:
        return int(rank), int(world_size)
    except ValueError:
        raise SettingError(f"the environment has RANK={rank!r} and WORLD_SIZE={world_size!r}, not numbers") from None
