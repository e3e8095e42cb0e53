"""A user's checkpoint of a network, read and tried before any weight of it is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn


def read_state_dict(
    path: Path, told: str, network: str, build: Callable[[Mapping[str, Tensor]], nn.Module], left_out: str | None = None
) -> Mapping[str, Tensor]:
    """The state_dict in `path` but for the names that begin with `left_out`, on the CPU.

    `build` makes the network, without weights, for this state_dict. Raises ValueError, in one sentence that names the
    file as `told` and torchvision's `network`, for a file that does not fit it.
    """
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        weights = {name: value for name, value in stored.items() if left_out is None or not name.startswith(left_out)}
        build(weights).load_state_dict(weights, assign=True)
    except Exception as error:  # zip archives, unpickling, the file system and load_state_dict raise many errors
        reason = " ".join(str(error).split())[:120]
        problem = f"{told} holds no state_dict of torchvision's {network}"
        advice = "write one with torch.save(model.state_dict(), path)"
        raise ValueError(f"{problem} ({type(error).__name__}: {reason}): {advice}") from error
    return weights
