"""A linear readout of features, fitted in closed form: the last convolution of a network, which separates two classes.

Ridge regression of +-1 on the features (Hoerl and Kennard, Technometrics 12, 1970): minimizes the squared error plus
`PENALTY` times the mean variance of the features times the squared weights. The intercept is not penalized. A large
weight would only amplify what rounding does to a feature.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PENALTY = 1e-2


def coarse_targets(masks: Tensor, features: Tensor) -> Tensor:
    """float64 [n, h, w] from bool masks [n, H, W], for features [n, channels, h, w] of the same frames.

    The target is each cell's share of foreground, as -1 (none) to 1 (all of it): interpolated between cells, the
    targets change sign at the outline of the mask, within a fraction of a cell.
    """
    rows, columns = features.shape[-2:]
    return 2 * F.adaptive_avg_pool2d(masks[:, None].double(), (rows, columns))[:, 0] - 1


def ridge(features: Tensor, targets: Tensor, penalty: float = PENALTY) -> tuple[Tensor, Tensor]:
    """Weights, float64 [channels], and intercept, float64 [], on the CPU.

    `features` is [n, channels, h, w] on any device and `targets` [n, h, w]; products of features are summed in float64.
    """
    channels = features.shape[1]
    rows = features.double().movedim(1, -1).reshape(-1, channels)
    wanted = targets.to(rows).reshape(-1)
    mean, mean_wanted = rows.mean(0), wanted.mean()
    rows = rows - mean
    covariance = (rows.T @ rows / len(rows)).cpu()  # small: solving it on a GPU would cost a library's start there
    correlation = (rows.T @ (wanted - mean_wanted) / len(rows)).cpu()
    penalties = penalty * covariance.diagonal().mean() * torch.eye(channels, dtype=torch.float64)
    weights = torch.linalg.solve(covariance + penalties, correlation)
    return weights, mean_wanted.cpu() - mean.cpu() @ weights
