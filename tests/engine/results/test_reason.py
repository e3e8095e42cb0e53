"""The words of every reason code are those of tests/golden/reasons.json, a sentence of at most 25 words each."""

import json
from pathlib import Path
from typing import get_args

import pytest

from gpugate.measurement.record import Resemblance
from gpugate.results.reason import Fact, Reason, ReasonCode, describe
from gpugate.results.verdict import NextStep, Outcome

SENTENCES = json.loads((Path(__file__).parents[2] / "golden/reasons.json").read_text(encoding="utf-8"))["reasons"]
SPEEDUP = {"speedup": 2.8, "speedup_low": 2.79, "speedup_high": 2.81}
NUMBERS = {**SPEEDUP, "optimized_ms": 10.9, "relative_l2": 2e-6, "compared_outputs": 5.0}


def test_every_code_has_words() -> None:
    assert {code for code, _, _ in SENTENCES} == {code.value for code in ReasonCode}


@pytest.mark.parametrize(("code", "facts", "words"), SENTENCES)
def test_a_code_and_its_facts_make_a_sentence(code: str, facts: dict[str, Fact], words: str) -> None:
    stored = {name: fact if isinstance(fact, str) else float(fact) for name, fact in facts.items()}
    assert describe((Reason(ReasonCode(code), stored),), NUMBERS) == [words]
    assert len(words.split()) <= 25


@pytest.mark.parametrize("resembles", [one for one in get_args(Resemblance) if one])
def test_every_kind_of_wrong_output_has_words(resembles: str) -> None:
    facts: dict[str, Fact] = {"wrong": 2, "steps": 33, "first_wrong": 5, "resembles": resembles}
    (found,) = describe((Reason(ReasonCode.STEPS_WRONG, facts),), {})
    assert found.startswith("2 of 33 steps are wrong, the first is step 5: it returned ")
    assert not found.endswith("returned ")


def test_the_sentences_are_in_the_order_of_the_reasons() -> None:
    reasons = (Reason(ReasonCode.NOT_ENGAGED, {"problem": "it fell back"}), Reason(ReasonCode.NO_BILL))
    assert describe(reasons, {}) == ["it fell back", "no time of the bill is compared with the record"]


def test_a_word_of_an_older_run_is_read_and_one_that_never_was_is_refused() -> None:
    assert ReasonCode("speedup_below_anchor") is ReasonCode.EARLIER_RULE
    assert NextStep("record-new-anchor") is NextStep.REPEAT
    assert Outcome("INCONCLUSIVE") is Outcome.UNDECIDED
    for noun, text in ((ReasonCode, "no code"), (NextStep, "no step"), (Outcome, "MAYBE")):
        with pytest.raises(ValueError, match="is not a valid"):
            noun(text)
    older = Reason(ReasonCode.SLOWER_THAN_RECORD, {"bound": "recorded", "value": 10.0, "allowed": 0.05})
    assert describe((older,), NUMBERS)[0].startswith("an earlier gpugate decided this by other rules")
