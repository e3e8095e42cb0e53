"""The page of the trials of duets counts what the trials say, and a simulated duet finds what its noise allows."""

from dataclasses import replace

import numpy as np

from gpugate.results.duet import DuetSize
from tools import duet_figures
from tools.archive import RESULTS
from tools.duet_figures import PAGE, describe_stored, find_folders, rows_of
from tools.simulated_duets import (
    GRID,
    CaseNoise,
    simulate,
)
from tools.trust.duet_report import judge_trials
from tools.trust.duets import read_duets

FOLDER = RESULTS / "h100/duets/16-cores"
SIZE = DuetSize(pairs=16, builds=2, sampling_s=5.0)
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
