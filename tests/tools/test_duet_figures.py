"""The page of all trials of duets counts what the trials say."""

import re
from dataclasses import replace

from gpugate.commands.trust.duets import DuetTrial, read_duets
from tools.duet_figures import PAGE, RESULTS, describe, find_folders

FOLDER = RESULTS / "h100/duets/16-cores"


def total(page: str) -> str:
    found = re.search(r"In all A/A trials together: (.*)\.", page)
    assert found is not None
    return found[1]


def rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("| [")]


def test_the_page_is_of_the_trials_that_are_there() -> None:
    folders = find_folders()
    assert len({line.split("|")[1] for line in rows(PAGE.read_text(encoding="utf-8"))}) == len(folders)
    for folder in folders:
        trials = len(list(folder.glob("duets-*.json")))
        report = (folder / "trust.md").read_text(encoding="utf-8")
        assert f": {trials} comparison" in report, f"run gpugate trust --duet --report-only --output {folder}"
    name = FOLDER.relative_to(RESULTS).as_posix()
    today = rows(describe([(name, read_duets(FOLDER))]))
    assert set(today) <= set(rows(PAGE.read_text(encoding="utf-8"))), "run python -m tools.duet_figures"


def test_a_slowdown_that_nobody_declared_is_a_false_alarm() -> None:
    trials = read_duets(FOLDER)
    slower = [trial for trial in trials if trial.slow_percent]
    assert total(describe([("real", trials)])).startswith("0 of 6 alarms")
    claimed = [replace(trial, slow_percent=0.0) for trial in slower]
    page = describe([("claimed", [*claimed, *(t for t in trials if not t.slow_percent)])])
    assert total(page) == "3 of 9 alarms, over 3 cases"
    assert "| 0 % | 3 of 9 |" in page


def test_a_case_counts_once_all_its_trials_raised_an_alarm() -> None:
    trials: list[DuetTrial] = read_duets(FOLDER)
    assert "| 3 of 3 | 0 | 3 of 3 |" in describe([("real", trials)])
    unseen = [replace(trial, slow_percent=5.0) for trial in trials]
    assert "| 3 of 9 | " in describe([("unseen", unseen)])
    assert "| 0 of 3 | " in describe([("unseen", unseen)])
