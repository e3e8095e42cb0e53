"""Faults of outputs: an output with a small error, and an output of which only half was computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree

from gpugate.workload import Build, Context, Side

Change = Callable[[torch.Tensor], torch.Tensor]


class _ChangedOutput:
    """A side that returns one buffer of its own, which `finish()` fills with the changed output of the last step.

    Before `finish()` the output of a pipeline may not be complete, and waiting for it would be another fault.
    """

    def __init__(self, side: Side, change: Change) -> None:
        self._side, self._change = side, change
        self._output: torch.Tensor | None = None
        self._buffer: torch.Tensor | None = None

    def step(self, inputs: Any) -> torch.Tensor:
        self._output = self._side.step(inputs).detach()
        if self._buffer is None:
            self._buffer = torch.empty_like(self._change(self._output))
        return self._buffer

    def finish(self) -> None:
        self._side.finish()
        if self._output is not None and self._buffer is not None:
            self._buffer.copy_(self._change(self._output))


def _change_output(side: Side, change: Change) -> Side:
    changed = _ChangedOutput(side, change)
    return replace(side, step=changed.step, finish=changed.finish)


def make_output_wrong(context: Context, side: Side, relative_l2: float) -> Side:
    """Adds seeded noise to the output, of `relative_l2` times its norm; to an output of zeros, of `relative_l2`.

    The steps raise ValueError for an output that is not floating-point.
    """
    noise: dict[torch.Size, torch.Tensor] = {}

    def add_noise(output: torch.Tensor) -> torch.Tensor:
        if not output.is_floating_point():
            raise ValueError(f"wrong perturbs floating-point outputs, and this one is {output.dtype}")
        if output.shape not in noise:
            drawn = torch.randn(output.shape, generator=torch.Generator().manual_seed(context.seed))
            noise[output.shape] = (drawn / drawn.norm()).to(output.device)
        exact = output.to(torch.promote_types(output.dtype, torch.float32))
        norm = exact.norm()
        error = relative_l2 * torch.where(norm > 0, norm, torch.ones_like(norm)) * noise[output.shape]
        return (exact + error).to(output.dtype)

    return _change_output(side, add_noise)


def skip_work(build: Build) -> Build:
    """Builds the side for half of the items, gives it the first half of every batch, and repeats its output.

    The steps raise ValueError for inputs and outputs whose first dimension does not fit the items per step.
    """

    def build_faulty(context: Context) -> Side:
        items, half = context.items, context.items // 2
        side = build(replace(context, items=half))

        def step(inputs: Any) -> torch.Tensor:
            return side.step(_first_half(inputs, items))

        return _change_output(replace(side, step=step), lambda output: _repeat(output, half, items))

    return build_faulty


def _first_half(inputs: Any, items: int) -> Any:
    if not any(_is_batch(leaf, items) for leaf in _pytree.tree_leaves(inputs)):
        raise ValueError(f"skip-work halves a batch, and no input's first dimension is the {items} items per step")
    return _pytree.tree_map(lambda leaf: leaf[: items // 2] if _is_batch(leaf, items) else leaf, inputs)


def _is_batch(leaf: object, items: int) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == items


def _repeat(output: torch.Tensor, half: int, items: int) -> torch.Tensor:
    if not _is_batch(output, half):
        raise ValueError(
            f"skip-work repeats half an output, and this one has shape {tuple(output.shape)}, not {half} rows"
        )
    return output[torch.arange(items, device=output.device) % half]
