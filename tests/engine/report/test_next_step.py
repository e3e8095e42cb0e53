"""The next step of a verdict: each command in its words is accepted, and is about the cases of the verdict alone."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace

import pytest

from gpugate.commands.cli import _parser
from gpugate.report.next_step import describe_next_step, describe_recording
from gpugate.results.duet import RecordedCode
from gpugate.results.run import RunResult
from gpugate.results.verdict import NextStep, Outcome, Verdict
from tests.support import stored_runs
from tests.support.tiny_project import PROMISE, TinyProject

COMMAND = re.compile(r"\b(?:pytest|gpugate) [^\n]+")
CASE = "tiny/quick/cpu"
# The steps that change a workload's code or need another device.
BY_HAND = {NextStep.USE_CUDA, NextStep.DECLARE_ENGAGEMENT}


def words_of(step: NextStep, command: str = "pytest perf_tests") -> str:
    case = replace(stored_runs.case("quick", kind="cpu"), case_id=CASE, recorded_code=RecordedCode("1a2b3c4d5e6f"))
    run = RunResult(stored_runs.MACHINE, stored_runs.STARTED, seed=0, gate=True, cases={CASE: case}, command=command)
    return describe_next_step(Verdict("speedup", CASE, Outcome.UNDECIDED, (), step), run)


def test_each_command_that_a_next_step_advises_is_accepted_and_selects_the_case_alone(
    tiny: TinyProject, subtests: pytest.Subtests
) -> None:
    tiny.workload(optimizations=f"{PROMISE}, {PROMISE.replace('quick', 'other', 1)}")
    tried = {step: COMMAND.findall(words_of(step)) for step in NextStep}
    assert {step for step, commands in tried.items() if not commands} == BY_HAND
    assert words_of(NextStep.CHECK_SIZE).startswith(
        "compare Size.flops and Size.bytes with what a step does; if they agree, end the other work on this machine, "
        "then pytest "
    )
    for command in {command for commands in tried.values() for command in commands}:
        with subtests.test(command):
            program, *words = shlex.split(command)
            if program == "gpugate":
                assert _parser(words).parse_args(words).program == f"gpugate {words[0]}"
                continue
            words = [word.replace("...", "a reason") for word in words]
            result = tiny.run(*words, "--collect-only", "-q")
            assert result.status == 0
            assert set(re.findall(r"::\w+\[(.+?)\]", result.text)) == {CASE}


def test_a_command_measures_by_the_threads_of_its_session() -> None:
    command = "OMP_NUM_THREADS=1 pytest 'my tests'"
    for step in (NextStep.REPEAT, NextStep.MEASURE_LONGER, NextStep.TRACE, NextStep.RECORD):
        assert words_of(step, command=command).startswith(f"{command} -k ")
    found = words_of(NextStep.FIND_COMMIT, command=command)
    assert found.startswith(f"OMP_NUM_THREADS=1 gpugate bisect {CASE} --good 1a2b3c4d5e6f --path 'my tests'\nif ")


def test_a_command_for_several_cases_selects_these_alone(tiny: TinyProject) -> None:
    tiny.workload(optimizations=", ".join(PROMISE.replace("quick", name, 1) for name in ("quick", "b", "c")))
    source = (tiny.path / "tiny.py").read_text(encoding="utf-8")
    tiny.write(
        "tiny.py", f"{source}\nfrom dataclasses import replace\nWORKLOADS += (replace(*WORKLOADS, name='very-tiny'),)"
    )
    ids = [f"{workload}/{name}/cpu" for workload in ("tiny", "very-tiny") for name in ("quick", "b", "c")]
    run = RunResult(stored_runs.MACHINE, stored_runs.STARTED, seed=0)
    run.cases = {one: replace(stored_runs.case(one), case_id=one) for one in ids}

    def select(wanted: list[str]) -> set[str]:
        _, *words, _ = shlex.split(describe_recording(run, wanted))
        return set(re.findall(r"::\w+\[(.+?/cpu)\]", tiny.run(*words, "--collect-only", "-q").text))

    for wanted in (ids[:1], ids[1:], ids):
        assert select(wanted) == set(wanted)
    run.selection = " -k tiny"
    assert select(ids) == set(ids)
    assert describe_recording(run, ids) == 'pytest perf_tests -k tiny --update-baselines="..."'
