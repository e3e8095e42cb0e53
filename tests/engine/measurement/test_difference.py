"""The difference of an output from the expected one, against formulas computed by hand."""

import math

import numpy as np
import pytest
import torch

from gpugate.measurement.difference import differences
from gpugate.workload.parts import output_parts

EXPECTED = torch.tensor([[3.0, 4.0, 0.0], [0.0, 12.0, 0.0]])  # norm 13, largest 12


def found(output, expected=EXPECTED, nan_is_equal=False):
    (one,) = differences(output_parts(output), output_parts(expected), "fresh inputs", nan_is_equal)
    return one


def changed(first: float, second: float) -> torch.Tensor:
    output = EXPECTED.clone()
    output[0, 0] += first
    output[1, 1] += second
    return output


COMPLEX = torch.tensor([3 + 4j, 12j])
TINY = torch.full((1000, 1000), 1e-3)


@pytest.mark.parametrize(
    ("output", "expected", "relative_l2", "max_error"),
    [
        (EXPECTED.clone(), EXPECTED, 0.0, 0.0),
        (changed(0.3, -0.4), EXPECTED, 0.5 / 13, 0.4 / 12),
        (10 * EXPECTED, EXPECTED, 9.0, 9.0),
        (torch.zeros(2, 2), torch.zeros(2, 2), 0.0, 0.0),
        (torch.full((2, 2), 1e-9), torch.zeros(2, 2), math.inf, math.inf),
        (TINY * (1 + 2**-20), TINY, 2**-20, 2**-20),  # sums are in double precision
        (torch.tensor([60000.0, 0.0]).half(), torch.tensor([30000.0, 40000.0]).half(), 1.0, 1.0),
        (torch.tensor([3, 4]), torch.tensor([3, 5]), 34**-0.5, 0.2),
        (torch.ones(3, requires_grad=True), torch.ones(3), 0.0, 0.0),
        (torch.complex(COMPLEX.real, 1.1 * COMPLEX.imag), COMPLEX, 0.1 * 160**0.5 / 13, 0.1),
        ((2 * EXPECTED).to(torch.bfloat16), EXPECTED.to(torch.bfloat16), 1.0, 1.0),
        ((2 * EXPECTED).to(torch.float8_e5m2), EXPECTED.to(torch.float8_e5m2), 1.0, 1.0),
    ],
)
def test_errors_are_relative_to_what_is_expected(
    output: torch.Tensor, expected: torch.Tensor, relative_l2: float, max_error: float
) -> None:
    one = found(output, expected)
    assert (one.relative_l2, one.max_error) == (pytest.approx(relative_l2, rel=0.1), pytest.approx(max_error, rel=0.1))
    assert one.problem is None


def test_top1_agreement_is_the_share_of_rows_with_the_same_largest() -> None:
    flipped = EXPECTED.clone()
    flipped[0] = torch.tensor([5.0, 4.0, 0.0])
    assert found(flipped).top1_agreement == 0.5
    assert found(torch.ones(6, 1), torch.ones(6, 1)).top1_agreement is None


class Later(torch.Tensor):
    """A tensor that may compute its values when somebody reads them."""


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (EXPECTED.as_subclass(Later), "it returned a Later of layout torch.strided on cpu, which may hold no values"),
        (EXPECTED.to("meta"), "it returned a Tensor of layout torch.strided on meta, which may hold no values"),
        (EXPECTED.to_sparse(), "it returned a Tensor of layout torch.sparse_coo on cpu"),
        (torch.nested.nested_tensor([EXPECTED]), "it returned a Tensor of layout torch.strided on cpu, which may"),
        ([EXPECTED], "it returned the parts [0] instead of a tensor of shape (2, 3)"),
        (None, "it returned no tensor: return a tensor, or a tuple, list, dict or data class of tensors"),
        (EXPECTED[:1], "it returned shape (1, 3) instead of (2, 3)"),
        (EXPECTED.half(), "it returned dtype torch.float16 instead of torch.float32"),
        (EXPECTED * math.nan, "it returned 6 NaN and 0 infinite of 6 values, and the baseline 0 NaN and 0 infinite: 6"),
    ],
)
def test_what_cannot_be_compared_is_infinitely_far(output, problem) -> None:
    wrong = found(output)
    assert found(torch.ones(0, 9), torch.ones(0, 9)).problem == "it returned an empty tensor, with nothing to compare"
    assert str(wrong.problem).startswith(problem)
    assert (wrong.relative_l2, wrong.max_error) == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("output", "expected", "unequal"),
    [
        (torch.tensor([7, 8, 9]), torch.tensor([7, 8, 10]), 1),
        (torch.tensor([2**53 + 1]), torch.tensor([2**53]), 1),
        (torch.tensor([True, False]), torch.tensor([True, True]), 1),
        (torch.tensor([3, 4], dtype=torch.uint16), torch.tensor([3, 4], dtype=torch.uint16), 0),
        (*(torch.tensor([code, 200], dtype=torch.uint8).view(torch.float4_e2m1fn_x2) for code in (17, 18)), 1),
    ],
)
def test_integers_and_booleans_are_counted_where_they_differ(
    output: torch.Tensor, expected: torch.Tensor, unequal: int
) -> None:
    assert (found(output, expected).unequal, found(output, expected).values) == (unequal, output.numel())


MASKED = torch.tensor([[1.0, -math.inf], [math.inf, 2.0]])
WITH_NAN = torch.tensor([1.0, math.nan])


def test_equal_infinities_are_counted_and_the_finite_rest_is_compared() -> None:
    off = MASKED.clone()
    off[1, 1] = 2.5
    one = found(off, MASKED)
    assert (one.not_finite, one.values, one.problem) == (2, 4, None)
    assert one.relative_l2 == pytest.approx(0.5 / 5**0.5)


@pytest.mark.parametrize(
    ("output", "expected", "nan_is_equal", "problem"),
    [
        (-MASKED, MASKED, False, "0 NaN and 2 infinite of 4 values, and the baseline 0 NaN and 2 infinite: 2 of the"),
        (MASKED.nan_to_num(), MASKED, False, "0 NaN and 0 infinite of 4 values, and the baseline 0 NaN and 2 infinite"),
        (MASKED.nan_to_num(posinf=3.0), MASKED, True, "0 NaN and 0 infinite of 4 values, and the baseline 0 NaN and 2"),
        (WITH_NAN, WITH_NAN, False, "1 NaN and 0 infinite of 2 values: where NaN is meant, return a"),
        (torch.ones(2), WITH_NAN, True, "0 NaN and 0 infinite of 2 values, and the baseline 1 NaN and 0 infinite: 1"),
        (MASKED[:1, 1:], MASKED[:1, 1:], False, "no finite value"),
    ],
)
def test_values_that_are_not_finite_must_stand_at_the_same_places(
    output: torch.Tensor, expected: torch.Tensor, nan_is_equal: bool, problem: str
) -> None:
    assert problem in str(found(output, expected, nan_is_equal).problem)


WHOLE = {"logits": EXPECTED, "hidden": (EXPECTED, torch.tensor([1, 2])), "cache": None, "name": "net"}


def several(**other: object) -> list[str]:
    """The parts that differ, with their problem, of an output with these other parts."""
    compared = differences(output_parts({**WHOLE, **other}), output_parts(WHOLE), "fresh inputs")
    return [f"{one.part} {one.problem or ''}".strip() for one in compared if one.problem or one.relative_l2]


def test_each_part_of_an_output_is_compared_and_the_wrong_one_named() -> None:
    assert several() == []
    assert several(hidden=(EXPECTED, torch.tensor([1, 3]))) == ["hidden[1]"]
    assert several(logits=2 * EXPECTED) == ["logits"]
    assert several(cache=EXPECTED) == ["it returned a tensor of shape (2, 3) instead of None in cache"]
    assert several(name="other") == ["it returned 'other' instead of 'net' in name"]
    assert several(name=np.array(["net"])) == ["it returned array(['net'], dtype='<U3') instead of 'net' in name"]
    assert several(logits=EXPECTED[:1]) == ["it returned shape (1, 3) instead of (2, 3) in logits"]
    parts = "logits, hidden[0], {}cache, name"
    assert several(hidden=(EXPECTED,)) == [
        f"it returned the parts {parts.format('')} instead of the parts {parts.format('hidden[1], ')}"
    ]
    assert several(logits=iter([EXPECTED])) == [
        "it returned a list_iterator in logits, which can be read only once: return tensors, in tuples, lists, dicts "
        "or data classes"
    ]
