"""The numbers of frames of a clip, by their luma."""

from torch import Tensor


def find_numbers(luma: Tensor, grids: Tensor) -> list[int]:
    """The number of the frame of the clip that is most like each of these; both are as of `luma_of_nv12`."""
    numbers: list[int] = (luma[:, None] - grids).square().mean((2, 3)).argmin(1).tolist()
    return numbers
