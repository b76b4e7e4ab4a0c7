"""The policies that can be trained here, behind one call: a batch goes in, its loss comes out.

Normalisation is part of the model, so that a checkpoint is complete: what it was trained with is what it acts with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from robostream import StreamingLeRobotDataset

STATE, ACTION = "observation.state", "action"
Batch = Mapping[str, Any]


@dataclass(frozen=True)
class Inputs:
    """What the dataset offers a policy. state, action: their sizes, 0 for no state. chunk: actions to predict."""

    cameras: Sequence[str]
    state: int
    action: int
    chunk: int

    @staticmethod
    def of(dataset: StreamingLeRobotDataset, chunk: int) -> Inputs:
        """Raises SystemExit if the dataset lacks what imitation needs."""
        features = dataset.features
        if ACTION not in features or not dataset.cameras:
            raise SystemExit(f"imitation needs {ACTION!r} and a camera; the dataset has {', '.join(features)}")
        state = features[STATE].shape[0] if STATE in features else 0
        return Inputs([camera.key for camera in dataset.cameras], state, features[ACTION].shape[0], chunk)


class Normalise(nn.Module):
    """Mean 0 and deviation 1 for each key, from the dataset's own statistics. size: of pictures; None leaves theirs."""

    def __init__(self, stats: Mapping[str, Mapping[str, Any]] | None, keys: Sequence[str], size: int | None) -> None:
        super().__init__()
        self.keys, self.size = list(keys), size
        for number, key in enumerate(self.keys):
            known = (stats or {}).get(key)
            if known is None or "mean" not in known or "std" not in known:
                raise SystemExit(f"meta/stats.json has no mean and std of {key!r}, which is needed to normalise it")
            mean = torch.as_tensor(known["mean"], dtype=torch.float32)
            std = torch.as_tensor(known["std"], dtype=torch.float32)
            self.register_buffer(f"mean{number}", mean)
            self.register_buffer(f"std{number}", std.clamp_min(1e-6))

    def forward(self, batch: Batch) -> dict[str, Any]:
        """The batch with its keys normalised; pictures may be uint8, [B, C, H, W]."""
        done = dict(batch)
        for number, key in enumerate(self.keys):
            value = batch[key]
            if value.ndim == 4:
                value = shrink(value, self.size)
            done[key] = (value - getattr(self, f"mean{number}")) / getattr(self, f"std{number}")
        return done


def shrink(pictures: Tensor, size: int | None) -> Tensor:
    """Pictures [B, C, H, W], uint8 or in [0, 1] → float32 in [0, 1], [B, C, size, size], channels last."""
    scale = 255 if pictures.dtype == torch.uint8 else 1
    if size is not None:
        if pictures.is_cuda or scale == 1:  # a CPU shrinks bytes ten times as fast
            pictures = pictures.float()
        pictures = functional.interpolate(pictures, (size, size), mode="bilinear", antialias=True)
    return pictures.float().contiguous(memory_format=torch.channels_last) / scale


class KeypointEncoder(nn.Module):
    """Pictures [N, 3, S, S] → where on them things are, [N, 2 × points]: convolutions, then a softmax over places."""

    def __init__(self, size: int, points: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 24, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(24, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, points, 3, padding=1),
        ).to(memory_format=torch.channels_last)
        place = torch.linspace(-1, 1, size // 2)
        self.register_buffer("place", torch.stack(torch.meshgrid(place, place, indexing="ij")).flatten(1))
        self.sharpness = nn.Parameter(torch.ones(points, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        heat = self.layers(pictures).flatten(2).float()
        weight = torch.softmax(heat * self.sharpness, dim=2)
        return (weight @ self.place.T).flatten(1)


class BehaviourCloning(nn.Module):
    """A small policy: keypoints of all cameras and the state → a chunk of actions. Trains on a CPU in minutes."""

    def __init__(self, inputs: Inputs, size: int, points: int = 24, hidden: int = 256) -> None:
        super().__init__()
        self.inputs = inputs
        self.encoders = nn.ModuleList(KeypointEncoder(size, points) for _ in inputs.cameras)
        features = 2 * points * len(inputs.cameras) + inputs.state
        self.head = nn.Sequential(
            nn.Linear(features, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, inputs.chunk * inputs.action),
        )

    def forward(self, batch: Batch) -> Tensor:
        """Actions for a normalised batch, [B, chunk, action]."""
        seen = [encode(batch[key]) for key, encode in zip(self.inputs.cameras, self.encoders, strict=True)]
        if self.inputs.state:
            seen.append(batch[STATE])
        chunk: Tensor = self.head(torch.cat(seen, dim=1))
        return chunk.unflatten(1, (self.inputs.chunk, self.inputs.action))


def masked_loss(predicted: Tensor, wanted: Tensor, is_pad: Tensor) -> Tensor:
    """Mean squared error over the steps that lie in the episode. [B, T, D], [B, T, D], bool [B, T] → []."""
    inside = (~is_pad).unsqueeze(-1).float()
    squared = (predicted.float() - wanted) ** 2 * inside
    return squared.sum() / (inside.sum() * wanted.shape[-1]).clamp_min(1)


class BcTask(nn.Module):
    """`BehaviourCloning` with its normalisation and loss."""

    SIZE = 64  # what pictures are shrunk to

    def __init__(self, inputs: Inputs, stats: Mapping[str, Mapping[str, Any]] | None) -> None:
        super().__init__()
        self.normalise = Normalise(stats, _keys(inputs), self.SIZE)
        self.policy = BehaviourCloning(inputs, self.SIZE)

    def forward(self, batch: Batch) -> Tensor:
        batch = self.normalise(batch)
        return masked_loss(self.policy(batch), batch[ACTION], batch[f"{ACTION}_is_pad"])


class ActTask(nn.Module):
    """lerobot's ACT with the same normalisation, which its own is switched off for."""

    def __init__(
        self, inputs: Inputs, stats: Mapping[str, Mapping[str, Any]] | None, shapes: Mapping[str, Any]
    ) -> None:
        super().__init__()
        try:
            from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
            from lerobot.policies.act.configuration_act import ACTConfig
            from lerobot.policies.act.modeling_act import ACTPolicy
        except ImportError as error:
            raise SystemExit(f"--policy act needs lerobot ({error}); install it with: pip install lerobot") from None
        seen = {key: PolicyFeature(FeatureType.VISUAL, tuple(shapes[key])) for key in inputs.cameras}
        if inputs.state:
            seen[STATE] = PolicyFeature(FeatureType.STATE, (inputs.state,))
        config = ACTConfig(
            input_features=seen,
            output_features={ACTION: PolicyFeature(FeatureType.ACTION, (inputs.action,))},
            chunk_size=inputs.chunk,
            n_action_steps=inputs.chunk,
            normalization_mapping=dict.fromkeys(("VISUAL", "STATE", "ACTION"), NormalizationMode.IDENTITY),
            pretrained_backbone_weights=None,  # nothing is downloaded
        )
        self.normalise = Normalise(stats, _keys(inputs), None)
        self.policy = ACTPolicy(config)

    def forward(self, batch: Batch) -> Tensor:
        loss: Tensor = self.policy(self.normalise(batch))[0]
        return loss


def _keys(inputs: Inputs) -> list[str]:
    return [*inputs.cameras, *([STATE] if inputs.state else []), ACTION]


def make_policy(name: str, dataset: StreamingLeRobotDataset, chunk: int) -> nn.Module:
    """The policy of that name ("bc" or "act") for a dataset; calling it with a batch gives the loss, []."""
    inputs = Inputs.of(dataset, chunk)
    if name == "bc":
        return BcTask(inputs, dataset.meta.stats)
    height_first = {camera.key: (3, *camera.shape[:2]) for camera in dataset.cameras}
    return ActTask(inputs, dataset.meta.stats, height_first)
