"""What the videos are to become."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from robostream.errors import SettingError

ENCODERS = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
PIXEL_FORMAT = "yuv420p"
"""What every decoder takes, those of GPUs among them."""
_PRESETS = {"h264": "fast", "hevc": "fast", "av1": "10"}
_CRF = {"h264": 20, "hevc": 22, "av1": 28}
_MAX_CRF = {"h264": 51, "hevc": 51, "av1": 63}


@dataclass(frozen=True)
class TranscodeSettings:
    """What the videos are to become.

    codec: "h264", "hevc" or "av1". gop: frames from keyframe to keyframe. width, height: in pixels; None keeps the
    size, and with one of them given the other follows. crf: quality, lower is better; None for the codec's default.
    preset: the encoder's; None for the default. min_psnr: in dB; a picture further from its source fails the check.
    """

    codec: str = "h264"
    gop: int = 16
    width: int | None = None
    height: int | None = None
    crf: int | None = None
    preset: str | None = None
    min_psnr: float = 24.0

    def __post_init__(self) -> None:
        if self.codec not in ENCODERS:
            raise SettingError(f"codec={self.codec!r} must be one of {', '.join(ENCODERS)}")
        if self.gop < 1:
            raise SettingError(f"gop={self.gop} must be at least 1")
        for name in ("width", "height"):
            side = getattr(self, name)
            if side is not None and (side < 16 or side % 2):
                raise SettingError(f"{name}={side} must be even and at least 16")
        if not 0 <= self.quality <= _MAX_CRF[self.codec]:
            raise SettingError(f"crf={self.crf} must be from 0 to {_MAX_CRF[self.codec]} for {self.codec}")

    @property
    def quality(self) -> int:
        return _CRF[self.codec] if self.crf is None else self.crf

    @property
    def speed(self) -> str:
        return _PRESETS[self.codec] if self.preset is None else self.preset

    def size(self, name: str, width: int, height: int) -> tuple[int, int]:
        """(width, height) that pictures of a source's size get. Raises SettingError, with `name`, if it can't be."""
        if self.width is not None and self.height is not None:
            return self.width, self.height
        if self.width is not None:
            return self.width, max(16, 2 * round(height * self.width / width / 2))
        if self.height is not None:
            return max(16, 2 * round(width * self.height / height / 2)), self.height
        if width % 2 or height % 2:
            raise SettingError(
                f"{name}: pictures of {width}×{height} can't be coded with half the colour resolution; give an even "
                f"size, width={width + width % 2} and height={height + height % 2}"
            )
        return width, height

    def encoder_options(self, threads: int) -> dict[str, str]:
        """Options for the encoder: a fixed keyframe spacing, no B-frames, `threads` threads."""
        os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 writes a page to stderr for each encoder, errors apart
        options = {"g": str(self.gop), "crf": str(self.quality), "preset": self.speed}
        if self.codec == "av1":
            return options | {"svtav1-params": f"lp={threads}"}
        options |= {"bf": "0", "forced-idr": "1"}
        if self.codec == "h264":
            return options | {"sc_threshold": "0"}
        x265 = f"keyint={self.gop}:min-keyint=1:bframes=0:scenecut=0:open-gop=0:log-level=error:frame-threads=1"
        return options | {"x265-params": f"{x265}:pools={'none' if threads == 1 else threads}"}

    def to_json(self) -> dict[str, Any]:
        """What the made files depend on."""
        made = {**asdict(self), "crf": self.quality, "preset": self.speed}
        del made["min_psnr"]
        return made
