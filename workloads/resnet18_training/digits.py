"""The 1,797 real handwritten digits that ship inside scikit-learn, as small colour pictures."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from workloads.resnet18_training.cifar import CHANNELS, SIDE_PIXELS, Pictures

BRIGHTEST = 16  # of scikit-learn's values
UNSEEN = 5  # every so many digits, one is kept for the test; the file mixes the writers


def digits() -> tuple[Pictures, Pictures]:
    """1,437 digits to train on and 360 to test with: 8 x 8 resized to 32 x 32, three equal channels.

    Raises ImportError, in one sentence, without scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError(
            "scikit-learn, whose handwritten digits are learned, is missing: pip install scikit-learn"
        ) from error
    found = load_digits()
    small = torch.from_numpy(found.images).float().div(BRIGHTEST)[:, None]  # [1797, 1, 8, 8]
    large = F.interpolate(small, size=SIDE_PIXELS, mode="bilinear", align_corners=False).mul(255).round()
    pixels = large.to(torch.uint8).expand(-1, CHANNELS, -1, -1).contiguous()
    labels = torch.from_numpy(found.target).long()
    unseen = torch.arange(len(labels)) % UNSEEN == 0
    return Pictures(pixels[~unseen], labels[~unseen]), Pictures(pixels[unseen], labels[unseen])
