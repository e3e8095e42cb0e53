"""The end-to-end driving model: eight cameras and a command in, waypoints out.

The same ResNet-18 encodes every camera's picture; the mean over the remaining height makes each column of features a
token. A transformer fuses the tokens of all cameras with the token of the command, whose output becomes the waypoints.
"""

from __future__ import annotations

import copy
import functools

import torch
from torch import Tensor, nn

from workloads.driving.delivery import normalized
from workloads.driving.scenes import COMMANDS, WAYPOINTS, Rig
from workloads.parts.padded_stem import PaddedStem, padded_channels

FULL_RIG = Rig(cameras=8, height=256, width=704)
SMALL_RIG = Rig(cameras=2, height=64, width=96)  # small enough for a CPU to train on in a tenth of a second
STRIDE, FEATURES = 32, 512  # of ResNet-18: pixels per feature, and channels
ENCODER_PARAMETERS = 11_176_512  # ResNet-18 without its classifier
WIDTH, HEADS, LAYERS = 256, 8, 2
DROPOUT = 0.1


class DrivingModel(nn.Module):
    """images [batch, cameras, 3, height, width], commands int64 [batch] -> float32 [batch, WAYPOINTS, 2].

    uint8 images are normalized here, on the device; float32 images must be normalized already. The encoder runs in the
    `dtype` and `layout` of its input; autocast decides any further precision.
    """

    def __init__(self, rig: Rig) -> None:
        from torchvision.models import resnet18

        super().__init__()
        self.dtype, self.layout, self.missing_channels = torch.float32, torch.contiguous_format, 0
        self.encoder = nn.Sequential(*list(resnet18(weights=None).children())[:-2])  # without pooling and classifier
        self.to_token = nn.Linear(FEATURES, WIDTH)
        self.command = nn.Embedding(len(COMMANDS), WIDTH)
        self.camera = nn.Parameter(0.02 * torch.randn(rig.cameras, 1, WIDTH))
        self.column = nn.Parameter(0.02 * torch.randn(rig.width // STRIDE, WIDTH))
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, DROPOUT, activation="gelu", batch_first=True, norm_first=True
        )
        self.fusion = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        for one in self.fusion.layers:
            # cuDNN's attention, which torch prefers on Hopper, rounds its dropout to sixteenths: attention gets no
            # dropout.
            one.self_attn.dropout = 0.0
        self.to_waypoints = nn.Linear(WIDTH, 2 * WAYPOINTS)

    def forward(self, images: Tensor, commands: Tensor) -> Tensor:
        batch, cameras = images.shape[:2]
        pictures = images.flatten(0, 1)
        if pictures.dtype == torch.uint8:
            pictures = normalized(pictures)
        pictures = padded_channels(pictures, self.missing_channels).to(self.dtype, memory_format=self.layout)
        features = self.encoder(pictures)  # [batch*cameras, 512, h/32, w/32]
        tokens = self.to_token(features.mean(2).transpose(1, 2))  # [batch*cameras, w/32, WIDTH]
        tokens = tokens.unflatten(0, (batch, cameras)) + self.camera + self.column
        told = self.command(commands)[:, None]  # [batch, 1, WIDTH]
        fused = self.fusion(torch.cat((told, tokens.flatten(1, 2)), dim=1))  # [batch, 1 + cameras*w/32, WIDTH]
        waypoints: Tensor = self.to_waypoints(fused[:, 0]).float()
        return waypoints.view(batch, WAYPOINTS, 2)

    def pad_stem(self, channels: int) -> None:
        """Widens the first convolution to `channels` input channels; the channels beyond the colours are zeros."""
        self.encoder[0] = PaddedStem(self.encoder[0], channels)  # type: ignore[arg-type]
        self.missing_channels = channels - 3


def driving_model(rig: Rig, seed: int) -> DrivingModel:
    """A new copy of the seeded model, on the host: a change to it affects no other copy."""
    return copy.deepcopy(_initialized(rig, seed))


@functools.lru_cache(maxsize=2)
def _initialized(rig: Rig, seed: int) -> DrivingModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DrivingModel(rig)


def forward_flops(rig: Rig) -> float:
    """FLOPs of one frame: 2 per multiply-add of every convolution and matrix product; the rest is below 1 %."""
    return 2.0 * (rig.cameras * _encoder_multiply_adds(rig) + _fusion_multiply_adds(rig))


def training_flops(rig: Rig) -> float:
    """FLOPs of one frame: forward, and twice that backward, for inputs and weights. Pictures need no gradient."""
    return 3 * forward_flops(rig) - 2.0 * rig.cameras * _stem_multiply_adds(rig)


def parameter_count(rig: Rig) -> int:
    """The number of parameters: encoder 11.2 million; a fusion layer 12 WIDTH^2 weights, 13 WIDTH biases and scales."""
    linear = (FEATURES + 1) * WIDTH + (WIDTH + 1) * 2 * WAYPOINTS
    places = (len(COMMANDS) + rig.cameras + rig.width // STRIDE) * WIDTH
    return ENCODER_PARAMETERS + linear + places + LAYERS * (12 * WIDTH**2 + 13 * WIDTH)


def _stem_multiply_adds(rig: Rig) -> int:
    return 64 * 3 * 7 * 7 * (rig.height // 2) * (rig.width // 2)


def _encoder_multiply_adds(rig: Rig) -> int:
    """Per picture: a 7x7 stem, then four stages of four 3x3 convolutions, from the second on with a 1x1 shortcut."""
    total, narrow = _stem_multiply_adds(rig), 64
    for stride, wide in ((4, 64), (8, 128), (16, 256), (32, 512)):
        pixels = (rig.height // stride) * (rig.width // stride)
        shortcut = narrow * wide if wide != narrow else 0
        total += pixels * (9 * (narrow * wide + 3 * wide * wide) + shortcut)
        narrow = wide
    return total


def _fusion_multiply_adds(rig: Rig) -> int:
    """Per frame: tokens, then per layer 12 WIDTH^2 a token (attention 4, feed-forward 8), and tokens^2 twice."""
    columns = rig.cameras * (rig.width // STRIDE)
    tokens = columns + 1
    layer = 12 * tokens * WIDTH**2 + 2 * tokens**2 * WIDTH
    return columns * FEATURES * WIDTH + LAYERS * layer + WIDTH * 2 * WAYPOINTS
