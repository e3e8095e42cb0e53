"""`python -m tools.trust`: it takes the trials that are missing and judges them as a comparison does.

The stored trials are judged again: their reports hold the rules, the intervals and the words of the tables.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.errors import CompareError
from gpugate.judging.duet import judge_duets
from gpugate.results.duet import DuetOutcome, DuetProcess
from gpugate.session.duets import DuetPlan
from gpugate.store.version import Version
from tests.conftest import TWO_CORES
from tests.engine.judging.test_duet import measured
from tests.support.tiny_project import TinyProject, check_no_traceback, children
from tools.archive import RESULTS, list_files
from tools.trust import duets
from tools.trust.__main__ import main
from tools.trust.duet_report import judge_trials
from tools.trust.duets import FILE, Conditions, DuetTrial, TrustError, read_duets

ONE, TWO, NET = "toy/one/cpu", "toy/two/cpu", "net/fast/cpu"
CONDITIONS = Conditions(TWO_CORES, 10.0)
SLOWER, _, SAME, _ = DuetOutcome
FOLDER = RESULTS / "h100/duets/16-cores"


def test_a_stored_report_is_that_of_todays_rules(tmp_path: Path) -> None:
    """The page of all trials, which `tools.duet_figures` writes with each report, is judged again in its own test."""
    for path in list_files(FOLDER, "*.json"):
        (tmp_path / path.name).symlink_to(path)
    assert main(["--report-only", "--output", str(tmp_path)]) == 0
    stored = (FOLDER / "trust.md").read_text(encoding="utf-8")
    assert (tmp_path / "trust.md").read_text(encoding="utf-8") == stored, "run python -m tools.duet_figures"


def process(percents: dict[str, float], swapped: bool = False) -> DuetProcess:
    """A process in which the head's side of each case is slower by a percentage."""
    found = {}
    for name, percent in percents.items():
        base_ms, head_ms = 10.0, 10.0 + percent / 10
        both = (head_ms, base_ms) if swapped else (base_ms, head_ms)
        found[name] = replace(measured(*both), case_id=name, wall_s=4.0)
    return DuetProcess(swapped, TWO_CORES, tuple(percents), found, {})


class MadeUp:
    """Processes that find the seeded slowdown; the comparison number `ends_after` raises `error`."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, tuple[str, ...] | None]] = []
        self.busy: list[int] = []
        self.ends_after = 99
        self.error: BaseException = KeyboardInterrupt()

    def measure(self, plan: DuetPlan, head: Version, words: Sequence[str]) -> list[DuetProcess]:
        if len(self.asked) == self.ends_after:
            raise self.error
        percent = 0.0 if plan.fault is None else plan.fault.amount
        self.asked.append((percent, plan.case_ids))
        self.busy.append(len(children(os.getpid())))
        made = [process(dict.fromkeys((ONE, TWO), percent), swapped) for swapped in (False, True, False)]
        return [replace(one, problems={NET: "needs a GPU"}) for one in made] if plan.case_ids is None else made


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeUp:
    """In an empty folder."""
    made = MadeUp()
    monkeypatch.setattr(duets, "measure_duets", made.measure)
    monkeypatch.chdir(tmp_path)
    return made


def trust(*words: str) -> int:
    return main(["--output", "kept", *words])


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (CompareError("a process ended"), 2)])
def test_a_run_that_ends_early_reports_and_later_ones_take_what_is_missing(
    made_up: MadeUp, error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up.ends_after, made_up.error = 1, error
    assert trust("--trials", "1") == status
    said = capsys.readouterr()
    assert "1 comparison of the project with itself in 3 fresh processes" in " ".join(said.out.split())
    assert "the same command goes on from there\n" in said.err
    assert "not measured: net/fast/cpu: needs a GPU\n" in said.err
    made_up.ends_after = 99
    assert trust("--trials", "1") == 0
    assert trust("--trials", "2", "--slowdowns", "0,2.5") == 0
    both = (ONE, TWO)
    assert made_up.asked == [(0.0, None), (5.0, None), (2.5, None), (0.0, both), (2.5, both)]
    assert sorted(one.slow_percent for one in read_duets(Path("kept"))) == [0.0, 0.0, 2.5, 2.5, 5.0]
    assert "| all 2 cases | 4/4 |" in Path("kept/trust.md").read_text(encoding="utf-8")


def test_cores_are_kept_busy_meanwhile_and_no_loop_outlives_the_command(
    made_up: MadeUp, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(children(os.getpid()))
    assert trust("--trials", "1", "--slowdowns", "0", "--busy-cores", "2") == 0
    assert (made_up.busy, len(children(os.getpid()))) == ([before + 2], before)
    assert "while other programs kept 2 cores busy" in " ".join(capsys.readouterr().out.split())
    assert trust("--trials", "2", "--slowdowns", "0") == 2
    changed = "this run is of other conditions than earlier trials (--busy-cores 2 -> 0): give another folder"
    assert capsys.readouterr().err == f"python -m tools.trust: {changed}\n"


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (replace(CONDITIONS, environment=replace(TWO_CORES, driver="590")), "driver unknown -> 590"),
        (None, "holds the trial of duets-00.json: it is a copy or was renamed"),
    ],
)
def test_trials_of_other_conditions_and_copies_are_not_counted_together(
    tmp_path: Path, now: Conditions | None, said: str
) -> None:
    first = DuetTrial("00", CONDITIONS, 0, 5.0, ())
    FILE.write(tmp_path / "duets-00.json", first)
    FILE.write(tmp_path / "duets-01.json", first if now is None else replace(first, word="01", conditions=now))
    with pytest.raises(TrustError, match=f"duets-01.json.*{said}"):
        read_duets(tmp_path)


def test_a_real_run_catches_a_slowdown_in_both_roles(
    tiny: TinyProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tiny.path)
    status = main(["--trials", "1", "--slowdowns", "20", "--budget", "0.2", "--device", "cpu"])
    said = capsys.readouterr()
    check_no_traceback(said.out + said.err)
    assert status == 0, said.err
    (taken,) = read_duets(tiny.path / "gpugate-trust")
    assert [(one.slow_percent, one.outcome) for one in judge_trials([taken])] == [(20.0, SLOWER)]
    ((duet,), _) = judge_duets(taken.processes)
    assert [one.median for one in duet.processes] == pytest.approx([1.2] * 3, abs=0.02)
    assert [one.swapped for one in taken.processes] == [False, True, False]
    assert "process 1 of at most 12: all cases\n" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trials", "0"], "--trials is '0': give a whole number from 1 to 10000, such as 40"),
        (["--slowdowns", "2,1001"], "--slowdowns is '2,1001': give percentages from 0 to 1000, such as 0,3,5"),
        (["--report-only"], "--output gpugate-trust is no folder: give the one that the trials are in"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_and_nothing_is_written(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert capsys.readouterr().err == f"python -m tools.trust: {said}\n"
    assert list(tmp_path.iterdir()) == []
