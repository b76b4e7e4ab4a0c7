"""Whether a re-encoded file shows the same pictures as its source, each at its time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from robostream.decode import Pixels
from robostream.errors import DecodeError
from robostream.mp4 import SampleTable

_BLOCK = 8  # pixels; means over blocks see motion and not the noise that coding removes
_DIFFERENT = 12.0  # levels by which a block's mean must differ between neighbours to tell them apart
_FAR = 6.0  # how far a block's mean may be off, for the mean error that min_psnr allows

Means = np.ndarray  # float32 [H / 8, W / 8, 3]


@dataclass(frozen=True)
class Checked:
    """pictures: how many were compared. min_psnr, mean_psnr: in dB. told_apart: how many differ from a neighbour by
    enough that a swap with it would have been seen."""

    pictures: int
    min_psnr: float
    mean_psnr: float
    told_apart: int


def check_index(name: str, source: SampleTable, made: SampleTable, codec: str, size: tuple[int, int], gop: int) -> None:
    """Compare two indices. Raises DecodeError, naming the file, where the new one is not what it must be."""
    if made.codec != codec or (made.width, made.height) != size:
        raise DecodeError(
            f"{name}: {made.codec} of {made.width}×{made.height} instead of {codec} of {size[0]}×{size[1]}"
        )
    if len(made.presented) != len(source.presented):
        raise DecodeError(f"{name}: {len(made.presented)} pictures instead of {len(source.presented)}")
    wanted = source.pts[source.presented] * made.timescale
    found = made.pts[made.presented] * source.timescale
    if not np.array_equal(wanted, found):
        k = int(np.argmax(wanted != found))
        ticks = made.timescale * source.timescale
        raise DecodeError(f"{name}: picture {k} is at {found[k] / ticks} s instead of {wanted[k] / ticks} s")
    keyframes = np.flatnonzero(made.keyframe)
    if len(keyframes) == 0 or keyframes[0] != 0 or np.diff(keyframes, append=len(made.keyframe)).max() > gop:
        raise DecodeError(f"{name}: keyframes are further apart than every {gop} frames")


def check_pictures(name: str, source: Iterable[Pixels], made: Iterable[Pixels], min_psnr: float) -> Checked:
    """Compare the pictures of two videos one by one, uint8 [H, W, 3] in order.

    Each must be within `min_psnr` of its own source, in no block far from it, and closer to it than to the pictures
    before and after, wherever these differ. Raises DecodeError, naming file and picture.
    """
    far = _FAR * 255 / 10 ** (min_psnr / 20)
    values: list[float] = []
    told_apart = 0
    for number, (psnr, own, made_means, neighbours) in enumerate(_compared(source, made)):
        if psnr < min_psnr:
            raise DecodeError(
                f"{name}: picture {number} is {psnr:.1f} dB from its source, less than {min_psnr:g}; ask for a better "
                "quality (a lower crf) or for less (a lower min_psnr)"
            )
        if np.abs(made_means - own).max(initial=0) > far:
            raise DecodeError(
                f"{name}: part of picture {number} is not what its source shows; ask for a better quality (a lower "
                "crf) or for less (a lower min_psnr)"
            )
        values.append(psnr)
        apart = False
        for step, other in neighbours:
            closer, differs = _closeness(made_means, own, other)
            if closer:
                raise DecodeError(
                    f"{name}: picture {number} looks more like picture {number + step} of the source than like its "
                    "own, at this quality at least (a lower crf is better)"
                )
            apart |= differs
        told_apart += apart
    return Checked(len(values), min(values, default=math.inf), float(np.mean(values or [math.inf])), told_apart)


def _compared(
    source: Iterable[Pixels], made: Iterable[Pixels]
) -> Iterator[tuple[float, Means, Means, list[tuple[int, Means]]]]:
    """(PSNR, block means of the source's picture and of the made one, (step, means) of the source's neighbours)."""
    before: Means | None = None
    held: tuple[float, Means, Means] | None = None
    for theirs, ours in zip(source, made, strict=True):
        own = _means(theirs)
        if held is not None:
            yield (*held, _neighbours(before, own))
            before = held[1]
        held = (_psnr(theirs, ours), own, _means(ours))
    if held is not None:
        yield (*held, _neighbours(before, None))


def _neighbours(before: Means | None, after: Means | None) -> list[tuple[int, Means]]:
    return [(step, means) for step, means in ((-1, before), (1, after)) if means is not None]


def _psnr(a: Pixels, b: Pixels) -> float:
    error = np.subtract(a, b, dtype=np.int16).astype(np.float32).ravel()
    mse = float(np.dot(error, error)) / error.size
    return 10 * math.log10(255**2 / mse) if mse else math.inf


def _means(picture: Pixels) -> Means:
    height, width = (side // _BLOCK * _BLOCK for side in picture.shape[:2])
    blocks = picture[:height, :width].reshape(height // _BLOCK, _BLOCK, width // _BLOCK, _BLOCK, 3)
    means: Means = blocks.mean(axis=(1, 3), dtype=np.float32)
    return means


def _closeness(made: Means, own: Means, other: Means) -> tuple[bool, bool]:
    """(whether a picture is closer to another one than to its own, whether the two differ at all)."""
    differs = np.abs(own - other) >= _DIFFERENT
    if not differs.any():
        return False, False
    to_own = float(np.square(made - own)[differs].sum())
    to_other = float(np.square(made - other)[differs].sum())
    return to_other < to_own, True
