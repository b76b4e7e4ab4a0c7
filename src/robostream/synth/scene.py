"""The world of a synthetic dataset: a gripper that follows a target, and its pictures.

The action is the velocity that brings the gripper to the target. The gripper is in the state and in the
picture, the target only in the picture, so a policy has to look in order to act.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .barcode import ROWS, barcode_value, draw_barcode
from .settings import SynthSettings

Floats = NDArray[np.float64]
Image = NDArray[np.uint8]

GAIN = 3.0  # 1/s: how fast the gripper closes the distance
MARGIN = 0.16  # part of the picture kept free around the world's square [0, 1]²
NOISE_LEVEL = {"light": 10.0, "heavy": 18.0}  # grey levels; sets how long a frame takes to decode
NOISE_SPARE = 64  # pixels a noise layer is larger than the picture, so that it can move


@dataclass(frozen=True)
class Motion:
    """One episode in world units: positions in [0, 1]², velocities in 1/s."""

    gripper: Floats
    """(frames, 2)"""
    target: Floats
    """(frames, 2)"""
    others: Floats
    """(frames, objects, 2): things in the picture that mean nothing"""
    state: NDArray[np.float32]
    """(frames, state_dim): gripper position, its velocity so far, then values both determine"""
    action: NDArray[np.float32]
    """(frames, action_dim): GAIN * (target - gripper), the velocity from here, then values it determines"""


def episode_motion(settings: SynthSettings, episode: int) -> Motion:
    """How everything moves in an episode, for its rows and its pictures."""
    frames = max(settings.lengths[episode], settings.frame_counts[episode])
    rng = np.random.default_rng([settings.seed, episode])
    seconds = np.arange(frames) / float(settings.fps)
    target = _orbit(rng, seconds)
    others = np.stack([_orbit(rng, seconds) for _ in range(3)], axis=1)
    gripper = np.empty((frames, 2))
    gripper[0] = rng.uniform(0.1, 0.9, 2)
    for now in range(frames - 1):
        gripper[now + 1] = gripper[now] + GAIN * (target[now] - gripper[now]) / float(settings.fps)
    velocity = GAIN * (target - gripper)
    before = np.concatenate([np.zeros((1, 2)), velocity[:-1]])
    state = _widen(np.concatenate([gripper, before], axis=1), settings.state_dim)
    action = _widen(velocity, settings.action_dim)
    if settings.coded:
        for numbers in (state, action):
            numbers[:, -2] = episode
            numbers[:, -1] = np.arange(frames)
    return Motion(gripper, target, others, state, action)


def _orbit(rng: np.random.Generator, seconds: Floats) -> Floats:
    """A smooth closed path inside [0.1, 0.9]², (frames, 2)."""
    period = rng.uniform(3.0, 7.0, 2)
    phase = rng.uniform(0.0, 2 * np.pi, 2)
    reach = rng.uniform(0.2, 0.4, 2)
    return np.asarray(0.5 + reach * np.sin(2 * np.pi * seconds[:, None] / period + phase))


def _widen(values: Floats, dims: int) -> NDArray[np.float32]:
    """values (frames, d) as (frames, dims): cut, or continued by fixed mixtures of them."""
    extra = max(dims - values.shape[1], 0)
    mix = np.random.default_rng(7).normal(size=(values.shape[1], extra))
    return np.concatenate([values, np.tanh(values @ mix)], axis=1)[:, :dims].astype(np.float32)


class Scene:
    """The pictures of one episode as one camera sees them."""

    def __init__(self, settings: SynthSettings, motion: Motion, camera: int, episode: int) -> None:
        self._size = np.array([settings.width, settings.height - ROWS], dtype=np.float64)
        self._radius = 0.07 * float(self._size.min())
        self._motion = motion
        self._camera = camera
        self._episode = episode
        self._shift = 0.06 * np.array([np.cos(2.4 * camera), np.sin(2.4 * camera)])
        rng = np.random.default_rng([settings.seed, episode, camera, 1])
        shape = (settings.height, settings.width)
        self._background = _background(np.random.default_rng([settings.seed, episode, 2]), shape)
        self._colours = rng.integers(30, 200, (3, 3))
        self._noise = [_noise_layer(rng, shape, NOISE_LEVEL[settings.texture]) for _ in range(2)]

    def picture(self, frame: int) -> Image:
        """(H, W, 3) uint8 RGB with its barcode."""
        image = self._backdrop(frame)
        radius = self._radius
        for colour, place in zip(self._colours, self._motion.others[frame], strict=True):
            _draw_disc(image, self._pixel(place), 1.3 * radius, colour)
        target = self._pixel(self._motion.target[frame])
        _draw_disc(image, target, 1.2 * radius, np.array([230, 30, 30]))
        gripper = self._pixel(self._motion.gripper[frame])
        _draw_disc(image, gripper, radius, np.array([250, 250, 250]))
        _draw_disc(image, gripper, 0.5 * radius, np.array([10, 10, 60]))
        draw_barcode(image, barcode_value(self._camera, self._episode, frame))
        return image

    def _pixel(self, place: Floats) -> Floats:
        """World (x, y) as pixel (x, y), below the barcode."""
        inside = MARGIN + (1 - 2 * MARGIN) * place + self._shift
        return np.asarray(inside * self._size + (0, ROWS))

    def _backdrop(self, frame: int) -> Image:
        """The background under two noise layers that drift against each other."""
        height, width = self._background.shape[:2]
        there = int((1 + np.sin(frame * 0.09)) * NOISE_SPARE / 2)
        back = int((1 + np.cos(frame * 0.13)) * NOISE_SPARE / 2)
        first = self._noise[0][there : there + height, back : back + width]
        second = self._noise[1][back : back + height, there : there + width]
        return np.asarray(self._background + first + second)


def _background(rng: np.random.Generator, shape: tuple[int, int]) -> Image:
    """A smooth gradient between four colours with a slow ripple, (H, W, 3) in [0, 127]."""
    y = np.linspace(0, 1, shape[0])[:, None, None]
    x = np.linspace(0, 1, shape[1])[None, :, None]
    corners = rng.uniform(0, 127, (2, 2, 3))
    mixed = (1 - y) * ((1 - x) * corners[0, 0] + x * corners[0, 1])
    mixed = mixed + y * ((1 - x) * corners[1, 0] + x * corners[1, 1])
    ripple = 15 * np.sin(2 * np.pi * (x * rng.uniform(1, 3) + y * rng.uniform(1, 3)))
    return np.asarray(np.clip(mixed + ripple, 0, 127).astype(np.uint8))


def _noise_layer(rng: np.random.Generator, shape: tuple[int, int], level: float) -> Image:
    """A texture of several grain sizes, (H + NOISE_SPARE, W + NOISE_SPARE, 3) in [0, 63]."""
    height, width = (side + NOISE_SPARE for side in shape)
    total = np.full((height, width, 3), 32.0)
    for grain in (2, 4, 8):
        small = rng.normal(0, level / 3, (height // grain + 1, width // grain + 1, 3))
        total += small.repeat(grain, axis=0).repeat(grain, axis=1)[:height, :width]
    return np.asarray(np.clip(total, 0, 63).astype(np.uint8))


def _draw_disc(image: Image, centre: Floats, radius: float, colour: NDArray[np.int64]) -> None:
    """A disc with a soft edge at a pixel (x, y), in place; what lies outside the picture is cut off."""
    left, top = np.maximum(np.floor(centre - radius - 1), 0).astype(int)
    right, bottom = np.ceil(centre + radius + 2).astype(int)
    patch = image[top:bottom, left:right]
    y = np.arange(top, top + patch.shape[0], dtype=np.float32)[:, None] - np.float32(centre[1])
    x = np.arange(left, left + patch.shape[1], dtype=np.float32)[None, :] - np.float32(centre[0])
    cover = np.clip(np.float32(radius + 0.5) - np.sqrt(x * x + y * y), 0, 1)[..., None]
    patch[...] = patch + cover * (colour.astype(np.float32) - patch)
