"""The order of the pictures, with their crops and flips: drawn once, the same for every rung."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

PADDING = 4  # pixels around a picture, so that a crop of its own size can lie up to so many off its middle
EPOCHS = 4  # then the order repeats: a training of this suite lasts seconds


@dataclass(frozen=True)
class SampleOrder:
    """The picture id, the place of the crop in the padded picture, and the mirroring at every position; [positions]."""

    ids: Tensor  # int64
    tops: Tensor  # int64, from 0 to 2 * PADDING
    lefts: Tensor  # int64, from 0 to 2 * PADDING
    flips: Tensor  # bool

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device) -> SampleOrder:
        return SampleOrder(*(getattr(self, one.name).to(device) for one in fields(self)))


def sample_order(seed: int, pictures: int, multiple: int, mirrored: bool = True) -> SampleOrder:
    """EPOCHS shuffles of `pictures` ids, each cut to a multiple of `multiple` positions: no batch straddles two.

    Depends on the arguments alone. Raises ValueError where there are fewer pictures than `multiple`.
    """
    if pictures < multiple:
        raise ValueError(f"{pictures} pictures do not fill a step of {multiple}: give more pictures")
    generator = torch.Generator().manual_seed(seed)
    kept = pictures // multiple * multiple
    ids = torch.cat([torch.randperm(pictures, generator=generator)[:kept] for _ in range(EPOCHS)])
    tops, lefts = (torch.randint(2 * PADDING + 1, (len(ids),), generator=generator) for _ in range(2))
    flips = torch.randint(2, (len(ids),), generator=generator).bool()
    return SampleOrder(ids, tops, lefts, flips if mirrored else torch.zeros_like(flips))
