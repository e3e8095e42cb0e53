"""ResNet-50 with seeded weights that behave like trained ones, or with those of the user's checkpoint."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from gpugate.workload import Context
from workloads.parts.photographs import photograph_batch

WEIGHTS_SETTING = {"resnet50-weights": "a state_dict of torchvision's resnet50"}
UNMEASURED_BATCH = 2**31  # an index that no measurement reaches: for calibration, compilation and autotuning
CALIBRATION_PHOTOGRAPHS = 16


def resnet50(context: Context) -> nn.Module:
    """A new eval model on the context's device, float32, with seeded weights or those of the user's checkpoint.

    Raises ValueError, in one sentence that names the file, for a checkpoint that is not a ResNet-50's state_dict.
    """
    own = context.settings.get("resnet50-weights")
    photographs = context.settings.get("photographs")
    weights = seeded_weights(context.seed, photographs) if own is None else checkpoint(Path(own))
    model = _without_weights()
    model.load_state_dict({name: value.to(context.device, copy=True) for name, value in weights.items()}, assign=True)
    return model.float().eval().requires_grad_(False)


def _without_weights() -> nn.Module:
    from torchvision.models import resnet50 as architecture

    with torch.device("meta"):
        model: nn.Module = architecture()
    return model


@functools.lru_cache(maxsize=1)
def checkpoint(path: Path) -> Mapping[str, Tensor]:
    """The state_dict in `path`, on the CPU; raises ValueError, in one sentence that names the file."""
    try:
        weights: Mapping[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
        _without_weights().load_state_dict(weights, assign=True)
    except Exception as error:  # zip archives, unpickling, the file system and load_state_dict raise many errors
        reason = " ".join(str(error).split())[:120]
        problem = f"--perf-set resnet50-weights={path} holds no state_dict of torchvision's resnet50"
        advice = "write one with torch.save(model.state_dict(), path)"
        raise ValueError(f"{problem} ({type(error).__name__}: {reason}): {advice}") from error
    return weights


@functools.lru_cache(maxsize=2)
def seeded_weights(seed: int, photographs: str | None) -> Mapping[str, Tensor]:
    """He initialization, random BatchNorm weights, and running statistics from photographs, on the CPU.

    With the statistics of an untrained BatchNorm, activations grow from block to block. The last BatchNorm of each
    block is small, as training makes it: else the blocks amplify rounding, and logits in FP16 are 2 % off, not 0.1 %.
    """
    from torchvision.models import resnet50 as architecture

    settings = {} if photographs is None else {"photographs": photographs}
    context = Context(torch.device("cpu"), CALIBRATION_PHOTOGRAPHS, seed, Path(), settings=settings)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        model = architecture().eval()
        for name, norm in model.named_modules():
            if isinstance(norm, nn.BatchNorm2d):
                ends_block = name.endswith("bn3")
                norm.weight.uniform_(*((0.1, 0.3) if ends_block else (0.5, 1.5)))
                norm.bias.normal_(0.0 if ends_block else 0.3, 0.2)
                norm.register_forward_pre_hook(_calibrate)
        model(photograph_batch(context, UNMEASURED_BATCH))
    return {name: value.clone() for name, value in model.state_dict().items()}


def _calibrate(norm: nn.BatchNorm2d, inputs: tuple[Tensor]) -> None:
    """Sets the running statistics for outputs of unit scale that keep half of their mean, as on unseen pictures."""
    mean = 0.5 * inputs[0].mean((0, 2, 3))
    variance = (inputs[0] - mean.view(1, -1, 1, 1)).square().mean((0, 2, 3))
    norm.load_state_dict({"running_mean": mean, "running_var": variance}, strict=False)
