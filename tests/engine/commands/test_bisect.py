"""`gpugate bisect` on a real history whose measurements are made up: the commit, its cause, and what it refuses."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpugate.commands.bisect import find_culprits, list_commits
from gpugate.commands.cli import main
from gpugate.errors import SPANS_GPUS, CompareError
from gpugate.results.duet import DuetProcess
from gpugate.session import duets
from gpugate.session.duets import DuetPlan, pytest_words
from gpugate.store.version import Version, git
from tests.conftest import TWO_CORES
from tests.engine.judging.test_duet import CASE, measured
from tests.engine.store.test_version import commit, worktrees

BROKEN = "does not build"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository; a process takes as many milliseconds a step as the file `step_ms` of a version has."""
    monkeypatch.setattr(duets, "run_process", run_process)
    monkeypatch.chdir(tmp_path)
    assert git(tmp_path, "init", "-q", "-b", "main") is not None
    (tmp_path / ".gitignore").write_text(".gpugate-cache/\n")
    return tmp_path


def run_process(plan: DuetPlan, head: Version, *_: object) -> DuetProcess:
    """The duet of both versions' files in the place of a process."""
    assert plan.case_ids is not None
    if plan.case_ids != (CASE,):
        return DuetProcess(plan.swapped, TWO_CORES)
    if not Path(plan.base, "step_ms").exists():
        return DuetProcess(plan.swapped, TWO_CORES, added=(CASE,))
    texts = [Path(root, "step_ms").read_text() for root in (plan.base, str(head.root))]
    if BROKEN in texts:
        return DuetProcess(plan.swapped, TWO_CORES, plan.case_ids, problems={CASE: f"quick of the head {BROKEN}"})
    base, now = map(float, texts)
    found = measured(now, base) if plan.swapped else measured(base, now)
    return DuetProcess(plan.swapped, TWO_CORES, plan.case_ids, {CASE: found})


def write(project: Path, *steps_ms: float | str) -> list[str]:
    """A commit for each time of a step; returns their ids."""
    made = []
    for number, step_ms in enumerate(steps_ms):
        (project / "step_ms").write_text(str(step_ms))
        (project / "number").write_text(str(number))
        made.append(commit(project, f"a step of {step_ms} ms"))
    return made


def test_the_commit_is_named_with_its_change_and_the_commit_before_is_measured_again(project: Path, capsys) -> None:
    commits = write(project, 10, 10, 10.01, 10.6, 10.61, 10.6)
    assert main(["bisect", CASE, "--good", commits[0]]) == 0
    printed = capsys.readouterr()
    first, second, *cause = printed.out.splitlines()
    assert first == f"{commits[3][:12]} a step of 10.6 ms"
    assert second == f"{CASE} against the commit before: +5.9 % (+5.4 %..+6.4 %) per step: SLOWER"
    assert "  a step: 10.01 ms -> 10.60 ms (+5.9 %)" in cause
    assert f"{commits[5][:12]} (5 of 5): +6.0 % (+5.5 %..+6.5 %): SLOWER\n" in printed.err
    assert worktrees(project) == 1


def test_a_culprit_beside_a_commit_that_does_not_build_is_not_certain(project: Path, capsys) -> None:
    commits = write(project, 10, 10, BROKEN, 10.6, 10.6)
    assert main(["bisect", CASE, "--good", commits[0]]) == 125
    printed = capsys.readouterr()
    assert printed.out == f"no commit is certain: {commits[2][:12]}, {commits[3][:12]}\n"
    assert f"{commits[2][:12]} (2 of 4): left out: quick of the head {BROKEN}\n" in printed.err


def test_ends_that_do_not_differ_are_refused(project: Path, capsys) -> None:
    commits = write(project, 10, 10.6, 10.05)
    assert main(["bisect", CASE, "--good", commits[0]]) == 1
    assert capsys.readouterr().out == f"{CASE} is not slower in HEAD than in {commits[0]}: +0.5 % per step\n"


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("tiny/quick", "there is no device 'quick': use auto, cpu, cuda or cuda:N"),
        (
            "quick",
            "quick is no id of a case: give WORKLOAD/OPTIMIZATION/DEVICE, as pytest --collect-only -q lists them",
        ),
        (
            "tiny/gone/cpu",
            "tiny/gone/cpu cannot be measured in {last} (it has no such case): give another case or --bad",
        ),
    ],
)
def test_a_case_that_cannot_be_measured_is_one_sentence(project: Path, capsys, case: str, sentence: str) -> None:
    commits = write(project, 10, 11)
    assert main(["bisect", case, "--good", commits[0]]) == 2
    assert capsys.readouterr().err.endswith(f"gpugate bisect: {sentence.format(last=commits[1][:12])}\n")


def test_the_perf_tests_are_named_below_the_folder_of_the_command(tmp_path: Path, monkeypatch) -> None:
    """An absolute path would name the tests of this version in every other one."""
    monkeypatch.chdir(tmp_path)
    assert pytest_words(None, "cpu")[0] == "--perf-device", "pytest finds them"
    (tmp_path / "perf_tests").mkdir()
    assert pytest_words(None, "cpu")[0] == "perf_tests"
    assert pytest_words([str(tmp_path / "services/x"), "a.py::test"], "cpu")[:2] == ["services/x", "a.py::test"]


def test_a_case_that_spans_gpus_and_a_good_end_without_the_case_are_one_sentence(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    before = commit(project, "nothing")
    write(project, 10, 11)
    assert main(["bisect", CASE, "--good", before]) == 2
    sentence = f"{before[:12]} has no case {CASE}: give a later --good, or the case's id there"
    assert capsys.readouterr().err.endswith(f"gpugate bisect: {sentence}\n")
    refused = DuetProcess(False, TWO_CORES, (CASE,), problems={CASE: SPANS_GPUS})
    monkeypatch.setattr(duets, "run_process", lambda *_: refused)
    assert main(["bisect", CASE, "--good", before]) == 2
    assert f"gpugate bisect: {CASE} cannot be measured in " in (said := capsys.readouterr().err)
    assert SPANS_GPUS in said


@pytest.mark.parametrize(
    ("good", "bad", "sentence"),
    [
        ("HEAD", "HEAD~1", "'HEAD' is no ancestor of 'HEAD~1': give a commit before it"),
        ("HEAD", "HEAD", "there is no commit between 'HEAD' and 'HEAD': give an earlier --good or a later --bad"),
    ],
)
def test_ends_in_the_wrong_order_are_one_sentence(project: Path, good: str, bad: str, sentence: str) -> None:
    write(project, 10, 11)
    with pytest.raises(CompareError) as error:
        list_commits(project, good, bad)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("culprit", "left_out", "named"),
    [
        *((culprit, (), [culprit]) for culprit in (1, 2, 33, 63, 64)),
        (30, (30, 31), [30, 31, 32]),
        (32, (30, 31), [30, 31, 32]),
        (33, (30, 31), [33]),
        (1, (2,), [1]),
        (64, range(1, 64), [*range(1, 65)]),
    ],
)
def test_the_search_names_the_culprit_or_all_that_it_may_be(
    culprit: int, left_out: Sequence[int], named: list[int]
) -> None:
    measured = list[int]()

    def is_slower(commit: int) -> bool | None:
        measured.append(commit)
        return None if commit in left_out else commit >= culprit

    assert find_culprits(64, is_slower) == named
    assert len(measured) <= 6 + len(left_out)
