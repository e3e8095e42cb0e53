"""The least work and bytes of a training step of ResNet-18, counted by hand."""

from __future__ import annotations

from gpugate.workload import Size

# For one picture of 224 x 224, forward and backward: a test counts them again. A picture of 32 x 32 has 1/49 of each,
# except for the last layer.
FLOPS, LAST_LAYER_FLOPS = 10_645_370_880, 30_720
VALUES_READ, VALUES_WRITTEN, IMAGE_VALUES = 2_183_168, 2_483_722, 150_528  # by layers with weights, forward
LAST_LAYER_READ, LAST_LAYER_WRITTEN = 512, 10
WEIGHTS = 11_181_642
WEIGHT_PASSES = 8  # read forward, backward and by the update; gradient and momentum written and read; weights written
AREA_RATIO = 49


def size(items: int, area_ratio: int = 1) -> Size:
    """The least work of one step, in FP32 and with one update.

    FLOPs: 2 per multiply-add, forward and for both gradients. Bytes: inputs and outputs of the layers with weights,
    forward; backward the gradient of their outputs, again their inputs, and the gradient of these, except that of the
    image.
    """
    flops = (FLOPS - LAST_LAYER_FLOPS) / area_ratio + LAST_LAYER_FLOPS
    read = (VALUES_READ - LAST_LAYER_READ) / area_ratio + LAST_LAYER_READ
    written = (VALUES_WRITTEN - LAST_LAYER_WRITTEN) / area_ratio + LAST_LAYER_WRITTEN
    values = items * (3 * read + 2 * written - IMAGE_VALUES / area_ratio) + WEIGHT_PASSES * WEIGHTS
    return Size(items=items, flops=items * flops, bytes=4.0 * values)
