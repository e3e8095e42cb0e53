"""A first convolution for pictures with channels of zeros behind their own three."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PaddedStem(nn.Module):
    """`conv` for images [n, channels, h, w] with channels of zeros beyond its own: its weights get zeros there too.

    For 3 channels in channels_last, cuDNN pads them to 4 by a kernel of its own in every iteration.
    """

    def __init__(self, conv: nn.Conv2d, channels: int) -> None:
        super().__init__()
        self.conv, self.missing = conv, channels - conv.in_channels

    def forward(self, images: Tensor) -> Tensor:
        return F.conv2d(
            images, padded_channels(self.conv.weight, self.missing), None, self.conv.stride, self.conv.padding
        )


def padded_channels(tensor: Tensor, missing: int) -> Tensor:
    """[n, channels + missing, h, w]: zeros after the channels of `tensor`, or `tensor` itself where 0 are missing."""
    return F.pad(tensor, (0, 0, 0, 0, 0, missing)) if missing else tensor
