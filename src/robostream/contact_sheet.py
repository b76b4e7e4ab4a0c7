"""A sheet of samples for a person to look at: one row a sample, its pictures and window steps side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Array = npt.NDArray[Any]
Color = tuple[int, int, int]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

PAPER: Color = (252, 252, 250)
INK: Color = (28, 30, 34)
FAINT: Color = (112, 116, 124)
RULE: Color = (222, 223, 226)
PAD: Color = (214, 98, 24)
PAD_TINT: Color = (250, 229, 211)
LINES: tuple[Color, ...] = (
    (38, 99, 168),
    (200, 80, 72),
    (58, 140, 92),
    (138, 96, 170),
    (196, 146, 40),
    (60, 150, 168),
    (120, 120, 120),
    (170, 80, 130),
)

_MARGIN = 18
_LABEL = 172  # width of the text beside a row
_GAP = 4  # between the steps of one key
_GROUP_GAP = 16  # between keys
_ROW_GAP = 12
_PLOT_SCALE = 3  # curves are drawn this much larger and then made smaller, for smooth lines


@dataclass(frozen=True)
class Group:
    """The columns of one key. offsets: of its window, in frames; empty for the frame alone. x, width: pixels."""

    key: str
    offsets: tuple[int, ...]
    cell: int
    x: int

    @property
    def width(self) -> int:
        steps = max(1, len(self.offsets))
        return steps * self.cell + (steps - 1) * _GAP

    @property
    def title(self) -> str:
        return self.key.removeprefix("observation.images.").removeprefix("observation.")


def contact_sheet(
    samples: Sequence[Mapping[str, Any]],
    cameras: Sequence[str],
    *,
    windows: Mapping[str, Sequence[int]] | None = None,
    curves: Sequence[str] = (),
    title: str = "",
    row_height: int = 136,
) -> Image.Image:
    """Draw samples as rows; cameras with a window have one column a step, marked where it is padding.

    Args:
        samples: at least one, as a dataset gives them.
        cameras: keys of pictures [C, H, W] or [T, C, H, W], uint8 or float in [0, 1].
        windows: offsets in frames of each key that has a window.
        curves: keys of windows of numbers, [T, D], to draw as curves over time.
        title: the line above. row_height: of the pictures, in pixels.
    """
    windows = windows or {}
    pictures = _picture_groups(samples[0], cameras, windows, row_height)
    x = pictures[-1].x + pictures[-1].width + _GROUP_GAP if pictures else _MARGIN + _LABEL
    plots = []
    for key in curves:
        plots.append(Group(key, (), round(1.25 * row_height), x))
        x += plots[-1].width + _GROUP_GAP
    head = _MARGIN + (26 if title else 0) + 38
    height = head + len(samples) * (row_height + _ROW_GAP) + _MARGIN - _ROW_GAP
    sheet = Image.new("RGB", (x - _GROUP_GAP + _MARGIN, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN, _MARGIN - 4), title, fill=INK, font=_font(16))
    for group in pictures:
        steps = [(i * (group.cell + _GAP), _step_name(offset)) for i, offset in enumerate(group.offsets)]
        _draw_head(draw, group, head, steps)
    for group in plots:
        first, last = windows[group.key][0], windows[group.key][-1]
        _draw_head(draw, group, head, [(0, f"{_step_name(first)} to {_step_name(last)}")])
    ranges = {group.key: _value_range([_array(s[group.key]) for s in samples]) for group in plots}
    for row, sample in enumerate(samples):
        y = head + row * (row_height + _ROW_GAP)
        _draw_label(draw, sample, y, row_height)
        for group in pictures:
            _draw_pictures(sheet, sample, group, y, row_height)
        for group in plots:
            plot = _plot(sample, group, windows[group.key], ranges[group.key], row_height)
            sheet.paste(plot, (group.x, y))
    return sheet


def _picture_groups(
    sample: Mapping[str, Any], cameras: Sequence[str], windows: Mapping[str, Sequence[int]], row_height: int
) -> list[Group]:
    groups = []
    x = _MARGIN + _LABEL
    for key in cameras:
        height, width = sample[key].shape[-2:]
        group = Group(key, tuple(windows.get(key, ())), max(8, round(row_height * width / height)), x)
        groups.append(group)
        x += group.width + _GROUP_GAP
    return groups


def _draw_head(draw: ImageDraw.ImageDraw, group: Group, bottom: int, steps: Sequence[tuple[int, str]]) -> None:
    """The key above its columns, and below it the names of its steps, each with its place."""
    draw.text((group.x, bottom - 38), _fit(group.title, group.width, _font(13)), fill=INK, font=_font(13))
    for x, name in steps:
        draw.text((group.x + x, bottom - 19), name, fill=FAINT, font=_font(11))
    draw.line((group.x, bottom - 4, group.x + group.width - 1, bottom - 4), fill=RULE)


def _step_name(offset: int) -> str:
    return "t" if offset == 0 else f"t{offset:+d}"


def _draw_label(draw: ImageDraw.ImageDraw, sample: Mapping[str, Any], y: int, height: int) -> None:
    lines: list[tuple[str, Color, int]] = []
    for key, name in (("episode_index", "episode"), ("frame_index", "frame")):
        if key in sample:
            lines.append((f"{name} {_number(sample[key])}", INK, 14))
    if "index" in sample:
        lines.append((f"row {_number(sample['index'])} of the dataset", FAINT, 11))
    lines += [(line, FAINT, 11) for line in _wrap(str(sample.get("task", "")), _LABEL - 14, _font(11))]
    top = y
    for text, color, size in lines:
        if top + size > y + height:
            break
        draw.text((_MARGIN, top), text, fill=color, font=_font(size))
        top += size + 5


def _number(value: Any) -> int:
    """A number of a sample; of a window, its last step."""
    return int(_array(value).reshape(-1)[-1])


def _draw_pictures(sheet: Image.Image, sample: Mapping[str, Any], group: Group, y: int, height: int) -> None:
    pictures = _array(sample[group.key])
    pictures = pictures.reshape(-1, *pictures.shape[-3:])
    pads = _pads(sample, group.key, len(pictures))
    for step, (picture, is_pad) in enumerate(zip(pictures, pads, strict=True)):
        image = _image(picture).resize((group.cell, height), Image.Resampling.LANCZOS)
        x = group.x + step * (group.cell + _GAP)
        if is_pad:
            image = Image.blend(image, Image.new("RGB", image.size, PAPER), 0.55)
        sheet.paste(image, (x, y))
        if is_pad:
            draw = ImageDraw.Draw(sheet)
            draw.rectangle((x, y, x + group.cell - 1, y + height - 1), outline=PAD, width=2)
            _tag(draw, x, y + height)


def _tag(draw: ImageDraw.ImageDraw, x: int, bottom: int) -> None:
    """The mark of a padded step, in the lower left corner."""
    draw.rectangle((x, bottom - 18, x + 30, bottom - 1), fill=PAD)
    draw.text((x + 15, bottom - 10), "pad", fill=PAPER, font=_font(11), anchor="mm")


def _pads(sample: Mapping[str, Any], key: str, steps: int) -> list[bool]:
    pads = sample.get(f"{key}_is_pad")
    return [False] * steps if pads is None else [bool(pad) for pad in _array(pads)]


def _image(picture: Array) -> Image.Image:
    """[C, H, W], uint8 or float in [0, 1], as RGB."""
    if picture.dtype != np.uint8:
        picture = (np.clip(picture, 0, 1) * 255).round().astype(np.uint8)
    if len(picture) != 3:
        picture = np.repeat(picture[:1], 3, axis=0)
    return Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))


def _value_range(windows: Sequence[Array]) -> tuple[Array, Array]:
    """Lowest value and span of each number, float64 [D] each, over all samples."""
    values = np.concatenate([w.reshape(len(w), -1) for w in windows]).astype(np.float64)
    low = np.nanmin(values, axis=0)
    span = np.nanmax(values, axis=0) - low
    return low, np.where(span > 0, span, 1)


def _plot(
    sample: Mapping[str, Any], group: Group, offsets: Sequence[int], span: tuple[Array, Array], height: int
) -> Image.Image:
    """Curves of the first numbers of a window over its steps; padded steps are tinted."""
    scale = _PLOT_SCALE
    width, tall = group.cell * scale, height * scale
    image = Image.new("RGB", (width, tall), (255, 255, 255))
    draw = ImageDraw.Draw(image)
    values = _array(sample[group.key]).astype(np.float64)
    values = (values.reshape(len(offsets), -1) - span[0]) / span[1]
    inset = 8 * scale
    xs = np.linspace(inset, width - inset, len(offsets)) if len(offsets) > 1 else np.array([width / 2])
    half = (xs[1] - xs[0]) / 2 if len(xs) > 1 else inset
    pads = _pads(sample, group.key, len(offsets))
    for x, is_pad, offset in zip(xs, pads, offsets, strict=True):
        if is_pad:
            draw.rectangle((max(0, x - half), 0, min(width, x + half), tall), fill=PAD_TINT)
        if offset == 0:
            draw.line((x, 0, x, tall), fill=RULE, width=2 * scale)
    for number, line in enumerate(np.nan_to_num(values.T[: len(LINES)], nan=0.5)):
        ys = tall - inset - line * (tall - 2 * inset)
        points = list(zip(xs.tolist(), ys.tolist(), strict=True))
        draw.line(points, fill=LINES[number], width=2 * scale, joint="curve")
        for x, y in points:
            draw.ellipse((x - 2 * scale, y - 2 * scale, x + 2 * scale, y + 2 * scale), fill=LINES[number])
    draw.rectangle((0, 0, width - 1, tall - 1), outline=RULE, width=scale)
    image = image.resize((group.cell, height), Image.Resampling.LANCZOS)
    if any(pads):
        _tag(ImageDraw.Draw(image), 0 if pads[0] else group.cell - 31, height)
    return image


def _array(value: Any) -> Array:
    array: Array = np.asarray(value)
    return array


@lru_cache
def _font(size: int) -> Font:
    """A sans serif that many systems have; else Pillow's own, which knows fewer letters."""
    for name in ("DejaVuSans.ttf", "LiberationSans-Regular.ttf", "Arial.ttf"):
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def _fit(text: str, width: int, font: Font) -> str:
    """The text, cut short with dots if it is wider than that."""
    while font.getlength(text) > width and len(text) > 1:
        text = text.removesuffix("...")[:-1] + "..." if len(text) > 4 else text[:-1]
    return text


def _wrap(text: str, width: int, font: Font) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and font.getlength(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(_fit(word, width, font))
    return lines
