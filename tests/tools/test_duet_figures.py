"""The page of the trials of duets counts what the trials say, and the simulation has the noise of its trials."""

import math
from dataclasses import replace

import numpy as np
import pytest

from gpugate.results.duet import DuetSize
from tools import duet_figures
from tools.duet_figures import PAGE, RESULTS, Bound, Decided, describe_stored, find_folders, row_of, rows_of
from tools.machines import H200
from tools.simulated_duets import (
    GRID,
    CaseNoise,
    Simulated,
    TriedProcess,
    count_processes,
    fit_noise,
    simulate,
)
from tools.trust.duet_report import judge_trials
from tools.trust.duets import read_duets

FOLDER = RESULTS / "h100/duets/16-cores"
SIZE = DuetSize(pairs=16, builds=2, processes=4, sampling_s=5.0)
SEED = 20261127


def stored_rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("| [")]


def test_the_page_is_of_the_trials_that_are_there() -> None:
    """The simulated tables take minutes: only the rows of stored trials are made again."""
    folders = [(folder.relative_to(RESULTS).as_posix(), read_duets(folder)) for folder in find_folders()]
    rows = [duet_figures.write_rows(rows_of(name, trials[0], judge_trials(trials))) for name, trials in folders]
    found = [line for table in rows for line in stored_rows(table)]
    assert found == stored_rows(PAGE.read_text(encoding="utf-8")), "run python -m tools.duet_figures"


def test_an_alarm_of_unchanged_code_is_a_false_one_and_a_row_has_the_wrong_direction() -> None:
    trials = read_duets(FOLDER)
    slower = [trial for trial in trials if trial.slow_percent]
    assert ": 0 false alarms in 6 (at most 39 %), over 3 cases" in describe_stored([("real", trials)])
    claimed = [replace(trial, slow_percent=0.0) for trial in slower]
    page = describe_stored([("claimed", claimed)])
    assert ": 2 false alarms in 3 (at most 98 %), over 3 cases" in page
    (row,) = rows_of("real", slower[0], judge_trials(slower))
    assert row[3:9] == ("5 %", "3", "2", "14 %", "0", "1")
    swapped = [
        replace(one, processes=tuple(replace(p, swapped=not p.swapped) for p in one.processes)) for one in slower
    ]
    (row,) = rows_of("real", slower[0], judge_trials(swapped))
    assert row[3:9] == ("5 %", "3", "0", "0 %", "2", "1"), "slower code that was found to be faster"


@pytest.mark.parametrize(
    ("found", "count", "low", "high"), [(0, 59, 0.0, 0.0495), (59, 59, 0.9505, 1.0), (77, 87, 0.813, 0.936)]
)
def test_bounds_are_those_of_clopper_and_pearson(found: int, count: int, low: float, high: float) -> None:
    assert (Bound(found, count).low, Bound(found, count).high) == pytest.approx((low, high), abs=1e-3)


def tried(process_sd: float, build_sd: float, draw: np.random.Generator, trials: int = 40) -> list[list[TriedProcess]]:
    """Trials of three processes of two builds of eight pairs that vary by 2 %, each trial about another mean."""

    def build(mean: float) -> np.ndarray:
        return mean + build_sd * draw.standard_normal() + 0.02 * draw.standard_normal(8)

    def process(mean: float) -> TriedProcess:
        of_process = mean + process_sd * draw.standard_normal()
        return TriedProcess((build(of_process), build(of_process)), wall_s=30.0, measuring_s=8.0)

    return [[process(mean) for _ in range(3)] for mean in 0.05 * draw.standard_normal(trials)]


@pytest.mark.parametrize(("process_sd", "build_sd"), [(0.0, 0.0), (0.04, 0.0), (0.0, 0.056)])
def test_the_fitted_noise_is_that_of_the_trials(process_sd: float, build_sd: float) -> None:
    (noise,) = fit_noise({"case": tried(process_sd, build_sd, np.random.default_rng(SEED))}).values()
    assert noise.builds is not None
    assert math.sqrt(noise.processes @ GRID**2) == pytest.approx(process_sd, abs=0.01)
    assert math.sqrt(noise.builds @ GRID**2) == pytest.approx(build_sd, abs=0.01)
    assert float(np.std(noise.residuals)) == pytest.approx(0.02, rel=0.1)
    assert (noise.process_s, noise.pair_s) == (22.0, 0.5)


def noise_of(sd: float) -> CaseNoise:
    draw = np.random.default_rng(SEED)
    alone = np.zeros(len(GRID))
    alone[0] = 1.0
    return CaseNoise(sd * draw.standard_normal(200), alone, None, process_s=10.0, pair_s=0.5)


def test_a_simulated_duet_finds_what_its_noise_allows() -> None:
    quiet, noisy = (simulate(noise_of(sd), SIZE, 0.05, 50, np.random.default_rng(SEED)) for sd in (0.01, 0.5))
    assert (quiet.share("slower"), quiet.processes, quiet.seconds) == (1.0, 3.0, 3 * 26.0)
    assert noisy.share("slower") < 0.1
    unchanged = simulate(noise_of(0.01), SIZE, 0.0, 50, np.random.default_rng(SEED))
    assert unchanged.share("same") == 1.0


def test_a_limit_cuts_duets_off() -> None:
    counts = [count_processes(noise_of(0.01), SIZE, limit_s) for limit_s in (20.0, 60.0, math.inf)]
    assert counts == [0, 2, 12]
    found = simulate(noise_of(0.01), SIZE, 0.05, 10, np.random.default_rng(SEED), most=0)
    assert (found.share("undecided"), found.processes) == (1.0, 0.0)


def test_a_case_is_red_by_its_record_or_by_its_duet() -> None:
    duet = Simulated({"slower": 90, "undecided": 10}, 4.0, 120.0)
    tried, untried = Decided("a", 0.5, duet), Decided("b", 0.5, None)
    assert (tried.red, untried.red) == pytest.approx((0.95, 0.5))
    row = row_of(H200, 0.05, 60.0, [tried, untried])
    assert row[:3] == ("H200, 5 % slower, 60 s", "1 of 2 (2.5 %)", "0")
    assert row[-2:] == ("4.0", "2")
