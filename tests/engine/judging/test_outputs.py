"""The verdict about outputs by its code and facts, on made-up measurements."""

from dataclasses import replace
from typing import Any

import pytest

from gpugate.measurement.record import Difference, ProofResult, StepChecks
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.verdict import NextStep, Outcome, Verdict
from gpugate.workload import Tolerance
from tests.support.judged_cases import judge_equivalence
from tests.support.stored_runs import measurement

ALLOWED = Tolerance(relative_l2=1e-3, max_error=1e-2, top1_agreement=0.9)
CLOSE = Difference(1e-6, 1e-6, 1.0, "fresh inputs")
FAR = Difference(0.5, 0.5, 1.0, "fresh inputs")
TOO_FAR = {"measure": "relative_l2", "found": 0.5, "limit": 1e-3}


def judged(difference: Difference = CLOSE, **more: Any) -> Verdict:
    return judge_equivalence(measurement(differences=(difference,), **more), ALLOWED)


@pytest.mark.parametrize(
    ("difference", "facts"),
    [
        (FAR, TOO_FAR),
        (replace(CLOSE, max_error=0.5), {"measure": "max_error", "found": 0.5, "limit": 1e-2}),
        (replace(CLOSE, top1_agreement=0.5), {"measure": "top1_agreement", "found": 0.5, "limit": 0.9}),
        (replace(FAR, part="hidden[1]"), {"when": "hidden[1] of fresh inputs", **TOO_FAR}),
        (replace(CLOSE, unequal=1, values=64), {"unequal": 1, "values": 64}),
        (replace(CLOSE, problem="it holds NaN"), {"problem": "it holds NaN"}),
    ],
)
def test_a_wrong_output_is_wrong(difference: Difference, facts: dict[str, Any]) -> None:
    verdict = judged(difference)
    assert verdict.outcome is Outcome.WRONG
    assert verdict.reasons[0] == Reason(ReasonCode.OUTPUTS_DIFFER, {"when": "fresh inputs", **facts})
    assert verdict.next_step is NextStep.TRACE


WRONG = {"wrong": 2, "steps": 9, "first_wrong": 4}


@pytest.mark.parametrize(
    ("checks", "code", "facts"),
    [
        (StepChecks(9, 2, 4, "zeros"), ReasonCode.STEPS_WRONG, {**WRONG, "resembles": "zeros"}),
        (StepChecks(9, 2, 4, "unreadable", "a list"), ReasonCode.STEPS_WRONG, {**WRONG, "problem": "a list"}),
        (StepChecks(9, block_share=0.49), ReasonCode.STEPS_LEFT_OUT, {"share": 0.49}),
        (StepChecks(9, new_input_ratio=100.0), ReasonCode.OUTPUTS_REMEMBERED, {"times": 100.0}),
    ],
)
def test_a_finding_of_the_checking_pass_is_wrong(checks: StepChecks, code: ReasonCode, facts: dict[str, Any]) -> None:
    verdict = judged(step_checks=checks)
    assert (verdict.outcome, verdict.reasons[0]) == (Outcome.WRONG, Reason(code, facts))


@pytest.mark.parametrize(("resembles", "code"), [("zeros", "steps_wrong"), ("unknown", "outputs_differ")])
def test_a_cause_comes_before_an_error_and_an_unknown_cause_after_it(resembles: Any, code: str) -> None:
    assert judged(FAR, step_checks=StepChecks(9, wrong=1, first_wrong=0, resembles=resembles)).code.value == code


def test_a_proof_that_fails_is_wrong_and_one_that_holds_is_named_beside_right_outputs() -> None:
    verdict = judged(proofs=(ProofResult("it learns", problem="12 % right"), ProofResult("whole", "all frames")))
    assert (verdict.outcome, verdict.code) == (Outcome.WRONG, ReasonCode.DISPROVED)
    assert verdict.reasons[0].facts == {"proof": "it learns", "problem": "12 % right"}
    before = ProofResult("whole", "all frames", proved_at="2026-11-23T02:00:05+01:00")
    at_its_limits = Difference(1e-3, 1e-2, 0.9, "fresh inputs")
    right = judged(at_its_limits, proofs=(before,), step_checks=StepChecks(9, block_share=0.5))
    assert right.outcome is Outcome.PASS
    assert [one.code for one in right.reasons[:-1]] == [ReasonCode.OUTPUTS_AGREE] * 2
    facts = {"proof": "whole", "words": "all frames", "proved_on": "2026-11-23"}
    assert right.reasons[-1] == Reason(ReasonCode.PROVEN, facts)


@pytest.mark.parametrize(
    ("share", "outcome"), [(1.0, Outcome.WRONG), (0.98, Outcome.PASS), (0.99, Outcome.WRONG), (None, Outcome.WRONG)]
)
def test_integers_are_equal_unless_a_share_is_declared_or_they_are_numbers(share: float, outcome: Outcome) -> None:
    """One of 64 integers is off by half of the output's norm; as numbers, such as pixels, they are too far off."""
    off = Difference(0.5, 0.5, 1.0, "fresh inputs", unequal=1, values=64)
    found = measurement(differences=(off,))
    assert judge_equivalence(found, replace(ALLOWED, equal_share=share)).outcome is outcome
    near = replace(found, differences=(replace(off, relative_l2=1e-4, max_error=1e-4),))
    assert judge_equivalence(near, replace(ALLOWED, equal_share=None)).outcome is Outcome.PASS


def test_a_verdict_names_what_agrees_of_each_kind() -> None:
    integers, infinite = Difference(0.0, 0.0, None, "fresh inputs", unequal=0, values=64), replace(CLOSE, not_finite=3)
    for found, expected in (
        ((CLOSE, integers), [{"allowed"}, {"unequal", "values"}]),
        ((integers,), [{"unequal", "values"}]),
        ((infinite,), [{"allowed"}, {"not_finite"}]),
    ):
        verdict = judge_equivalence(measurement(differences=found), ALLOWED)
        assert [(one.code, set(one.facts)) for one in verdict.reasons] == [
            (ReasonCode.OUTPUTS_AGREE, names) for names in expected
        ]
