"""`gpugate diff A B`: two stored runs, and the profiles of steps that lie beside baselines."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.measurement.record import StepProfile
from gpugate.results.case import CaseResult
from tests.support.stored_runs import COUNTED, MACHINE, case, measured, stored

PROFILE = StepProfile(kernels={"conv": (57.0, 9.0)}, kernel_ms=9.0)


def profiled(name: str, speedup: float, profile: StepProfile = PROFILE, **counters: float) -> CaseResult:
    case_id = f"tiny/{name}/cuda"
    return case(
        name,
        measurement=measured(case_id, speedup, optimized_profile=profile, optimized_counters={**COUNTED, **counters}),
    )


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A run and the folder of a night after it: a case with more kernels, one that is as before, one that is gone."""
    monkeypatch.setenv("COLUMNS", "140")
    night = tmp_path / "night"
    night.mkdir()
    stored(tmp_path / "a.json", profiled("net", 3.0), profiled("same", 3.0), profiled("gone", 3.0))
    more = StepProfile(kernels={"conv": (57.0, 9.0), "mul": (1.0, 0.5)}, kernel_ms=9.5)
    stored(night / "run.json", profiled("same", 3.0), profiled("net", 3.0, more, kernels=59.0), case("skipped", None))
    return tmp_path / "a.json", night


def test_what_differs_between_two_runs_is_told_with_its_cause(runs, capsys) -> None:
    assert main(["diff", *map(str, runs)]) == 0
    said, complaints = capsys.readouterr()
    assert complaints == ""
    net = said[said.index("tiny/net/cuda\n") :].splitlines()
    assert net[1] == "  verdict: PASS -> REGRESSED; speedup: 3.00x (2.99..3.01) -> 3.00x (2.99..3.01)"
    assert net[2] == "  optimized 10.00 ms -> 10.00 ms, reference 30.00 ms -> 30.00 ms"
    assert net[3].startswith("  likely cause, against a.json: more kernels run: 57 -> 59 per step, among them mul")
    assert "  new: mul 0.500 ms\n" in said
    same = said[said.index("tiny/same/cuda\n") :].splitlines()
    assert same[1] == "  verdict: PASS in both; speedup: 3.00x (2.99..3.01) -> 3.00x (2.99..3.01)"
    assert same[3].startswith("  likely cause, against a.json: a step takes as long as before")
    assert said.startswith("measured in A (a.json) only: tiny/gone/cuda\n\ntiny/")
    assert "measured on" not in said
    assert "measured with" not in said


def test_what_got_slower_the_most_comes_first(runs, capsys) -> None:
    before, night = runs
    found = profiled("same", 3.0).measurement
    pairs = tuple(replace(pair, optimized_ms=20.0) for pair in found.pairs)
    slower = replace(found, instances=(replace(found.instances[0], pairs=pairs),))
    stored(night / "run.json", profiled("net", 3.0), case("same", measurement=slower))
    main(["diff", str(before), str(night)])
    warning, _, *lines = capsys.readouterr().out.splitlines()
    assert warning == "measured in A (a.json) only: tiny/gone/cuda"
    assert [line for line in lines if line.startswith("tiny/")] == ["tiny/same/cuda", "tiny/net/cuda"]
    assert lines[1].startswith("  verdict: PASS -> REGRESSED; speedup: 3.00x ")


def test_what_else_differs_between_two_runs_is_named(runs, capsys) -> None:
    before, night = runs
    stored(before, *(profiled(f"gone-{number}", 3.0) for number in range(7)), profiled("net", 3.0))
    stored(
        night / "run.json",
        profiled("net", 3.0),
        profiled("new", 3.0),
        environment=replace(MACHINE, driver="590.2"),
        source_hashes={"tiny": "another"},
    )
    assert main(["diff", str(before), str(night)]) == 0
    gone = ", ".join(f"tiny/gone-{number}/cuda" for number in range(5))
    assert capsys.readouterr().out.splitlines()[:5] == [
        f"measured with other software or settings: driver {MACHINE.driver} -> 590.2",
        "measured of another source: tiny",
        f"measured in A (a.json) only: {gone} and 2 more",
        "measured in B (night) only: tiny/new/cuda",
        "",
    ]


def test_a_fault_on_purpose_and_a_machine_that_was_not_well_are_warnings(runs, capsys) -> None:
    before, night = runs
    sick = profiled("net", 3.0)
    sick.environment_problem = "the copy ran at 60 %"
    stored(night / "run.json", sick, mutated="slow:20")
    assert main(["diff", str(before), str(night)]) == 0
    fault, unfit, *_ = capsys.readouterr().out.splitlines()
    assert fault == "B (night) was mutated by slow:20: its optimized sides have this fault on purpose"
    assert unfit.startswith("B (night) has no evidence of tiny/net/cuda (ENV_INVALID): the machine was not well, so me")


def test_runs_without_a_common_case_are_one_sentence(runs, capsys) -> None:
    before, night = runs
    other = night / "other.json"
    stored(other, profiled("other", 3.0))
    assert main(["diff", str(before), str(other)]) == 2
    assert capsys.readouterr().err == f"gpugate diff: {before} and {other} measured no case in common: give others\n"
