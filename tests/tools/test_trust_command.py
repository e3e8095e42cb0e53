"""The tool `trust` with made-up processes: what it takes, in what order, how it ends, and what it says and leaves."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpugate.machine.environment import Environment
from gpugate.store.writable_folder import lock_folder
from tests.support.simulated_trials import Noise, trials
from tools.trust import fresh_worker
from tools.trust.command import main
from tools.trust.plan import Plan, share_of, wanted_trials
from tools.trust.trials import FILE, SLOWDOWNS, Conditions, TrialsFile, TrustError, read_all

CPU = Environment("cpu", "a CPU", "a CPU", 2, "3.12.3", packages={"torch": "2.11.0"})
ONE, TWO = "toy/one/cpu", "toy/two/cpu"
TEN = ("--trials", "10", "--processes", "4")


@dataclass
class MadeUp:
    """Processes that take simulated trials; one of them ends early as told."""

    case_ids: tuple[str, ...] = (ONE, TWO)
    skipped: dict[str, str] = field(default_factory=dict)
    ends: dict[int, tuple[int, BaseException]] = field(default_factory=dict)  # by process: after how many trials
    refuses: str = ""
    plans: list[Plan] = field(default_factory=list)
    words: list[Sequence[str]] = field(default_factory=list)

    def run(self, plan: Plan, words: Sequence[str]) -> None:
        self.plans.append(plan)
        self.words.append(words)
        if self.refuses:
            raise TrustError(self.refuses)
        keyword = words[words.index("-k") + 1] if "-k" in words else "toy"
        case_ids = tuple(case_id for case_id in self.case_ids if keyword.split()[0] in case_id)
        taken = [
            replace(trial, process=plan.process)
            for case_id in case_ids
            for number, slowdown in enumerate(share_of(plan, case_id))
            for trial in trials(Noise(pair=0.001), [slowdown], processes=1, repeats=1, case_id=case_id, seed=number)
        ]
        kept, error = self.ends.pop(plan.process, (len(taken), None))
        conditions = Conditions(CPU, plan.budget_s, {"toy": "0123"})
        FILE.write(Path(plan.output), TrialsFile(plan.process, conditions, case_ids, self.skipped, tuple(taken[:kept])))
        if error is not None:
            raise error


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeUp:
    """In an empty folder."""
    processes = MadeUp()
    monkeypatch.setattr(fresh_worker, "run_worker", processes.run)
    monkeypatch.chdir(tmp_path)
    return processes


def counts() -> dict[str, Counter[float]]:
    """The numbers of stored trials in the default folder, by case and slowdown."""
    kept = read_all(Path("gpugate-trust")).trials
    return {name: Counter(trial.slowdown for trial in kept if trial.case_id == name) for name in (ONE, TWO)}


def written() -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path("gpugate-trust").iterdir()}


def test_it_takes_all_trials_in_fresh_processes_and_reports(
    made_up: MadeUp, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TEN, "--budget", "2"]) == 0
    assert counts() == {ONE: wanted_trials(10, SLOWDOWNS[1:]), TWO: wanted_trials(10, SLOWDOWNS[1:])}
    assert [(plan.process, plan.processes, plan.budget_s) for plan in made_up.plans] == [
        (1, 4, 2.0),
        (2, 4, 2.0),
        (3, 4, 2.0),
        (4, 4, 2.0),
    ]
    assert made_up.plans[0].earlier is None
    assert made_up.plans[1].earlier == Conditions(CPU, 2.0, {"toy": "0123"})
    assert sorted(written()) == [
        ".gitignore",
        ".lock",
        *(f"trials-00{process}.json" for process in range(1, 5)),
        "trust.md",
    ]
    said = capsys.readouterr()
    assert said.out.startswith("a CPU, torch 2.11.0: 44 trials of 2 cases in 4 fresh processes\n")
    few = "4 processes are too few to estimate a gate's alarms, which needs 8: take more trials"
    assert said.out.endswith(f"{few}\ntrials and report are in gpugate-trust\n")
    assert said.err.splitlines()[:2] == ["process 1: 0 trials so far", "process 2: 18 trials so far"]


def test_what_pytest_is_told(made_up: MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "more/test_x.py", "-k", "one and not x", "-m", "gpu", "--device", "cuda:1"]) == 0
    told = [
        *("perf", "more/test_x.py", "--perf-device", "cuda:1", "-q", "-p", "gpugate.plugin"),
        "-p",
        "no:cacheprovider",
    ]
    assert made_up.words[0] == [*told, "-k", "one and not x", "-m", "gpu"]
    assert "too few" not in capsys.readouterr().out  # of the default number of processes


def test_more_trials_are_added_to_those_there(made_up: MadeUp) -> None:
    assert main([*TEN]) == 0
    before = written()
    assert main(["--trials", "20", "--processes", "4"]) == 0
    assert counts() == {ONE: wanted_trials(20, SLOWDOWNS[1:]), TWO: wanted_trials(20, SLOWDOWNS[1:])}
    assert [name for name, content in before.items() if name.startswith("trials") and written()[name] != content] == []


def test_an_interrupted_run_reports_and_the_same_command_goes_on(
    made_up: MadeUp, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up.ends = {2: (5, KeyboardInterrupt())}
    assert main([*TEN]) == 130
    said = capsys.readouterr()
    assert "23 trials of 2 cases in 2 fresh processes" in said.out
    assert said.err.endswith("the same command goes on from there\npython -m tools.trust: interrupted\n")
    assert "trust.md" in written()
    assert main([*TEN]) == 0
    assert counts() == {ONE: wanted_trials(10, SLOWDOWNS[1:]), TWO: wanted_trials(10, SLOWDOWNS[1:])}
    assert made_up.plans[2].process == 3


@pytest.mark.parametrize("words", [[*TEN], ["--report-only"]])
def test_a_damaged_file_is_named_before_anything_is_measured(
    made_up: MadeUp, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("gpugate-trust").mkdir()
    Path("gpugate-trust/trials-001.json").write_text("{", encoding="utf-8")
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("python -m tools.trust: gpugate-trust/trials-001.json cannot be used because it is cut off")
    assert len(said.splitlines()) == 1
    assert made_up.plans == []


def test_a_report_alone_measures_nothing(made_up: MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--report-only"]) == 2
    assert "gpugate-trust is no folder: give the one that the trials are in" in capsys.readouterr().err
    assert not Path("gpugate-trust").exists()
    assert main([*TEN]) == 0
    before = written()
    (Path("gpugate-trust") / "trust.md").unlink()
    assert main(["--report-only", "--output", "gpugate-trust"]) == 0
    assert written() == before
    assert len(made_up.plans) == 4
    for path in Path("gpugate-trust").glob("trials-*"):
        path.unlink()
    assert main(["--report-only"]) == 2
    assert "gpugate-trust contains no trials to report" in capsys.readouterr().err


def test_two_commands_do_not_share_a_folder(made_up: MadeUp, capsys: pytest.CaptureFixture[str]) -> None:
    with lock_folder(Path("gpugate-trust"), TrustError):
        assert main([*TEN]) == 2
    said = f"--output gpugate-trust is in use by another process (pid {os.getpid()}): wait for its end"
    assert capsys.readouterr().err == f"python -m tools.trust: {said}\n"
    assert made_up.plans == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trials", "0"], "--trials is '0': give a whole number from 1 to 10000, such as 40"),
        (["--processes", "x"], "--processes is 'x': give a whole number from 1 to 10000, such as 8"),
        (["--budget", "nan"], "--budget is 'nan': give seconds above 0, 1e+06 at most, such as 6"),
        (["--slowdowns", "2,101"], "--slowdowns is '2,101': give percentages from 0 to 100, such as 0,3,5"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(
    made_up: MadeUp, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == f"python -m tools.trust: {said}\n"
    assert list(Path().iterdir()) == []
