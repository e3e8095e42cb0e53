"""`gpugate.compare_callables`: two callables compared by one line of a notebook or script, without tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.text import Text

from gpugate.judging.rules import decide
from gpugate.machine.environment import describe
from gpugate.measurement.derived import with_derived
from gpugate.measurement.progress import silent
from gpugate.measurement.run import measure
from gpugate.measurement.settings import Settings
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.report.terminal import render_text, terminal_columns
from gpugate.report.view import RunView
from gpugate.results.case import CaseResult, Promise
from gpugate.results.run import RunResult
from gpugate.units import format_now
from gpugate.workload import (
    TOLERANCE_BY_DTYPE,
    Case,
    Context,
    DeviceKind,
    Optimization,
    Side,
    Size,
    Tolerance,
    Workload,
)
from gpugate.workload.parts import list_tensors, map_tensors


@dataclass(frozen=True)
class CallablesCompared:
    """The comparison of two callables: printed, and in a notebook, it is the table of a run."""

    run: RunResult

    @property
    def case(self) -> CaseResult:
        """Both sides' measurement, its summary and its verdicts."""
        return next(iter(self.run.cases.values()))

    def __str__(self) -> str:
        """The table, a line for each verdict that is not PASS, and the machine."""
        view, width = RunView(self.run), terminal_columns()
        found = [f"{verdict.check}: {verdict.reason}" for one in view.findings for verdict in one.verdicts]
        machine = [", ".join(words) for words in view.machine.values() if words]
        lines = (Text(line, overflow="fold") for line in (*found, *machine))
        return render_text([*view.overview.rich(width), *lines], width, colour=False)

    __repr__ = __str__


def compare_callables(
    reference: Callable[..., Any],
    optimized: Callable[..., Any],
    inputs: Sequence[Any] | torch.Tensor | Callable[[int], Sequence[Any] | torch.Tensor],
    *,
    tolerance: Tolerance = TOLERANCE_BY_DTYPE["float32"],
    min_speedup: float = 1.0,
    budget_s: float = 6.0,
) -> CallablesCompared:
    """Measures `optimized(*inputs)` against `reference(*inputs)` in pairs, compares their outputs, and judges both.

    `inputs` are arguments, or a function that makes those of an index, different ones for each; a tensor is a single
    argument. Of given arguments, the values of floating-point tensors are drawn anew by a permutation. Both sides run
    with torch's switches as they are.
    """

    def make(index: int) -> tuple[Any, ...]:
        return _arguments(inputs(index)) if callable(inputs) else _permute(_arguments(inputs), index)

    tensors = list_tensors(make(0))
    device, flags = tensors[0].device if tensors else torch.device("cpu"), TorchFlags.current()

    def side(function: Callable[..., Any]) -> Callable[[Context], Side]:
        def build(context: Context) -> Side:
            flags.apply()
            return Side(lambda arguments: function(*arguments))

        return build

    kind: DeviceKind = "cuda" if device.type == "cuda" else "cpu"
    size = Size(items=1, flops=0, bytes=0)  # not known: no ceiling is judged
    promised = Optimization("optimized", side(optimized), {kind: min_speedup}, tolerance={"float32": tolerance})
    workload = Workload("callables", side(reference), lambda context, index: make(index), {kind: size}, (promised,))
    case, run = Case(workload, promised, kind), RunResult(describe(device), format_now(), seed=0)
    try:
        TorchFlags().apply()  # the inputs are made with these
        with tempfile.TemporaryDirectory() as cache:
            context = Context(device, items=1, seed=0, cache_dir=Path(cache))
            found = with_derived(measure(case, context, Settings(budget_s=budget_s), silent), size, {})
    finally:
        flags.apply()
    result = CaseResult(case.id, workload.name, promised.name, case.reference_name, size, found)
    result.promise = Promise(min_speedup, tolerance, None)
    result.summary = result.summarize(found) if found.pairs else None
    result.verdicts, run.wall_s = decide(result, run.mode), found.wall_s
    run.cases[case.id] = result
    return CallablesCompared(run)


def _arguments(given: Sequence[Any] | torch.Tensor) -> tuple[Any, ...]:
    return (given,) if isinstance(given, torch.Tensor) else tuple(given)


def _permute(arguments: tuple[Any, ...], index: int) -> tuple[Any, ...]:
    """The arguments with the values of each floating-point tensor in another order for each index."""
    generator = torch.Generator().manual_seed(index)

    def permute(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or not index:
            return tensor.clone()
        order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
        return tensor.detach().flatten()[order].view(tensor.shape)

    return tuple(map_tensors(permute, arguments))
