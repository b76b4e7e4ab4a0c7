"""A 24-bit number drawn as black and white blocks in the top rows of a picture.

Bit b is the block of columns [b * w, (b + 1) * w) with w = width // 24; columns past 24 * w keep the picture.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BITS = 24
ROWS = 16
FRAME_BITS = 12
EPISODE_BITS = 9
CAMERA_BITS = BITS - EPISODE_BITS - FRAME_BITS

_WEIGHTS = 1 << np.arange(BITS)


def barcode_value(camera: int, episode: int, frame: int) -> int:
    """camera << 21 | episode << 12 | frame; each part wraps where its bits end (8, 512 and 4096)."""
    camera %= 1 << CAMERA_BITS
    episode %= 1 << EPISODE_BITS
    frame %= 1 << FRAME_BITS
    return camera << (EPISODE_BITS + FRAME_BITS) | episode << FRAME_BITS | frame


def split_barcode(value: int) -> tuple[int, int, int]:
    """The (camera, episode, frame) of a barcode value."""
    episode = (value >> FRAME_BITS) % (1 << EPISODE_BITS)
    return value >> (EPISODE_BITS + FRAME_BITS), episode, value % (1 << FRAME_BITS)


def draw_barcode(image: NDArray[np.uint8], value: int) -> None:
    """Draws value in the top 16 rows of an (H, W, 3) picture, in place."""
    block = _block_width(image)
    bits = (value >> np.arange(BITS)) & 1
    image[:ROWS, : BITS * block] = np.repeat(bits.astype(np.uint8) * 255, block)[None, :, None]


def read_barcode(image: NDArray[np.uint8]) -> int:
    """The value drawn in an (H, W, 3) picture, read from the middle of each block."""
    block = _block_width(image)
    columns = image[ROWS // 4 : ROWS * 3 // 4, : BITS * block].mean(axis=(0, 2)).reshape(BITS, block)
    middle = columns[:, block // 4 : block - block // 4].mean(axis=1)
    return int(_WEIGHTS[middle > 127].sum())


def _block_width(image: NDArray[np.uint8]) -> int:
    block = int(image.shape[1]) // BITS
    if block == 0:
        raise ValueError(f"a barcode needs {BITS} columns, the picture has {image.shape[1]}")
    return block
