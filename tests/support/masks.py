"""Masks of a segmenter's logits, and the overlap of masks."""

from torch import Tensor


def foreground(logits: Tensor) -> Tensor:
    """bool [n, h, w] from logits [n, classes, h, w]: more than half of the probability is not the background's."""
    return logits.softmax(1)[:, 0] < 0.5


def intersection_over_union(masks: Tensor, others: Tensor) -> float:
    """The overlap of two bool tensors of one shape, over all their pixels together."""
    return int((masks & others).sum()) / int((masks | others).sum())
