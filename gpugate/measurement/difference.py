"""Differences between an output and the FP32 baseline's output for the same input."""

from __future__ import annotations

import math
from typing import Literal

import torch

from gpugate.measurement.record import Difference

When = Literal["fresh inputs", "timed steps"]
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


def difference(output: object, expected: torch.Tensor, when: When) -> Difference:
    """Computes, in FP64, ||output - expected|| / ||expected||, max|output - expected| / max|expected| and top-1
    agreement."""
    problem = problem_with(output, expected)
    if problem is not None:
        return Difference(math.inf, math.inf, None, when, problem)
    assert isinstance(output, torch.Tensor)  # noqa: S101  # for the type checker
    out, ref = output.detach().cpu().double(), expected.detach().cpu().double()
    error = out - ref
    norm, largest = float(ref.norm()), float(ref.abs().max()) if ref.numel() else 0.0
    return Difference(
        relative_l2=_relative(float(error.norm()), norm),
        max_error=_relative(float(error.abs().max()) if error.numel() else 0.0, largest),
        top1_agreement=_top1_agreement(out, ref),
        when=when,
    )


def _relative(error: float, scale: float) -> float:
    if error == 0:
        return 0.0
    return error / scale if scale else math.inf


def problem_with(output: object, expected: torch.Tensor) -> str | None:
    """Returns the reason why the output cannot be compared with the expected one, or None."""
    problem = form_problem(output, expected)
    if problem is not None:
        return problem
    assert isinstance(output, torch.Tensor)  # noqa: S101  # for the type checker
    if output.numel() == 0:
        return "it returned an empty tensor, with nothing to compare"
    if not bool(torch.isfinite(output).all()):
        return "it returned NaN or infinity"
    return None


def form_problem(output: object, expected: torch.Tensor) -> str | None:
    """Returns the reason why the output's form cannot be compared with the expected one, or None. It reads no value,
    so it never waits for a running device."""
    if not isinstance(output, torch.Tensor):
        return f"it returned a {type(output).__name__}, not a tensor"
    if type(output) not in PLAIN_TENSORS:
        kind = type(output).__qualname__
        return f"it returned a {kind}, a subclass of torch.Tensor, which may compute later: return a plain tensor"
    if output.is_meta or output.layout is not torch.strided:
        kind = "meta tensor, which holds no values" if output.is_meta else f"tensor of layout {output.layout}"
        return f"it returned a {kind}: return a dense tensor on a device"
    if output.shape != expected.shape:
        return f"it returned shape {tuple(output.shape)} instead of {tuple(expected.shape)}"
    if output.dtype != expected.dtype:
        return f"it returned dtype {output.dtype} instead of {expected.dtype}"
    return None


def _top1_agreement(out: torch.Tensor, ref: torch.Tensor) -> float | None:
    if out.dim() < 2 or out.shape[-1] < 2:
        return None
    return float((out.argmax(-1) == ref.argmax(-1)).double().mean())
