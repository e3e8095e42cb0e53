"""Twelve frames of a small clip, in the forms that encoders take, and libjpeg in place of nvJPEG."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.support.libjpeg import jpeg
from workloads.video import encoders
from workloads.video.clip import Clip, rendered
from workloads.video.frames import nv12_from_rgb, rgb_from_nv12

CLIP = Clip(160, 96, 12)


@pytest.fixture(scope="session")
def bgr() -> NDArray[np.uint8]:
    """uint8 [12, 96, 160, 3], as drawn."""
    return np.stack([rendered(CLIP, number)[0][:, :, ::-1] for number in range(CLIP.frames)])


@pytest.fixture(scope="session")
def nv12(bgr: NDArray[np.uint8]) -> Tensor:
    """uint8 [12, 144, 160]."""
    rgb = torch.from_numpy(np.ascontiguousarray(bgr[..., ::-1])).permute(0, 3, 1, 2).contiguous()
    return nv12_from_rgb(rgb, "bt601")


@pytest.fixture(scope="session")
def rgb(nv12: Tensor) -> Tensor:
    """uint8 [12, 3, 96, 160], as it comes out of a decoder: one pair of chroma for 2 x 2 pixels."""
    return rgb_from_nv12(nv12, "bt601")


@pytest.fixture(autouse=True)
def libjpeg(no_thread_stays: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with ThreadPoolExecutor(encoders.AT_ONCE) as threads:
        monkeypatch.setattr(encoders, "jpeg_threads", lambda: threads)
        monkeypatch.setattr(encoders, "_picture", lambda wait, frame: jpeg(frame))
        yield
