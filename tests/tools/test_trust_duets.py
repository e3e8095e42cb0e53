"""`python -m tools.trust --duet`: the trials that are missing, their files, the report, and one real run."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.errors import CompareError
from gpugate.judging.duet import time_ratio
from gpugate.results.duet import DuetOutcome, DuetProcess
from gpugate.session.duets import DuetPlan
from gpugate.store.version import Version
from tests.conftest import TWO_CORES
from tests.engine.judging.test_duet import measured
from tests.support.patience import wait_until
from tests.support.tiny_project import TinyProject, check_no_traceback, children, environment
from tools.trust import duets
from tools.trust.command import main
from tools.trust.duet_report import JudgedCase, analyse_duets, judge_trials, tables, text, title
from tools.trust.duets import FILE, DuetOrders, DuetTrial, keep_busy, next_trial, read_duets
from tools.trust.trials import Conditions, TrialsFile, TrustError

ONE, TWO, NET = "toy/one/cpu", "toy/two/cpu", "net/fast/cpu"
CONDITIONS = Conditions(TWO_CORES, 10.0, {"toy": "0123"})
SLOWER, FASTER, SAME, UNDECIDED = DuetOutcome


def process(percents: dict[str, float], swapped: bool = False, **problems: str) -> DuetProcess:
    """A process in which the head's side of each case is slower by a percentage."""
    found = {}
    for name, percent in percents.items():
        base_ms, head_ms = 10.0, 10.0 + percent / 10
        both = (head_ms, base_ms) if swapped else (base_ms, head_ms)
        found[name] = replace(measured(*both), case_id=name, wall_s=4.0)
    return DuetProcess(swapped, TWO_CORES, tuple(percents), found, problems)


def trial(slow_percent: float, *processes: DuetProcess, word: str = "00", **changes: object) -> DuetTrial:
    return replace(DuetTrial(word, CONDITIONS, 0, slow_percent, processes), **changes)  # type: ignore[arg-type]


def keep(folder: Path, *trials: DuetTrial) -> None:
    folder.mkdir(exist_ok=True)
    for one in trials:
        FILE.write(folder / one.path, one)


# --- what is missing --------------------------------------------------------------------------------------------------


def orders(trials: int, *slow_percents: float) -> DuetOrders:
    return DuetOrders(trials, slow_percents, 10.0, 0, ())


def test_slowdowns_take_turns_and_only_what_is_missing_is_next() -> None:
    counts, order = {(ONE, 0.0): 1, (TWO, 5.0): 2}, []
    while (wanted := next_trial(orders(2, 0.0, 5.0), (ONE, TWO), counts)) is not None:
        order.append(wanted)
        counts |= {(name, wanted[0]): counts.get((name, wanted[0]), 0) + 1 for name in wanted[1]}
    assert order == [(0.0, (TWO,)), (5.0, (ONE,)), (0.0, (ONE, TWO)), (5.0, (ONE,))]
    assert next_trial(orders(2, 0.0, 5.0), (), {}) is None


class MadeUp:
    """Processes that find the seeded slowdown; a case in `fails` has a problem, and process `ends` of all raises."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, tuple[str, ...]]] = []
        self.busy: list[int] = []
        self.fails: dict[str, str] = {}
        self.ends_after = 99
        self.error: BaseException = KeyboardInterrupt()

    def select(self, orders: DuetOrders) -> TrialsFile:
        return TrialsFile(1, replace(CONDITIONS, budget_s=orders.budget_s), (ONE, TWO), {NET: "needs a GPU"})

    def measure(self, plan: DuetPlan, head: Version, words: Sequence[str]) -> list[DuetProcess]:
        if len(self.asked) == self.ends_after:
            raise self.error
        assert (Path(plan.base), head.root, plan.count) == (Path.cwd(), Path.cwd(), False)
        case_ids, percent = plan.case_ids or (), 0.0 if plan.fault is None else plan.fault.amount
        self.asked.append((percent, case_ids))
        self.busy.append(len(children(os.getpid())))
        fine = {name: percent for name in case_ids if name not in self.fails}
        return [process(fine, swapped, **self.fails) for swapped in (False, True, False)]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeUp:
    """In an empty folder."""
    made = MadeUp()
    monkeypatch.setattr(duets, "measure_duets", made.measure)
    monkeypatch.setattr(duets, "_select", made.select)
    monkeypatch.chdir(tmp_path)
    return made


def trust(*words: str) -> int:
    return main(["--duet", "--output", "kept", *words])


def test_it_takes_all_trials_and_later_only_those_that_lack(
    made_up: MadeUp, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trust("--trials", "2", "--slowdowns", "5,0") == 0
    assert made_up.asked == [(percent, (ONE, TWO)) for percent in (0.0, 5.0, 0.0, 5.0)]
    said = capsys.readouterr()
    assert "torch 2.11.0+cpu: 4 comparisons of the project with itself in 12 fresh" in " ".join(said.out.split())
    assert "not measured: net/fast/cpu: needs a GPU\n" in said.err
    assert trust("--trials", "2", "--slowdowns", "0,2.5") == 0
    assert made_up.asked[4:] == [(2.5, (ONE, TWO))] * 2
    assert sorted(one.slow_percent for one in read_duets(Path("kept"))) == [0.0, 0.0, 2.5, 2.5, 5.0, 5.0]
    report = Path("kept/trust.md").read_text(encoding="utf-8")
    assert "### 2.5 % slower\n" in report
    assert "| all 2 cases | 4/4 |" in report


def test_a_case_that_cannot_be_measured_is_left_out_of_later_trials(
    made_up: MadeUp, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up.fails = {TWO: "it has no engine"}
    assert trust("--trials", "2", "--slowdowns", "0") == 0
    assert made_up.asked == [(0.0, (ONE, TWO)), (0.0, (ONE,))]
    assert f"not measured: {TWO}: it has no engine\n" in capsys.readouterr().err
    made_up.fails = {}
    assert trust("--trials", "2", "--slowdowns", "0") == 0
    assert made_up.asked[2:] == [(0.0, (TWO,))] * 2


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (CompareError("a process ended"), 2)])
def test_a_run_that_ends_early_reports_and_the_same_command_goes_on(
    made_up: MadeUp, error: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up.ends_after, made_up.error = 1, error
    assert trust("--trials", "1") == status
    said = capsys.readouterr()
    assert "1 comparison of the project with itself in 3 fresh processes" in " ".join(said.out.split())
    assert "the same command goes on from there\n" in said.err
    made_up.ends_after = 99
    assert trust("--trials", "1") == 0
    assert made_up.asked == [(0.0, (ONE, TWO)), (5.0, (ONE, TWO))]


def test_cores_are_kept_busy_meanwhile_and_no_loop_outlives_the_command(
    made_up: MadeUp, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(children(os.getpid()))
    assert trust("--trials", "1", "--slowdowns", "0", "--busy-cores", "2") == 0
    assert made_up.busy == [before + 2]
    assert len(children(os.getpid())) == before
    assert "while other programs kept 2 cores busy" in " ".join(capsys.readouterr().out.split())
    assert trust("--trials", "2", "--slowdowns", "0") == 2
    changed = "this run is of other conditions than earlier trials (--busy-cores 2 -> 0): give another folder"
    assert capsys.readouterr().err == f"python -m tools.trust: {changed}\n"


def test_a_busy_core_computes() -> None:
    before = set(children(os.getpid()))
    with keep_busy(1):
        (loop,) = set(children(os.getpid())) - before

        def ticks() -> int:  # of user time, see proc_pid_stat(5)
            return int(Path(f"/proc/{loop}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11])

        started = ticks()
        wait_until(lambda: ticks() > started + 5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--duet", "--processes", "3"], "each trial of --duet has its own: leave it out"),
        (["--duet", "--slowdowns", "3,x"], "--slowdowns is '3,x': give percentages from 0 to 1000, such as 0,3,5"),
        (["--duet", "--slowdowns", "1001"], "--slowdowns is '1001': give percentages"),
        (["--duet", "--busy-cores", "0"], "--busy-cores is '0': give a whole number from 1"),
        (["--busy-cores", "1"], "--busy-cores is an option of --duet"),
        (["--duet", "--report-only", "--busy-cores", "1"], "leave out --busy-cores"),
        (["--duet", "--report-only"], "gpugate-trust is no folder"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    made_up: MadeUp, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    assert made_up.asked == []


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_of_several_machines_are_read_as_one_folder(tmp_path: Path) -> None:
    first, second = trial(0.0, process({ONE: 0}), word="ab12"), trial(5.0, process({ONE: 5}), word="ff00")
    keep(tmp_path, second, first)
    (tmp_path / "trials-001.json").write_text("{", encoding="utf-8")
    assert [one.word for one in read_duets(tmp_path)] == ["ab12", "ff00"]
    (tmp_path / "duets-01.json").write_bytes((tmp_path / "duets-ab12.json").read_bytes())
    with pytest.raises(TrustError, match=r"duets-01\.json holds the trial of duets-ab12\.json: it is a copy"):
        read_duets(tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"conditions": replace(CONDITIONS, budget_s=5.0)}, r"\(budget 10 s -> 5 s\)"),
        ({"conditions": replace(CONDITIONS, source_hashes={"toy": "ff"})}, r"\(the source of toy changed\)"),
        ({"busy_cores": 1}, r"\(--busy-cores 0 -> 1\)"),
    ],
)
def test_trials_of_other_conditions_are_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    keep(tmp_path, trial(0.0, process({ONE: 0}), word="0a"), trial(0.0, process({ONE: 0}), word="0b", **changes))
    with pytest.raises(TrustError, match=said):
        read_duets(tmp_path)


# --- the report -------------------------------------------------------------------------------------------------------


def test_a_trial_is_judged_as_a_comparison_is() -> None:
    taken = [process({ONE: 5.0, TWO: 0.0}), process({ONE: 5.0}, swapped=True), process({ONE: 5.0})]
    found = {one.case_id: one for one in judge_trials([trial(5.0, *taken)])}
    assert (found[ONE].outcome, found[ONE].processes, found[ONE].wall_s) == (SLOWER, 3, 12.0)
    assert (found[TWO].outcome, found[TWO].processes, found[TWO].wall_s) == (SAME, 1, 4.0)


def test_a_case_with_a_problem_is_no_trial() -> None:
    assert judge_trials([trial(0.0, process({ONE: 0.0}), process({}, **{ONE: "its process ended"}))]) == []


@pytest.mark.parametrize(
    ("outcome", "slow_percent", "alarm"),
    [
        (SLOWER, 0.0, True),
        (FASTER, 0.0, True),
        (SAME, 0.0, False),
        (UNDECIDED, 0.0, False),
        (SLOWER, 5.0, True),
        (FASTER, 5.0, False),
        (UNDECIDED, 5.0, False),
    ],
)
def test_slower_alarms_and_faster_where_nothing_changed(outcome: DuetOutcome, slow_percent: float, alarm: bool) -> None:
    assert JudgedCase(0, ONE, slow_percent, outcome, 2, 1.0).alarm is alarm


def test_rates_are_of_each_case_of_each_workload_and_of_all() -> None:
    judged = [
        JudgedCase(number, case_id, 0.0, SLOWER if (number, case_id) == (3, ONE) else SAME, 1, 2.0 + number)
        for number in range(20)
        for case_id in (ONE, TWO, NET)
    ]
    judged += [JudgedCase(20, ONE, 5.0, UNDECIDED, 3, 9.0), JudgedCase(21, ONE, 5.0, SLOWER, 2, 6.0)]
    rows = analyse_duets(judged)
    assert list(rows) == [0.0, 5.0]
    counted = {row.name: (row.alarms.alarms, row.alarms.trials, row.undecided) for row in rows[0.0]}
    assert counted == {
        NET: (0, 20, 0),
        ONE: (1, 20, 0),
        TWO: (0, 20, 0),
        "toy/cpu, 2 cases": (1, 40, 0),
        "all 3 cases": (1, 60, 0),
    }
    one = next(row for row in rows[0.0] if row.name == ONE)
    assert (one.alarms.low, one.alarms.high) == (pytest.approx(0.001265, abs=1e-5), pytest.approx(0.248733, abs=1e-5))
    (slowed,) = rows[5.0]
    assert (slowed.alarms.alarms, slowed.undecided, slowed.processes, slowed.median_s) == (1, 1, 2.5, 7.5)


def test_the_report_has_a_table_for_each_slowdown() -> None:
    taken = [
        trial(0.0, process({ONE: 0.0, TWO: 0.0})),
        trial(5.0, *[process({ONE: 5.0}, one) for one in (False, True, False)]),
    ]
    assert [table.title for table in tables(judge_trials(taken))] == ["nothing changed", "5 % slower"]
    assert [table.rows[0][:2] for table in tables(judge_trials(taken))] == [(ONE, "0/1"), (ONE, "1/1")]
    budget = "2 comparisons of the project with itself in 4 fresh processes, at 10 s a case and process"
    assert title(taken, "a CPU") == f"a CPU: {budget}"
    assert max(map(len, text(taken, "a CPU", 80).splitlines())) <= 80


# --- one real run -----------------------------------------------------------------------------------------------------


def test_a_real_run_catches_a_slowdown_in_both_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = TinyProject(tmp_path)
    monkeypatch.chdir(tiny.path)
    for name, value in environment(tiny.path).items():  # of the fresh processes
        monkeypatch.setenv(name, value)
    status = main(["--duet", "--trials", "1", "--slowdowns", "20", "--budget", "0.2", "--device", "cpu"])
    said = capsys.readouterr()
    check_no_traceback(said.out + said.err)
    assert status == 0, said.err
    (taken,) = read_duets(tiny.path / "gpugate-trust")
    assert [(one.slow_percent, one.outcome) for one in judge_trials([taken])] == [(20.0, SLOWER)]
    slowed = [(one.swapped, time_ratio(one.measured["tiny/quick/cpu"], one.swapped).median) for one in taken.processes]
    assert slowed == [(number % 2 == 1, pytest.approx(1.2, abs=0.02)) for number in range(len(slowed))]
    assert len(slowed) == 3
    assert list(taken.conditions.source_hashes) == ["tiny"]
    assert "process 1 of at most 12: 1 case\n" in said.err
