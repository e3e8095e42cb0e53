"""The trials of gates on a slower machine: a gate blames the machine or the code, and a table counts both."""

from dataclasses import replace

import pytest

from gpugate.results.run import RunResult
from tests.conftest import TWO_CORES
from tests.support.judged_cases import case, code, measured, verdicts
from tools.slower_machine import GateTrial, describe, read_trial


def trial(head_ms: float) -> GateTrial:
    run = RunResult(TWO_CORES, "2026-11-24T01:00:00+00:00", 1)
    made = case(measured(11.5), measured(11.5), recorded_code=code(head_ms))
    run.cases = {made.case_id: replace(made, verdicts=list(verdicts(made).values()))}
    return read_trial(run, "quota")


@pytest.mark.parametrize(("head_ms", "machine", "blamed"), [(10.0, True, False), (10.5, False, True)])
def test_a_gate_blames_the_machine_or_the_code(head_ms: float, machine: bool, blamed: bool) -> None:
    found = trial(head_ms)
    assert (found.blames_machine, found.blames_code) == (machine, blamed)


def test_the_table_has_a_row_for_each_condition_that_was_tried() -> None:
    table = describe([trial(10.0), trial(10.0), trial(10.5)])
    assert table.splitlines()[-1] == "| a CPU quota of 60 % | 3 | 2 | 0 | 1 |"
    assert "OMP_NUM_THREADS" not in table
