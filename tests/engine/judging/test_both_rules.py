"""Today's rules beside the new ones, on generated evidence: they differ only where the design wants it."""

from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gpugate.judging import decide as old
from gpugate.judging import rules as new
from gpugate.results.case import CaseResult
from gpugate.results.run import Mode
from gpugate.results.verdict import Outcome
from tests.support.judged_cases import any_case, any_mode

SEEN: Counter[tuple[str, str, str]] = Counter()
CERTAIN = (Outcome.WRONG, Outcome.NOT_ENGAGED)


@settings(max_examples=3000, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def _compare(data: st.DataObject) -> None:
    result: CaseResult = data.draw(any_case)
    mode: Mode = data.draw(any_mode)
    if result.measurement is not None and result.measurement.pairs:
        result = replace(result, summary=result.summarize(result.measurement))
    try:
        before = {one.check: one for one in old.decide(result, mode, None)}
    except IndexError:  # a further process that counted nothing: the old rules cannot judge it
        assume(False)
    after = {one.check: one for one in new.decide(result, mode, None)}
    for check, was in before.items():
        now = after[check]
        SEEN[check, was.outcome.value, now.outcome.value] += 1
        if check == "equivalence":
            assert now.outcome is was.outcome
        if result.recorded_code is None and (was.outcome in CERTAIN or now.outcome in CERTAIN):
            assert (now.outcome is was.outcome) or (check == "counters"), (check, was, now)


def test_the_new_rules_agree_with_the_old_ones_on_outputs_and_engagement() -> None:
    SEEN.clear()
    _compare()
    assert {now for _, _, now in SEEN} >= {one.value for one in Outcome}
    for (check, was, now), count in sorted(SEEN.items()):
        print(f"{check:12s} {was:13s} -> {now:13s} {count}")
