"""All pictures of a video in the order in which they are shown, decoded in one pass."""

from __future__ import annotations

from collections.abc import Iterator

import av
import numpy as np
from av.video.reformatter import VideoReformatter

from robostream.decode import Pixels, open_context
from robostream.errors import DecodeError
from robostream.mp4 import SampleTable
from robostream.rgb import REFORMAT
from robostream.source import Source

_READ_BYTES = 8 << 20
_MAX_WAITING = 64  # pictures that may come before one that is due; codecs reorder by 16 at most


def read_pictures(
    source: Source, path: str, table: SampleTable, size: tuple[int, int] | None = None
) -> Iterator[Pixels]:
    """uint8 [H, W, 3] for each shown picture, in order, as the loader decodes them.

    size: (width, height) to shrink or enlarge to. Raises DecodeError, naming file and picture, if one can't be decoded,
    DataFileError if the file can't be read.
    """
    name = source.describe(path)
    waiting: dict[int, Pixels] = {}
    due = 0
    for position, picture in _decoded(name, source, path, table, size):
        waiting[position] = picture
        while due in waiting:
            yield waiting.pop(due)
            due += 1
        if len(waiting) > _MAX_WAITING:
            break
    if due < len(table.presented):
        raise DecodeError(f"{name}: picture {due} did not come out of the {table.codec} decoder")


def _decoded(
    name: str, source: Source, path: str, table: SampleTable, size: tuple[int, int] | None
) -> Iterator[tuple[int, Pixels]]:
    """(position, picture) as the decoder gives them."""
    converter = _Converter(name, table, size)
    try:
        for run in _runs(table):
            context = open_context(name, table.coding(int(run[0])))
            position = table.position
            for frame_index, data in _coded(source, path, table, run):
                packet = av.Packet(data)
                packet.pts, packet.dts = int(position[frame_index]), frame_index
                for frame in context.decode(packet):
                    yield from converter.convert(frame)
            for frame in context.decode(None):
                yield from converter.convert(frame)
    except (av.FFmpegError, ValueError) as error:
        raise DecodeError(f"{name}: FFmpeg could not decode it: {error}") from error


def _runs(table: SampleTable) -> list[np.ndarray]:
    """Decode indices, cut where the sample description changes."""
    cuts = np.flatnonzero(np.diff(table.description)) + 1
    return [run for run in np.split(np.arange(len(table.offset)), cuts) if len(run)]


def _coded(source: Source, path: str, table: SampleTable, run: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """(decode index, coded bytes) of a run of frames, a few megabytes read at a time."""
    ends = np.cumsum(table.size[run])
    first = 0
    while first < len(run):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _READ_BYTES, "right")))
        frames = run[first:last]
        start, size = table.offset[frames], table.size[frames]
        begins = np.append(True, start[1:] != start[:-1] + size[:-1])  # frames that don't follow the one before
        at = np.flatnonzero(begins)
        length = np.add.reduceat(size, at)
        parts = source.read_ranges(path, start[at].tolist(), length.tolist())
        part = np.cumsum(begins) - 1
        offset = start - start[at][part]
        for frame, which, begin, count in zip(
            frames.tolist(), part.tolist(), offset.tolist(), size.tolist(), strict=True
        ):
            yield frame, parts[which][begin : begin + count]
        first = last


class _Converter:
    """Decoded frames → RGB, resized if asked for."""

    def __init__(self, name: str, table: SampleTable, size: tuple[int, int] | None) -> None:
        self._name = name
        self._expected = (table.width, table.height)
        self._options = dict(REFORMAT)
        if size is not None and size != self._expected:
            self._options |= {"width": size[0], "height": size[1], "interpolation": "AREA"}
        self._reformatter = VideoReformatter()

    def convert(self, frame: av.VideoFrame) -> Iterator[tuple[int, Pixels]]:
        """(position, picture); nothing for a frame that an edit list cuts away."""
        position = frame.pts
        if position is None or position < 0:
            return
        if frame.is_corrupt:
            raise DecodeError(f"{self._name}: picture {position} is corrupt")
        if (frame.width, frame.height) != self._expected:
            raise DecodeError(
                f"{self._name}: picture {position} is {frame.width}×{frame.height}, the others are "
                f"{self._expected[0]}×{self._expected[1]}"
            )
        picture: Pixels = self._reformatter.reformat(frame, **self._options).to_ndarray()  # type: ignore[assignment]
        yield position, picture
