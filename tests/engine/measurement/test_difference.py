"""The difference of an output from the expected one, against formulas computed by hand."""

import math

import numpy as np
import pytest
import torch

from gpugate.measurement.difference import differences
from gpugate.parts import output_parts

EXPECTED = torch.tensor([[3.0, 4.0, 0.0], [0.0, 12.0, 0.0]])  # norm 13, largest 12


def found(output, expected=EXPECTED, expects_nan=False):
    (one,) = differences(output_parts(output), output_parts(expected), "fresh inputs", expects_nan)
    return one


def test_equal_outputs_differ_by_nothing() -> None:
    same = found(EXPECTED.clone())
    assert (same.relative_l2, same.max_error, same.top1_agreement, same.problem) == (0.0, 0.0, 1.0, None)


def test_errors_are_relative_to_the_expected_norm_and_to_its_largest_value() -> None:
    changed = EXPECTED.clone()
    changed[0, 0] += 0.3
    changed[1, 1] -= 0.4
    assert found(changed).relative_l2 == pytest.approx(0.5 / 13, rel=1e-6)
    assert found(changed).max_error == pytest.approx(0.4 / 12, rel=1e-6)


def test_errors_are_relative_to_what_is_expected_and_not_to_the_output() -> None:
    assert found(10 * EXPECTED).relative_l2 == pytest.approx(9)
    assert found(10 * EXPECTED).max_error == pytest.approx(9)


def test_sums_are_in_double_precision() -> None:
    expected = torch.full((1000, 1000), 1e-3)
    assert found(expected * (1 + 2**-20), expected).relative_l2 == pytest.approx(2**-20, rel=0.1)
    assert found(torch.tensor([60000.0, 0.0]).half(), torch.tensor([30000.0, 40000.0]).half()).relative_l2 == 1.0


def test_top1_agreement_is_the_share_of_rows_with_the_same_largest() -> None:
    flipped = EXPECTED.clone()
    flipped[0] = torch.tensor([5.0, 4.0, 0.0])
    assert found(flipped).top1_agreement == 0.5


@pytest.mark.parametrize("shape", [(6,), (6, 1), ()])
def test_what_has_no_classes_has_no_top1_agreement(shape) -> None:
    assert found(torch.ones(shape), torch.ones(shape)).top1_agreement is None


def test_any_error_of_an_expected_zero_is_infinite_and_none_is_none() -> None:
    assert found(torch.zeros(2, 2), torch.zeros(2, 2)).relative_l2 == 0.0
    assert found(torch.full((2, 2), 1e-9), torch.zeros(2, 2)).relative_l2 == math.inf


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ([EXPECTED], "it returned the parts [0] instead of a tensor of shape (2, 3)"),
        (None, "it returned no tensor: return a tensor, or a tuple, list, dict or data class of tensors"),
        (EXPECTED[:1], "it returned shape (1, 3) instead of (2, 3)"),
        (EXPECTED.half(), "it returned dtype torch.float16 instead of torch.float32"),
        (
            EXPECTED * math.nan,
            "it returned 6 NaN and 0 infinite of 6 values, and the baseline 0 NaN and 0 infinite: 6 of "
            "the values differ",
        ),
        (
            EXPECTED / 0,
            "it returned 3 NaN and 3 infinite of 6 values, and the baseline 0 NaN and 0 infinite: 6 of the "
            "values differ",
        ),
    ],
)
def test_what_cannot_be_compared_is_infinitely_far(output, problem) -> None:
    wrong = found(output)
    assert (wrong.problem, wrong.relative_l2, wrong.max_error) == (problem, math.inf, math.inf)


def test_one_nan_among_many_is_seen() -> None:
    output = torch.ones(100, 100)
    output[77, 3] = math.nan
    assert "1 NaN and 0 infinite of 10,000 values" in str(found(output, torch.ones(100, 100)).problem)


def test_an_empty_output_proves_nothing() -> None:
    assert found(torch.ones(0, 10), torch.ones(0, 10)).problem == "it returned an empty tensor, with nothing to compare"


def test_a_nan_that_was_expected_is_never_within_a_tolerance() -> None:
    broken = found(EXPECTED, EXPECTED * math.nan)
    assert not broken.relative_l2 <= 1e9


def test_integers_and_gradients_are_compared_too() -> None:
    assert found(torch.tensor([3, 4]), torch.tensor([3, 5])).max_error == pytest.approx(0.2)
    assert found(torch.ones(3, requires_grad=True), torch.ones(3)).relative_l2 == 0.0


def test_complex_numbers_are_compared_with_their_imaginary_parts() -> None:
    expected = torch.tensor([3 + 4j, 12j])
    assert found(expected.real.to(expected.dtype), expected).relative_l2 == pytest.approx(160**0.5 / 13)
    assert found(torch.complex(expected.real, 1.1 * expected.imag), expected).max_error == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("output", "expected", "unequal"),
    [
        (torch.tensor([7, 8, 9]), torch.tensor([7, 8, 10]), 1),
        (torch.tensor([2**53 + 1]), torch.tensor([2**53]), 1),
        (torch.tensor([True, False]), torch.tensor([True, True]), 1),
        (torch.tensor([3, 4], dtype=torch.uint16), torch.tensor([3, 4], dtype=torch.uint16), 0),
    ],
)
def test_integers_and_booleans_are_counted_where_they_differ(
    output: torch.Tensor, expected: torch.Tensor, unequal: int
) -> None:
    assert (found(output, expected).unequal, found(output, expected).values) == (unequal, output.numel())


def test_packed_values_are_compared_by_their_codes() -> None:
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
    codes = torch.tensor([17, 200, 3], dtype=torch.uint8)
    expected, other = (one.view(torch.float4_e2m1fn_x2) for one in (codes, codes + 1))
    assert (found(expected, expected).unequal, found(other, expected).unequal) == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16])
def test_small_floats_are_compared_as_numbers(dtype: torch.dtype) -> None:
    assert found((2 * EXPECTED).to(dtype), EXPECTED.to(dtype)).relative_l2 == 1.0
    assert found(EXPECTED.to(dtype), EXPECTED.to(dtype)).problem is None


MASKED = torch.tensor([[1.0, -math.inf], [math.inf, 2.0]])
WITH_NAN = torch.tensor([1.0, math.nan])


def test_equal_infinities_are_counted_and_the_finite_rest_is_compared() -> None:
    off = MASKED.clone()
    off[1, 1] = 2.5
    one = found(off, MASKED)
    assert (one.not_finite, one.values, one.problem) == (2, 4, None)
    assert one.relative_l2 == pytest.approx(0.5 / 5**0.5)


@pytest.mark.parametrize(
    ("output", "expected", "expects_nan", "problem"),
    [
        (-MASKED, MASKED, False, "0 NaN and 2 infinite of 4 values, and the baseline 0 NaN and 2 infinite: 2 of the"),
        (MASKED.nan_to_num(), MASKED, False, "0 NaN and 0 infinite of 4 values, and the baseline 0 NaN and 2 infinite"),
        (MASKED.nan_to_num(posinf=3.0), MASKED, True, "0 NaN and 0 infinite of 4 values, and the baseline 0 NaN and 2"),
        (
            WITH_NAN,
            WITH_NAN,
            False,
            "1 NaN and 0 infinite of 2 values: where NaN is meant, declare Workload(expects_nan",
        ),
        (
            torch.ones(2),
            WITH_NAN,
            True,
            "0 NaN and 0 infinite of 2 values, and the baseline 1 NaN and 0 infinite: 1 of",
        ),
        (MASKED[:1, 1:], MASKED[:1, 1:], False, "no finite value"),
    ],
)
def test_values_that_are_not_finite_must_stand_at_the_same_places(
    output: torch.Tensor, expected: torch.Tensor, expects_nan: bool, problem: str
) -> None:
    assert problem in str(found(output, expected, expects_nan).problem)


def test_a_declared_nan_is_equal_to_nan() -> None:
    one = found(WITH_NAN, WITH_NAN, expects_nan=True)
    assert (one.problem, one.not_finite, one.relative_l2) == (None, 1, 0.0)


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
    assert several(hidden=(EXPECTED,)) == ["it returned no hidden[1], which the baseline returns"]
    assert several(more=EXPECTED) == ["it returned more, which the baseline does not return"]
    assert several(logits=iter([EXPECTED])) == [
        "it returned a list_iterator in logits, which can be read only once: return tensors, in tuples, lists, dicts "
        "or data classes"
    ]
