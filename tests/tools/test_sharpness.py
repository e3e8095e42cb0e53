"""The pages of the recorded cases' sharpness agree with the records and with the rules as they are."""

import numpy as np
import pytest

from gpugate import units
from tools import simulated_nights as nights
from tools.machines import H200, MACHINES, ROOT, Machine
from tools.sharpness import NAME, format_cases, format_head, judge_cases


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.folder)
def test_the_page_is_up_to_date(machine: Machine) -> None:
    """The simulated tables take minutes: the hash of all that they rest on stands for them."""
    page = (machine.results / NAME).read_text(encoding="utf-8")
    assert page.startswith(format_head(machine)), "run python -m tools.sharpness"
    assert page.endswith(format_cases(judge_cases(machine))), "run python -m tools.sharpness"


def table_below(heading: str, text: str) -> list[list[str]]:
    """The cells of each row of the first table whose headings begin so."""
    rows = text.partition(f"| {heading}")[2].partition("\n\n")[0].splitlines()[2:]
    return [row.strip("| ").split(" | ") for row in rows]


def test_the_document_about_trust_has_the_false_alarms_of_the_page() -> None:
    rows = table_below("nights on which nothing changed", (H200.results / NAME).read_text(encoding="utf-8"))
    _, _, drawn, anew, few, *_ = [row[2] for row in rows]
    cases = len(nights.load_entries())
    of_a_case = [units.percent(float(row[1]) / cases) for row in rows[2:5]]
    written = (ROOT / "docs/trust.md").read_text(encoding="utf-8")
    words = " ".join(written.split())
    assert f"At least one of {cases} cases has a false alarm in {drawn} of nights" in words
    assert f"in {anew} if records are drawn anew, and in {few} if each then has three processes" in words
    assert "{}, {} and {} of the gates of a case".format(*of_a_case) in words


@pytest.fixture(scope="module")
def suite() -> list[nights.Case]:
    return nights.load_cases()


def test_the_records_and_not_the_simulation_catch_a_slowdown(suite) -> None:
    """The sharpest case alarms on no night at its recorded speed, and on each one with a step 5 % slower."""
    sharp = [(case, nights.copy_record(case)) for case in suite if case.case_id == "resnet50-inference/fp16/cuda"]
    for slowdown, red in ((0.0, False), (nights.SLOWDOWN, True)):
        found = nights.simulate_nights(sharp, nights.NO_LOANS, 30, np.random.default_rng(1), slowdown)
        assert found.tolist() == [[red]] * 30


def test_a_simulated_bill_varies_as_the_recorded_ones_and_has_the_slowdown(suite) -> None:
    case = next(one for one in suite if one.case_id == "resnet50-inference/fp16/cuda")
    recorded, draw = nights.copy_record(case).bills, np.random.default_rng(1)
    logs = [np.log(one.optimized.counters["kernel_ms"]) for one in recorded]
    drawn = [np.log(nights.draw_bills(recorded, draw).optimized.counters["kernel_ms"]) for _ in range(400)]
    assert (np.mean(drawn), np.std(drawn)) == pytest.approx((np.mean(logs), np.std(logs, ddof=1)), rel=0.1)
    slower = nights.lengthen(recorded[0], case, np.log(1.05))
    rise_ms = slower.optimized.counters["kernel_ms"] - recorded[0].optimized.counters["kernel_ms"]
    assert rise_ms == pytest.approx(0.05 * case.remembered.current.optimized_ms)
    assert slower.reference == recorded[0].reference
