"""`python -m tools.trust`: it takes the trials that are missing in fresh processes, counts alarms, and reports.

The stored trials are judged again: their reports hold the rules, the intervals and the words of the tables.
"""

import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gpugate.machine.environment import Environment, describe
from gpugate.statistics.policy import MIN_PROCESSES
from tests.support.patience import HANGS_S, wait_until
from tests.support.simulated_trials import Noise, trials
from tests.support.tiny_project import ROOT, TinyProject, check_no_traceback, environment, running
from tools.archive import RESULTS, list_files
from tools.trust.analysis import RuleTrust, between_run_cv
from tools.trust.command import main
from tools.trust.our_rule import our_alarms
from tools.trust.plan import Plan, share_of, wanted_trials
from tools.trust.rates import Rate, rate_of
from tools.trust.trials import FILE, SLOWDOWNS, Conditions, TrialsFile, TrustError, read_all, trials_path

CASE = "tiny/quick/cpu"
CONDITIONS = Conditions(Environment("cpu", "a CPU", "a CPU", 2, "3.12.3", {"torch": "2.11.0"}), 6.0, {"toy": "0123"})
FOLDERS = sorted(path.parent for path in RESULTS.rglob("trust.md"))

# --- what is stored ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_the_stored_reports_are_those_of_todays_rules(folder: Path, tmp_path: Path) -> None:
    stored = list_files(folder, "*.json")
    for path in stored:
        (tmp_path / path.name).symlink_to(path)
    duet = ["--duet"] if stored[0].name.startswith("duets-") else []
    assert main([*duet, "--report-only", "--output", str(tmp_path)]) == 0
    again = f"python -m tools.trust {' '.join(duet)} --report-only --output {folder.relative_to(ROOT)}"
    assert (tmp_path / "trust.md").read_text(encoding="utf-8") == (folder / "trust.md").read_text(encoding="utf-8"), (
        again
    )


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (replace(CONDITIONS, budget_s=0.5, source_hashes={"toy": "ffff"}), "budget 6 s -> 0.5 s; the source of toy"),
        (replace(CONDITIONS, environment=replace(CONDITIONS.environment, driver="590")), "driver unknown -> 590"),
        (None, "holds the trials of process 1: it is a copy or was renamed"),
    ],
)
def test_trials_of_other_conditions_and_copies_are_not_counted_together(
    tmp_path: Path, now: Conditions | None, said: str
) -> None:
    first = TrialsFile(1, CONDITIONS, ("toy/fast/cpu",), {})
    second = first if now is None else replace(first, process=2, conditions=now)
    FILE.write(trials_path(tmp_path, 1), first)
    FILE.write(trials_path(tmp_path, 2), second)
    with pytest.raises(TrustError, match=f"trials-002.json.*{said}"):
        read_all(tmp_path)


# --- statistics -------------------------------------------------------------------------------------------------------


def rate(alarms: int, of: int) -> Rate:
    """A rate of independent trials."""
    return rate_of([[number < alarms] for number in range(of)])


@pytest.mark.parametrize(
    ("alarms", "of", "low", "high"),
    [(0, 200, 0.0, 0.01828), (1, 200, 0.0001266, 0.02754), (10, 10, 0.69150, 1.0), (4, 20, 0.05733, 0.43661)],
)
def test_intervals_of_independent_trials_are_clopper_and_pearsons(
    alarms: int, of: int, low: float, high: float
) -> None:
    found = rate(alarms, of)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-3)


def test_an_interval_covers_the_rate_where_processes_differ() -> None:
    """Of 20 processes with 20 trials each, by a beta-binomial distribution with a correlation of 0.2."""
    draw = np.random.default_rng(1)
    found = [rate_of([(draw.random(20) < one).tolist() for one in draw.beta(0.8, 3.2, 20)]) for _ in range(400)]
    assert np.mean([one.low <= 0.2 <= one.high for one in found]) >= 0.93


@pytest.mark.parametrize(
    ("shares", "caught"),
    [
        ({0.0: 0, 0.01: 94, 0.02: 95, 0.05: 100}, 0.02),
        ({0.0: 0, 0.01: 98, 0.02: 90, 0.05: 99}, 0.05),  # a hole below is no catch
        ({0.0: 0, 0.01: 98, 0.05: 94}, None),
        ({0.0: 100}, None),  # nothing tried but A/A
        ({0.0: 100, 0.01: 100}, None),  # an alarm where nothing changed detects nothing
    ],
)
def test_a_slowdown_is_caught_from_the_size_on_at_which_95_percent_are(
    shares: dict[float, int], caught: float | None
) -> None:
    assert RuleTrust("", {slowdown: rate(share, 100) for slowdown, share in shares.items()}).smallest_caught == caught


def test_the_between_run_cv_is_the_spread_of_processes_in_a_a_trials() -> None:
    assert between_run_cv(trials(Noise(process=0.004, pair=0.001), processes=300, repeats=2)) == pytest.approx(
        0.004, rel=0.1
    )
    assert between_run_cv(trials(Noise(process=0.004), [0.01], processes=9)) is None


def test_the_gate_decides_the_trials_and_too_few_processes_are_no_record() -> None:
    noise = Noise(process=0.001, instance=0.003, pair=0.0005)
    for processes, caught in ((MIN_PROCESSES, 0.0), (8, 1.0)):
        taken = trials(noise, [0.0, 0.1], processes=processes, repeats=4)
        for alarms in our_alarms(taken).values():
            slowed = [alarm for trial, alarm in zip(taken, alarms, strict=True) if trial.slowdown]
            assert (np.mean(slowed), sum(alarms) - sum(slowed)) == (caught, 0)


# --- taking trials ----------------------------------------------------------------------------------------------------


def test_processes_share_the_trials_and_make_up_for_one_that_was_cut_off() -> None:
    plan = Plan("", 1, processes=4, budget_s=1.0, aa_trials=10)
    first = Counter(share_of(plan, CASE))
    assert first == {0.0: 3, **dict.fromkeys(SLOWDOWNS[1:], 1)}
    cut_off = replace(plan, process=3, taken={CASE: {"0.0": 4}})
    assert Counter(share_of(cut_off, CASE))[0.0] == 3
    assert share_of(replace(plan, taken={CASE: dict.fromkeys(map(str, SLOWDOWNS), 10)}), CASE) == []


# Stops, when it is told to by a file, in the middle of the third trial: at its first build.
STOPS = """
import os

built = []

def quick(context):
    built.append(1)
    stop = Path(__file__).with_name("stop")
    if stop.exists() and len(built) > 5:
        Path(__file__).with_name("stopped").write_text(str(os.getpid()))
        while stop.exists():
            time.sleep(0.02)
    if Path(__file__).with_name("fail").exists():
        raise RuntimeError("CUDA error: device lost\\nmore of it")
    return sleeping(1)
"""


@pytest.fixture
def project(tmp_path: Path) -> TinyProject:
    tiny = TinyProject(tmp_path)
    tiny.workload(STOPS)
    return tiny


def start(tiny: TinyProject, *words: str) -> "subprocess.Popen[str]":
    """The command on one process of eight trials; its budget ends before a second build."""
    options = ("--trials", "2", "--processes", "1", "--budget", "0.01", "--device", "cpu", *words)
    return subprocess.Popen(
        [sys.executable, "-m", "tools.trust", *options],
        cwd=tiny.path,
        env={**os.environ, **environment(tiny.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=HANGS_S)
    check_no_traceback(out + err)
    return process.returncode, out, err


@pytest.mark.parametrize("killed", [False, True], ids=["ctrl-c", "killed"])
def test_a_run_that_ends_early_reports_and_the_same_command_takes_the_rest(project: TinyProject, killed: bool) -> None:
    project.write("stop", "")
    folder, stopped = project.path / "gpugate-trust", project.path / "stopped"
    process = start(project)
    wait_until(lambda: process.poll() is not None or (stopped.exists() and stopped.read_text()))
    worker_pid = int(stopped.read_text())
    # The worker is in a session of its own, which no Ctrl-C of a terminal reaches.
    os.kill(worker_pid if killed else process.pid, signal.SIGKILL if killed else signal.SIGINT)
    status, out, err = end(process)
    assert not running(worker_pid)
    assert ": 2 trials of 1 case in 1 fresh process\n" in out
    assert "the same command goes on from there\n" in err
    said = "process 1 of trials ended early, its trials are kept: it was killed by SIGKILL" if killed else "interrupted"
    assert (status, f"python -m tools.trust: {said}" in err) == (2 if killed else 130, True)
    before = (folder / "trials-001.json").read_bytes()
    (project.path / "stop").unlink()
    status, out, _ = end(start(project))
    assert (status, ": 8 trials of 1 case in 2 fresh processes\n" in out) == (0, True)
    assert "2 processes are too few to estimate a gate's alarms, which needs 8: take more trials\n" in out
    taken = read_all(folder)
    assert Counter(trial.slowdown for trial in taken.trials) == wanted_trials(2, SLOWDOWNS[1:])
    assert {len(one.pairs) for trial in taken.trials for one in trial.instances} == {8}
    assert taken.conditions is not None
    assert taken.conditions.environment == describe(torch.device("cpu"))
    assert (folder / "trials-001.json").read_bytes() == before
    assert ": 8 trials of 1 case in 2 fresh processes\n" in (folder / "trust.md").read_text(encoding="utf-8")


def test_a_side_that_fails_is_one_sentence(project: TinyProject) -> None:
    project.write("fail", "")
    status, _, err = end(start(project))
    failed = "quick failed while being built: RuntimeError: CUDA error: device lost"
    assert (status, f"{CASE}: {failed}" in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trials", "0"], "--trials is '0': give a whole number from 1 to 10000, such as 40"),
        (["--slowdowns", "2,101"], "--slowdowns is '2,101': give percentages from 0 to 100, such as 0,3,5"),
        (["--busy-cores", "1"], "--busy-cores has no effect without --duet: leave it out"),
        (["--duet", "--processes", "2"], "--processes has no effect with --duet: leave it out"),
        (["--report-only", "-k", "x"], "-k has no effect with --report-only: leave it out"),
        (["--report-only", "tests"], "paths has no effect with --report-only: leave it out"),
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
