"""`gpugate verdict NIGHT`: 0 for a green gate, 1 for a red one, 2 for whatever is no gate that ended."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.cli import main
from gpugate.results.case import CaseResult
from gpugate.results.verdict import CASE_CHECKS
from gpugate.workload import Point
from tests.support.stored_runs import case, edit, stored
from tests.support.tiny_project import TinyProject, check_no_traceback

ENDED: dict[str, Any] = {"gate": True, "exit_status": 0}
RUNS: dict[str, tuple[dict[str, Any], int]] = {
    "green": (ENDED, 0),
    "red": ({**ENDED, "exit_status": 1}, 1),
    "a problem": ({**ENDED, "exit_status": 1, "problems": ["no test held a verdict of tiny/pass/cuda"]}, 1),
    "interrupted": ({**ENDED, "interrupted": True}, 2),
    "killed": ({**ENDED, "exit_status": None}, 2),
    "no gate": ({**ENDED, "gate": False}, 2),
    "recording": ({"recording": True}, 2),
    "mutated": ({**ENDED, "mutated": "wrong:0.5"}, 2),
}


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.parametrize("folder", [True, False])
def test_the_exit_status_is_the_gates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, folder: bool
) -> None:
    changed, status = RUNS[kind]
    stored(tmp_path / "run.json", case("pass"), **changed)
    assert main(["verdict", str(tmp_path if folder else tmp_path / "run.json")]) == status
    out, error = capsys.readouterr()
    said = error if status == 2 else out
    assert said.count("\n") == 1
    assert str(tmp_path / "run.json") in said
    assert all(problem in said for problem in changed.get("problems", ()))


def sweep(*speedups: float) -> list[CaseResult]:
    """The points of a sweep, all recorded at 3.00x, whose knee a test held."""
    values = (2**power for power in range(len(speedups)))
    points = (
        (Point("batch", value), case(f"batch-{value}", made)) for value, made in zip(values, speedups, strict=True)
    )
    return [replace(one, point=point, held=("knee",)) for point, one in points]


CONTRADICTIONS: dict[str, tuple[list[CaseResult], dict[str, Any], int, str]] = {
    "held": (
        [case("pass", held=CASE_CHECKS), case("regressed", 2.8, held=("throughput",))],
        {},
        1,
        "REGRESSED throughput of tiny/regressed/cuda",
    ),
    "not held": ([case("regressed", 2.8, held=("equivalence",))], {}, 0, "is green"),
    "error": ([case("pass"), case("failed", None, error="no memory")], {}, 1, "the error of tiny/failed/cuda"),
    "problem": ([case("pass")], {"problems": ["no test held a verdict of tiny/x/cuda"]}, 1, "no test held a verdict"),
    "knee": (sweep(1.5, 1.5, 3.0), {}, 1, "REGRESSED knee of tiny/batch/cuda"),
    "good knee": (sweep(3.0, 3.0, 3.0), {}, 0, "is green"),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_the_held_verdicts_decide_whatever_exit_status_the_file_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    cases, changed, status, words = CONTRADICTIONS[kind]
    stored(tmp_path / "run.json", *cases, **{**ENDED, **changed})
    assert main(["verdict", str(tmp_path)]) == status
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert words in said


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("cases tiny/slow/cuda verdicts 1 outcome", "PASS", "the measurements of tiny/slow/cuda give other verdicts"),
        ("cases tiny/slow/cuda held", [], "no held verdict of tiny/slow/cuda"),
    ],
)
def test_a_gate_that_was_edited_is_not_green(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object, words: str
) -> None:
    stored(tmp_path / "run.json", case("slow", 0.88), **ENDED)
    edit(tmp_path / "run.json", field, value)
    assert main(["verdict", str(tmp_path)]) == 1
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("content", [None, "", "{}", '{"format": "gpugate-run", "format_version": 6}'])
def test_a_night_that_cannot_be_read_is_no_green_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content, encoding="utf-8")
    assert main(["verdict", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"gpugate verdict: {tmp_path}/run.json ")


def test_a_step_that_ends_the_process_with_0_is_no_green_night(
    tiny: TinyProject, capsys: pytest.CaptureFixture[str]
) -> None:
    night = str(tiny.path / "night")
    gate = ("--gate", "--perf-device=cpu", "-k", "outputs", f"--perf-report={night}")
    assert tiny.run(*gate).status == 0
    assert main(["verdict", night]) == 0
    tiny.workload("import os\n\ndef quick(context):\n    return Side(lambda x: os._exit(0))")
    assert tiny.run_apart(*gate).status == 0
    assert main(["verdict", night]) == 2
    check_no_traceback(capsys.readouterr().err)


@pytest.mark.parametrize("resume", [(), ("--perf-resume",)])
def test_a_process_that_ends_before_its_first_case_leaves_no_older_green_night(
    tiny: TinyProject, capsys: pytest.CaptureFixture[str], resume: tuple[str, ...]
) -> None:
    night = tiny.path / "night"
    gate = ("--gate", "--perf-device=cpu", "-k", "outputs", f"--perf-report={night}", *resume)
    assert tiny.run(*gate).status == 0
    files, before = sorted(night.iterdir()), (night / "run.json").read_bytes()
    tiny.write("tiny.py", "import os\n\nos._exit(0)")
    assert tiny.run_apart(*gate).status == 0
    tiny.workload()
    assert tiny.run(*gate, "-k", "nowhere").status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert main(["verdict", str(night)]) == 2
    assert (night / "run.json").read_bytes() == before
    assert tiny.run(*gate).status == 0
    assert main(["verdict", str(night)]) == 0
    assert sorted(night.iterdir()) == files
    check_no_traceback(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "status", "verdict"),
    [
        (("-k", "nowhere"), pytest.ExitCode.NO_TESTS_COLLECTED, 0),
        (("perf_tests/nowhere.py",), pytest.ExitCode.USAGE_ERROR, 0),
        (("--perf-budget=none",), pytest.ExitCode.USAGE_ERROR, 0),
        (("--no-such-option",), pytest.ExitCode.USAGE_ERROR, 0),
        (("--collect-only",), 0, 0),
        (("--help",), 0, 0),
        (("broken",), pytest.ExitCode.INTERRUPTED, 2),
    ],
)
def test_a_command_that_selects_no_case_leaves_an_earlier_night_and_a_gate_that_breaks_off_leaves_it_no_verdict(
    tiny: TinyProject, words: tuple[str, ...], status: int, verdict: int
) -> None:
    stored(tiny.path / "run.json", case("pass"), **ENDED)
    before = (tiny.path / "run.json").read_bytes()
    tiny.write("broken/test_broken.py", "raise ValueError('broken')\n")
    assert tiny.run("--perf-device=cpu", "--gate", "--perf-json=run.json", *words).status == status
    assert main(["verdict", str(tiny.path)]) == verdict
    assert (tiny.path / "run.json").read_bytes() == before
    assert len(list(tiny.path.glob("run.json*"))) == (1 if verdict == 0 else 2)
