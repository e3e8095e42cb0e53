"""Differences between the parts of an output and those of the FP32 baseline's output for the same input."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch

from gpugate.measurement.record import Difference
from gpugate.workload import Tolerance
from gpugate.workload.parts import PLAIN_TENSORS, Parts, opaque_part

PACKED = torch.float4_e2m1fn_x2
HELD_BYTES = 2**28  # of the host's memory
HELD_SHARE = 8  # of a GPU's free memory, an eighth
SURE = 4.0
RIGHT_ROWS = 0.2  # of all: noise leaves a few rows of one value each as they were, by chance
UNRELATED = 0.5  # of the norm of what is expected, or of its integers: zeros and unrelated values are off by all of it
When = Literal["fresh inputs", "timed steps"]
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def differences(output: Parts, expected: Parts, when: When, nan_is_equal: bool = False) -> list[Difference]:
    """Compares each tensor of an output, in FP64: ||output - expected|| / ||expected||, max|output - expected| /
    max|expected|, top-1 agreement, and of integers and booleans the number of values that differ.

    An output that cannot be compared has one difference, with the problem. Infinity is equal to the same infinity at
    the same place, and with `nan_is_equal` NaN to NaN.
    """
    problem = problem_with(output, expected, nan_is_equal)
    if problem is not None:
        return [Difference(math.inf, math.inf, None, when, problem)]
    tensors = [(name, part) for name, part in expected.items() if isinstance(part, torch.Tensor) and part.numel()]
    return [_compare(output[name], part, when, name) for name, part in tensors]


def _compare(output: torch.Tensor, expected: torch.Tensor, when: When, name: str) -> Difference:
    device = place_for(8 * expected.numel(), output.device)
    out, ref = numbers_of(output, device), numbers_of(expected, device)
    agreement, finite = _top1_agreement(out, ref), are_finite(ref)
    if not bool(finite.all()):  # both sides have the same values at the other places, see `problem_with`
        out, ref = out[finite], ref[finite]
    error = out - ref
    codes = [codes_of(part.to(device)) for part in (output, expected)] if is_discrete(expected) else None
    unequal = int((codes[0] != codes[1]).sum()) if codes else None
    not_finite = int(finite.numel() - finite.sum())
    return Difference(
        relative_l2=_relative(float(error.norm()), float(ref.norm())),
        max_error=_relative(_largest(error), _largest(ref)),
        top1_agreement=agreement,
        when=when,
        part=name,
        unequal=unequal,
        values=expected.numel() if not_finite or unequal is not None else 0,
        not_finite=not_finite,
    )


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _relative(error: float, scale: float) -> float:
    if error == 0:
        return 0.0
    return error / scale if scale else math.inf


def is_close(output: Parts, expected: Parts, tolerance: Tolerance) -> bool:
    """True where the error of each tensor is at most SURE times the tolerated one, and less than that of zeros.

    One of a thousand steps may be further off than the few outputs that the tolerance itself judges. Values are
    compared in their own precision, FP32 or more: in FP64, with all errors, a step took ten times as long.
    """
    if form_problem(output, expected) is not None:
        return False
    tensors = [(output[name], part) for name, part in expected.items() if isinstance(part, torch.Tensor)]
    return all(_is_within(one, part, tolerance) for one, part in tensors)


def _is_within(output: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> bool:
    if is_discrete(expected) and tolerance.equal_share is not None:
        unequal = int((codes_of(output.to(expected.device)) != codes_of(expected)).sum())
        return unequal <= _limit(1 - tolerance.equal_share) * expected.numel()
    ref = readable(expected)
    wide = torch.promote_types(ref.dtype, torch.float32)
    out, ref = readable(output).to(ref.device, wide), ref.to(wide)
    error, scale = out - ref, float(ref.norm())
    if not math.isfinite(scale):  # infinity, or squares beyond FP32
        out, ref = numbers_of(out, ref.device), numbers_of(ref, ref.device)
        same = (out == ref) | (out.isnan() & ref.isnan())
        error, scale = torch.where(same, 0.0, out - ref), float(torch.where(ref.isfinite(), ref, 0.0).norm())
    return float(error.norm()) <= _limit(tolerance.relative_l2) * scale


def has_right_rows(output: torch.Tensor, expected: torch.Tensor) -> bool:
    """True where a part of the rows of a wrong output is ten times closer than the whole: the others were left out."""
    if output.dim() == 0 or len(output) < 2:
        return False
    out, ref = numbers_of(output).nan_to_num(), numbers_of(expected).nan_to_num()
    error, norm = (one.reshape(len(one), -1).norm(dim=1) for one in (out - ref, ref))
    return float((error * norm.norm() < 0.1 * error.norm() * norm).double().mean()) >= RIGHT_ROWS


def _limit(tolerated: float) -> float:
    return min(SURE * tolerated, max(UNRELATED, 1.25 * tolerated))


def is_discrete(tensor: torch.Tensor) -> bool:
    """True for integers, booleans and packed values, which have no rounding."""
    return tensor.dtype is PACKED or not (tensor.is_floating_point() or tensor.is_complex() or tensor.is_quantized)


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the values in a type that torch computes with, on their device: FP8 as float32, packed ones as codes."""
    values = tensor.detach().resolve_conj().resolve_neg()
    if values.is_quantized:
        return values.dequantize()
    if values.dtype is PACKED:
        return values.view(torch.uint8)
    return values.float() if values.is_floating_point() and values.element_size() == 1 else values


def most_held_bytes(device: torch.device) -> int:
    """The most bytes of outputs, or of new inputs with their outputs, that a check holds at once."""
    if device.type == "cpu":
        return HELD_BYTES
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # cuda only
    return (torch.cuda.mem_get_info(device)[0] + cached) // HELD_SHARE  # cuda only


def place_for(size: int, device: torch.device) -> torch.device:
    """Returns the device that compares values of `size` bytes: this one, or the host where a GPU has too little memory.

    A GPU compares a large output within milliseconds, and the host within seconds.
    """
    return device if device.type == "cuda" and size <= most_held_bytes(device) else torch.device("cpu")


def numbers_of(tensor: torch.Tensor, device: torch.device | Literal["cpu"] = "cpu") -> torch.Tensor:
    """Converts values to float64 on the device, complex ones to complex128."""
    values = readable(tensor).to(device)
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def codes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bits of discrete values as integers, in one dimension."""
    return tensor.detach().contiguous().reshape(-1).view(_INTEGERS[tensor.element_size()])


def problem_with(output: Parts, expected: Parts, nan_is_equal: bool = False) -> str | None:
    """Returns the reason why the output cannot be compared with the expected one, or None."""
    problem = form_problem(output, expected)
    if problem is not None:
        return problem
    tensors = {name: part for name, part in output.items() if isinstance(part, torch.Tensor) and part.numel()}
    if not tensors:
        return "it returned an empty tensor, with nothing to compare"
    problems = (_value_problem(name, part, expected[name], nan_is_equal) for name, part in tensors.items())
    problem = next(filter(None, problems), None)
    if problem is None and not any(bool(are_finite(part).any()) for part in tensors.values()):
        return "it returned no finite value, with nothing to compare"
    return problem


def _value_problem(name: str, output: torch.Tensor, expected: torch.Tensor, nan_is_equal: bool) -> str | None:
    """Counts the values that are not finite, where they are not as expected or not declared."""
    if bool(are_finite(output).all()) and bool(are_finite(expected).all()):
        return None
    out, ref = numbers_of(output), numbers_of(expected)
    found = f"it returned {_count_not_finite(out)} of {out.numel():,} values{f' in {name}' if name else ''}"
    special = ~(out.isfinite() & ref.isfinite())
    differ = int((special & (out != ref) & ~(out.isnan() & ref.isnan())).sum())
    if differ:
        return f"{found}, and the baseline {_count_not_finite(ref)}: {differ:,} of the values differ"
    if bool(out.isnan().any()) and not nan_is_equal:
        return f"{found}: where NaN is meant, return a number in its place"
    return None


def _count_not_finite(values: torch.Tensor) -> str:
    return f"{int(values.isnan().sum()):,} NaN and {int(values.isinf().sum()):,} infinite"


def are_finite(tensor: torch.Tensor) -> torch.Tensor:
    """Finds the values that are finite numbers, on the tensor's device.

    On a CPU, a finite sum shows in a tenth of the time that all are: the answer is then a single True.
    """
    values = readable(tensor)
    quick = values.sum().isfinite() if values.is_cpu and values.is_floating_point() else None
    return quick if quick else values.isfinite()


def form_problem(output: Parts, expected: Parts) -> str | None:
    """Returns the reason why the output's form cannot be compared with the expected one, or None. It reads no value of
    a tensor, so it never waits for a running device."""
    opaque = opaque_part(output)
    if opaque is not None:
        return f"it returned {opaque}: return tensors, in tuples, lists, dicts or data classes"
    if output.keys() != expected.keys():
        found, wanted = (
            _describe(parts[""]) if "" in parts else f"the parts {', '.join(parts)}" for parts in (output, expected)
        )
        return f"it returned {found} instead of {wanted}"
    if not any(isinstance(part, torch.Tensor) for part in output.values()):
        return "it returned no tensor: return a tensor, or a tuple, list, dict or data class of tensors"
    return next(filter(None, (_part_problem(name, output[name], expected[name]) for name in expected)), None)


def _part_problem(name: str, output: object, expected: object) -> str | None:
    where = f" in {name}" if name else ""
    if not isinstance(output, torch.Tensor) or not isinstance(expected, torch.Tensor):
        same = type(output) is type(expected) and bool(np.all(output == expected))
        return None if same else f"it returned {_describe(output)} instead of {_describe(expected)}{where}"
    plain = type(output) in PLAIN_TENSORS and not output.is_meta and not output.is_nested
    if not plain or output.layout is not torch.strided:
        kind = f"{type(output).__qualname__} of layout {output.layout} on {output.device}"
        return f"it returned a {kind}{where}, which may hold no values: return a plain, dense tensor"
    if output.shape != expected.shape:
        return f"it returned shape {tuple(output.shape)} instead of {tuple(expected.shape)}{where}"
    if output.dtype != expected.dtype:
        return f"it returned dtype {output.dtype} instead of {expected.dtype}{where}"
    return None


def _describe(part: object) -> str:
    return f"a tensor of shape {tuple(part.shape)}" if isinstance(part, torch.Tensor) else repr(part)


def _top1_agreement(out: torch.Tensor, ref: torch.Tensor) -> float | None:
    if out.dim() < 2 or out.shape[-1] < 2 or out.is_complex():
        return None
    return float((out.argmax(-1) == ref.argmax(-1)).double().mean())
