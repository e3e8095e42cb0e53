"""Faults of every step: a synchronization, a launch, a copy, the output of the step before, memory never freed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gpugate.parts import list_tensors, map_tensors
from gpugate.workload import Context, Side

LEAKED_BYTES_PER_STEP = 2**20
LEAKED_BYTES_AT_MOST = 2**31


def synchronize_every_step(context: Context, side: Side) -> Side:
    """Makes the host wait for the device after every step."""
    return _after_each_step(side, lambda output: torch.cuda.synchronize(context.device))


def launch_more(context: Context, side: Side) -> Side:
    """Launches one more kernel per step, over a single value."""
    value = torch.ones(1, device=context.device)
    return _after_each_step(side, lambda output: value.mul_(1.0))


def copy_output(context: Context, side: Side) -> Side:
    """Copies the output to the host and back, or to the device and back where the step leaves it on the host.

    The copy is dropped: the output of a pipeline may not be complete yet.
    """

    def copy(output: Any) -> None:
        for tensor in list_tensors(output):
            tensor.to("cpu" if tensor.is_cuda else context.device).to(tensor.device)

    return _after_each_step(side, copy)


def _after_each_step(side: Side, work: Callable[[Any], object]) -> Side:
    def step(inputs: Any) -> Any:
        output = side.step(inputs)
        work(output)
        return output

    return replace(side, step=step)


def return_stale_output(context: Context, side: Side) -> Side:
    """Makes every step return the output of the step before; the first step returns its own output.

    Nothing waits for an output. Where a side fills another tensor in every step, the old tensor is kept; where it fills
    one tensor again and again, as the replay of a CUDA graph does, the old values are copied in stream order.
    """
    latest, filled_again = None, False

    def step(inputs: Any) -> Any:
        nonlocal latest, filled_again
        before = map_tensors(torch.clone, latest) if filled_again else latest
        output = side.step(inputs)
        places, places_before = ([one.data_ptr() for one in list_tensors(value)] for value in (output, latest))
        filled_again = filled_again or places == places_before
        latest = output
        return output if before is None else before

    return replace(side, step=step)


def leak_memory(context: Context, side: Side) -> Side:
    """Makes every step allocate memory and keep it, up to a bound that every machine can spare.

    The memory is freed between blocks when half of the bound is reached: counted steps always have room to grow.
    """
    kept: list[torch.Tensor] = []
    most = LEAKED_BYTES_AT_MOST // LEAKED_BYTES_PER_STEP

    def keep_more(output: Any) -> None:
        if len(kept) < most:
            kept.append(torch.empty(LEAKED_BYTES_PER_STEP, dtype=torch.uint8, device=context.device))

    def finish() -> None:
        side.finish()
        if len(kept) > most // 2:
            kept.clear()

    return replace(_after_each_step(side, keep_more), finish=finish)
