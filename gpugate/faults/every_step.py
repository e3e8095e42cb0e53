"""Faults that every step has: a synchronization, a launch, a copy, an output too old, memory that is never freed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from gpugate.workload import Context, Side

LEAKED_BYTES_PER_STEP = 2**20
LEAKED_BYTES_AT_MOST = 2**31


def synchronizing(context: Context, side: Side) -> Side:
    """The host waits for the device after every step."""

    def step(inputs: Any) -> torch.Tensor:
        output = side.step(inputs)
        torch.cuda.synchronize(context.device)
        return output

    return replace(side, step=step)


def launching(context: Context, side: Side) -> Side:
    """One more kernel, over a single value."""
    value = torch.ones(1, device=context.device)

    def step(inputs: Any) -> torch.Tensor:
        output = side.step(inputs)
        value.mul_(1.0)
        return output

    return replace(side, step=step)


def copying(context: Context, side: Side) -> Side:
    """The output goes to the host and back, or to the device and back where the step leaves it on the host.

    What comes back is dropped: an output of a pipeline may not be there yet.
    """

    def step(inputs: Any) -> torch.Tensor:
        output = side.step(inputs)
        output.to("cpu" if output.is_cuda else context.device).to(output.device)
        return output

    return replace(side, step=step)


class _Stale:
    """Steps that return the output of the step before; the first returns its own.

    Nothing waits for an output: a side that fills another tensor in every step has the old one kept, and one that
    fills the same tensor again, as the replay of a CUDA graph does, has it copied in stream order.
    """

    def __init__(self, side: Side) -> None:
        self._side = side
        self._latest: torch.Tensor | None = None
        self._filled_again = False

    def step(self, inputs: Any) -> torch.Tensor:
        before = self._latest
        if before is not None and self._filled_again:
            before = before.clone()
        output = self._side.step(inputs)
        if self._latest is not None and output.data_ptr() == self._latest.data_ptr():
            self._filled_again = True
        self._latest = output
        return output if before is None else before


def stale(context: Context, side: Side) -> Side:
    return replace(side, step=_Stale(side).step)


def leaking(context: Context, side: Side) -> Side:
    """Every step allocates memory that it keeps, up to a bound that no machine misses.

    Freed between blocks when half of the bound is reached: whenever steps are counted there is room to grow.
    """
    kept: list[torch.Tensor] = []
    most = LEAKED_BYTES_AT_MOST // LEAKED_BYTES_PER_STEP

    def step(inputs: Any) -> torch.Tensor:
        output = side.step(inputs)
        if len(kept) < most:
            kept.append(torch.empty(LEAKED_BYTES_PER_STEP, dtype=torch.uint8, device=context.device))
        return output

    def finish() -> None:
        side.finish()
        if len(kept) > most // 2:
            kept.clear()

    return replace(side, step=step, finish=finish)
