"""The stages that are one kernel in Triton compute what the stages in PyTorch do, at any size and to the frame's edge.

Triton's interpreter runs the kernels on a CPU, if it is chosen before Triton is imported: in a process of its own.
"""

from __future__ import annotations

import pytest

from tests.support.code_in_child import interpret

COMPARED = """
import torch
from gpugate.machine import children
from workloads.video import composite, preprocess, triton_stages

CPU, random, found = torch.device("cpu"), torch.Generator().manual_seed(0), {}
for height, width in ((96, 192), (100, 158)):  # an exact third, and a size whose pixels are mixed
    nv12 = torch.randint(256, (2, height * 3 // 2, width), dtype=torch.uint8, generator=random)
    for matrix in ("bt601", "bt709"):
        stages = triton_stages.Preprocess, preprocess.OnDevice
        ours, theirs = (make(height, width, CPU, matrix)(nv12) for make in stages)
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        found[f"input {height} {matrix}"] = float((ours - theirs).abs().max())
for height, width in ((96, 160), (200, 134), (540, 70)):  # tiles that end within the frame and beyond it; wider blurs
    frames = 2 if height == 96 else 1  # the interpreter takes a second for a few tiles
    nv12 = torch.randint(16, 236, (frames, height * 3 // 2, width), dtype=torch.uint8, generator=random)
    h, w = preprocess.input_size(height, width)
    logits = 4 * torch.randn(frames, 2, h, w, generator=random)
    logits[1:] = torch.tensor([-40.0, 40.0]).view(2, 1, 1)  # all foreground
    ours, theirs = (make(height, width, CPU)(nv12, logits) for make in (triton_stages.Composite, composite.OnDevice))
    assert torch.equal(ours[1:], nv12[1:])
    off = (ours[0].float() - theirs[0].float()).abs()
    found[f"levels {height}"], found[f"share {height}"] = float(off.max()), float((off > 0).float().mean())
children.parent.send(found)
"""


@pytest.mark.usefixtures("warm_children")
def test_a_stage_of_one_kernel_is_the_stage_in_pytorch() -> None:
    pytest.importorskip("triton")
    (found,) = interpret(COMPARED)
    allowed = {"input": 2e-6, "levels": 1, "share": 0.04}
    assert {name: off for name, off in found.items() if off > allowed[name.split()[0]]} == {}
