"""The trials of gates on a slower machine: how they are counted, kept and described."""

import errno
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpugate.results.run import RunResult
from tests.conftest import TWO_CORES
from tests.support.judged_cases import case, code, measured, verdicts
from tools import slower_machine
from tools.slower_machine import GateTrial, TrialError, describe, limit_cpu, read_trial


def trial(head_ms: float) -> GateTrial:
    run = RunResult(TWO_CORES, "2026-11-24T01:00:00+00:00", 1)
    made = case(measured(11.5), measured(11.5), recorded_code=code(head_ms))
    run.cases = {made.case_id: replace(made, verdicts=list(verdicts(made).values()))}
    return read_trial(run, "quota")


@pytest.mark.parametrize(("head_ms", "machine", "blamed"), [(10.0, True, False), (10.5, False, True)])
def test_a_gate_blames_the_machine_or_the_code(head_ms: float, machine: bool, blamed: bool) -> None:
    found = trial(head_ms)
    assert (found.blames_machine, found.blames_code) == (machine, blamed)


def test_a_gate_that_passes_blames_nothing() -> None:
    passed = GateTrial("quota", {"net/fast/cuda speedup": "PASS bound_held"})
    assert (passed.blames_machine, passed.blames_code) == (False, False)


def test_a_gate_without_a_record_of_the_machine_blames_nothing() -> None:
    found = GateTrial("threads", {"net/fast/cpu speedup": "NO_BASELINE no_record"})
    assert (found.finds_no_record, found.blames_machine, found.blames_code) == (True, False, False)
    assert describe([found]).splitlines()[-1] == "| OMP_NUM_THREADS=1 in place of all cores | 1 | 0 | 1 | 0 |"
    assert not trial(10.0).finds_no_record


def test_a_recording_that_records_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slower_machine, "_run", lambda root, words, environment: "no case was recorded")
    monkeypatch.setattr(
        slower_machine, "check_out", lambda ref, project, cache: nullcontext(SimpleNamespace(root=Path()))
    )
    trials = slower_machine.take_trials(["quota"], 1, "net", 1.0, {})
    with pytest.raises(TrialError, match=r"nothing was recorded, .*: no case was recorded"):
        next(trials)


def test_a_gate_that_timed_no_case_is_no_trial() -> None:
    with pytest.raises(TrialError, match="condition threads timed no case: select another one by -k"):
        read_trial(RunResult(TWO_CORES, "2026-11-24T01:00:00+00:00", 1), "threads")


def test_the_table_has_a_row_for_each_condition_that_was_tried() -> None:
    table = describe([trial(10.0), trial(10.0), trial(10.5)])
    assert table.splitlines()[-1] == "| a CPU quota of 60 % | 3 | 2 | 0 | 1 |"
    assert "OMP_NUM_THREADS" not in table


@pytest.mark.parametrize("refused", ["cpu.cfs_period_us", "cpu.cfs_quota_us", "cgroup.procs"])
def test_a_quota_that_is_refused_leaves_no_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def write(path: Path, text: str) -> int:
        if path.name == refused:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return len(text)

    monkeypatch.setattr(slower_machine, "CPU_GROUPS", tmp_path)
    monkeypatch.setattr(Path, "write_text", write)
    with pytest.raises(TrialError, match=r"\(Invalid argument\): leave out the condition quota"), limit_cpu(0.6):
        pass
    assert list(tmp_path.iterdir()) == []
