"""Faults of every step: a synchronization, a launch, a copy, the output of the step before, memory never freed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from gpugate.parts import list_tensors, map_tensors
from gpugate.workload import Context, Side

LEAKED_BYTES_PER_STEP = 2**20
LEAKED_BYTES_AT_MOST = 2**31


def synchronize_every_step(context: Context, side: Side) -> Side:
    """Makes the host wait for the device after every step."""

    def step(inputs: Any) -> Any:
        output = side.step(inputs)
        torch.cuda.synchronize(context.device)
        return output

    return replace(side, step=step)


def launch_more(context: Context, side: Side) -> Side:
    """Launches one more kernel per step, over a single value."""
    value = torch.ones(1, device=context.device)

    def step(inputs: Any) -> Any:
        output = side.step(inputs)
        value.mul_(1.0)
        return output

    return replace(side, step=step)


def copy_output(context: Context, side: Side) -> Side:
    """Copies the output to the host and back, or to the device and back where the step leaves it on the host.

    The copy is dropped: the output of a pipeline may not be complete yet.
    """

    def step(inputs: Any) -> Any:
        output = side.step(inputs)
        for tensor in list_tensors(output):
            tensor.to("cpu" if tensor.is_cuda else context.device).to(tensor.device)
        return output

    return replace(side, step=step)


class _Stale:
    """Steps that return the output of the step before; the first step returns its own output.

    Nothing waits for an output. Where a side fills another tensor in every step, the old tensor is kept; where it fills
    one tensor again and again, as the replay of a CUDA graph does, the old values are copied in stream order.
    """

    def __init__(self, side: Side) -> None:
        self._side = side
        self._latest: Any = None
        self._filled_again = False

    def step(self, inputs: Any) -> Any:
        before = self._latest
        if before is not None and self._filled_again:
            before = map_tensors(torch.clone, before)
        output = self._side.step(inputs)
        places, latest = ([one.data_ptr() for one in list_tensors(value)] for value in (output, self._latest))
        self._filled_again = self._filled_again or places == latest
        self._latest = output
        return output if before is None else before


def return_stale_output(context: Context, side: Side) -> Side:
    return replace(side, step=_Stale(side).step)


def leak_memory(context: Context, side: Side) -> Side:
    """Makes every step allocate memory and keep it, up to a bound that every machine can spare.

    The memory is freed between blocks when half of the bound is reached: counted steps always have room to grow.
    """
    kept: list[torch.Tensor] = []
    most = LEAKED_BYTES_AT_MOST // LEAKED_BYTES_PER_STEP

    def step(inputs: Any) -> Any:
        output = side.step(inputs)
        if len(kept) < most:
            kept.append(torch.empty(LEAKED_BYTES_PER_STEP, dtype=torch.uint8, device=context.device))
        return output

    def finish() -> None:
        side.finish()
        if len(kept) > most // 2:
            kept.clear()

    return replace(side, step=step, finish=finish)
