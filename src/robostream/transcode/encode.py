"""One video file → a re-encoded one with the same pictures at the same times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from robostream.decode import Pixels
from robostream.errors import DecodeError, SettingError
from robostream.mp4 import SampleTable
from robostream.rgb import REFORMAT
from robostream.transcode.settings import ENCODERS, PIXEL_FORMAT, TranscodeSettings
from robostream.video import Int


def encode_file(
    target: Path,
    pictures: Iterable[Pixels],
    table: SampleTable,
    settings: TranscodeSettings,
    *,
    size: tuple[int, int],
    fps: Fraction,
    keyframes: Int,
    threads: int,
) -> None:
    """Write an MP4 with `moov` in front.

    Args:
        pictures: uint8 [H, W, 3], in order, of `size` (width, height).
        table: the index of the source, whose times are kept.
        fps: for the encoder's sense of time.
        keyframes: int64, positions that must be keyframes: where episodes begin.

    Raises SettingError if the encoder refuses its settings, DecodeError if the source's times can't be kept.
    """
    times = _times(str(target), table)
    steps = np.diff(times, append=times[-1:] + max(1, int(table.timescale / fps))).tolist()
    # The length of an empty edit, where the first picture is late, is in the movie's ticks.
    options = {"movflags": "faststart", "movie_timescale": str(table.timescale)}
    with av.open(str(target), "w", format="mp4", options=options) as container:
        stream = _open_stream(container, settings, size, fps, threads)
        ticks = Fraction(1, table.timescale)
        for number, packet in enumerate(_packets(stream, pictures, set(keyframes.tolist()))):
            if packet.pts != number:
                raise DecodeError(f"{target}: the encoder gave picture {packet.pts} where {number} was due")
            packet.time_base = ticks
            packet.pts = packet.dts = int(times[number])
            packet.duration = steps[number]
            container.mux(packet)


def _times(name: str, table: SampleTable) -> Int:
    """int64 [pictures]: when each is shown, in the source's ticks."""
    times: Int = table.pts[table.presented]
    again = np.flatnonzero(np.diff(times) <= 0)
    if len(again):
        raise DecodeError(
            f"{name}: pictures {again[0]} and {again[0] + 1} of the source are shown at the same time; rewrite its "
            "times first: `ffmpeg -i IN.mp4 -c copy -bsf:v setts=pts=N OUT.mp4`"
        )
    return times


def _open_stream(
    container: av.container.OutputContainer,
    settings: TranscodeSettings,
    size: tuple[int, int],
    fps: Fraction,
    threads: int,
) -> VideoStream:
    encoder = ENCODERS[settings.codec]
    try:
        stream = container.add_stream(encoder, rate=fps, options=settings.encoder_options(threads))
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = size
        stream.pix_fmt = PIXEL_FORMAT
        stream.codec_context.thread_count = threads
        stream.codec_context.open()
    except (av.FFmpegError, ValueError) as error:
        raise SettingError(
            f"the encoder {encoder} of this PyAV refuses preset={settings.speed!r}, crf={settings.quality}, "
            f"{size[0]}×{size[1]}: {error}"
        ) from error
    return stream


def _packets(stream: VideoStream, pictures: Iterable[Pixels], keyframes: set[int]) -> Iterator[av.Packet[VideoStream]]:
    reformatter = VideoReformatter()
    options = {**REFORMAT, "format": PIXEL_FORMAT}
    for number, picture in enumerate(pictures):
        frame = reformatter.reformat(av.VideoFrame.from_ndarray(picture, format="rgb24"), **options)
        frame.pts = number
        frame.time_base = stream.codec_context.time_base
        if number in keyframes:
            frame.pict_type = av.video.frame.PictureType.I
        yield from stream.encode(frame)
    yield from stream.encode(None)


def watched(pictures: Iterable[Pixels], seen: Callable[[], None]) -> Iterator[Pixels]:
    """The pictures, with a call for each: to count them, or to stop by raising."""
    for picture in pictures:
        seen()
        yield picture
