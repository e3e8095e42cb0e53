"""The segmenter, which separates foreground from background: frames in, logits out.

Its weights are seeded and fitted to our own clips (see fitted_weights.py), or those of the user's checkpoint.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpugate.workload import Context, DeviceKind
from workloads.video.clip.clip import CLIPS, Clip
from workloads.video.segment.architectures import ARCHITECTURES, without_weights
from workloads.video.segment.fitted_weights import fitted_weights

AUXILIARY = "aux_classifier."  # torchvision's second head, for training only


class Segmenter(nn.Module):
    """The segmenter: frames [n, 3, h, w], normalized -> float32 logits [n, classes, h, w]; class 0 is the background.

    `coarse` gives logits for every eighth pixel, [n, classes, h/8, w/8], in the precision of its weights.
    """

    def __init__(self, coarse: nn.Module) -> None:
        super().__init__()
        self.coarse = coarse

    def forward(self, frames: Tensor) -> Tensor:
        return interpolated(self.coarse(frames), frames)


def interpolated(coarse_logits: Tensor, frames: Tensor) -> Tensor:
    """float32 [n, classes, h, w] from any floating-point [n, classes, h/8, w/8], for frames [n, 3, h, w].

    The conversion comes before the interpolation: that is a 64th of the values, and rounds nothing more.
    """
    return F.interpolate(coarse_logits.float(), size=frames.shape[-2:], mode="bilinear", align_corners=False)


def foreground(logits: Tensor) -> Tensor:
    """bool [n, h, w] from logits [n, classes, h, w]: more than half of the probability is not the background's."""
    return logits.softmax(1)[:, 0] < 0.5


SEGMENTER_SETTING = {
    "segmenter-weights": "a state_dict of torchvision's FCN-ResNet101, on a CPU of its LR-ASPP MobileNetV3-Large"
}


def segmenter(kind: DeviceKind, context: Context, clip: Clip | None = None) -> Segmenter:
    """A new eval segmenter on the context's device, float32: FCN-ResNet101 for "cuda", LR-ASPP for "cpu".

    Without a checkpoint its weights are fitted to `clip`, by default the clip of this kind of device, and kept in the
    context's `cache_dir`. Raises ValueError, in one sentence that names the file, for a checkpoint that is no
    state_dict of this kind's network.
    """
    own = own_checkpoint(context)
    if own is not None:
        weights = checkpoint(kind, own)
    else:
        weights = fitted_weights(kind, clip or CLIPS[kind], context.seed, context.device, context.cache_dir)
    coarse = without_weights(kind, _classes(kind, weights))
    coarse.load_state_dict({name: value.to(context.device, copy=True) for name, value in weights.items()}, assign=True)
    return Segmenter(coarse).float().eval().requires_grad_(False)


def own_checkpoint(context: Context) -> Path | None:
    """The user's weights for the segmenter, if there are any."""
    given = context.settings.get("segmenter-weights")
    return None if given is None else Path(given)


def checkpoint(kind: DeviceKind, path: Path, option: str = "--perf-set segmenter-weights") -> Mapping[str, Tensor]:
    """The state_dict in `path` but for its auxiliary head, on the CPU.

    Raises ValueError, naming the file and the option that named it.
    """
    try:
        return stored_weights(kind, path)
    except ValueError as error:
        raise ValueError(f"{option} {error}") from error


@functools.lru_cache(maxsize=1)
def stored_weights(kind: DeviceKind, path: Path) -> Mapping[str, Tensor]:
    """The weights of the last file that was read; see `checkpoint`."""
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        weights = {name: value for name, value in stored.items() if not name.startswith(AUXILIARY)}
        without_weights(kind, _classes(kind, weights)).load_state_dict(weights, assign=True)
    except Exception as error:  # zip archives, unpickling, the file system and load_state_dict raise many errors
        reason = " ".join(str(error).split())[:120]
        problem = f"{path} holds no state_dict of torchvision's {ARCHITECTURES[kind].name}"
        advice = "write one with torch.save(model.state_dict(), path)"
        raise ValueError(f"{problem} ({type(error).__name__}: {reason}): {advice}") from error
    return weights


def _classes(kind: DeviceKind, weights: Mapping[str, Tensor]) -> int:
    return int(weights[f"{ARCHITECTURES[kind].readouts[0]}.weight"].shape[0])
