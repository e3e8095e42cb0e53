"""The page of all trials of duets counts what the trials say."""

import random
import re
from collections import Counter
from dataclasses import replace

from gpugate.results.duet import DuetOutcome, DuetProcess
from tools.duet_figures import PAGE, RESULTS, describe, draw_outcome, find_folders, is_of_today, todays_hashes
from tools.trust.duets import DuetTrial, read_duets

FOLDER = RESULTS / "h100/duets/16-cores"


def total(page: str) -> str:
    found = re.search(r"In all A/A trials together: (.*)\.", page)
    assert found is not None
    return found[1]


def rows(page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith("| [")]


def gpu_cases(page: str) -> str:
    return page.partition("## Cases on a GPU")[2].partition("\n## ")[0]


def test_the_page_is_of_the_trials_that_are_there() -> None:
    folders = find_folders()
    assert len({line.split("|")[1] for line in rows(PAGE.read_text(encoding="utf-8"))}) == len(folders)
    for folder in folders:
        trials = len(list(folder.glob("duets-*.json")))
        report = (folder / "trust.md").read_text(encoding="utf-8")
        assert f": {trials} comparison" in report, f"run python -m tools.trust --duet --report-only --output {folder}"
    on_gpu = [folder for folder in folders if folder.relative_to(RESULTS).parts[0] in ("h100", "h200")]
    assert FOLDER in on_gpu
    today = describe([(folder.relative_to(RESULTS).as_posix(), read_duets(folder)) for folder in on_gpu])
    assert set(rows(today)) <= set(rows(PAGE.read_text(encoding="utf-8"))), "run python -m tools.duet_figures"
    assert gpu_cases(today) == gpu_cases(PAGE.read_text(encoding="utf-8")) != ""


def test_a_slowdown_that_nobody_declared_is_a_false_alarm() -> None:
    trials = read_duets(FOLDER)
    slower = [trial for trial in trials if trial.slow_percent]
    assert total(describe([("real", trials)])).startswith("0 of 6 alarms")
    claimed = [replace(trial, slow_percent=0.0) for trial in slower]
    page = describe([("claimed", [*claimed, *(t for t in trials if not t.slow_percent)])])
    assert total(page) == "3 of 9 alarms, over 3 cases"
    assert "| 0 % | 3 of 9 |" in page


def test_a_case_counts_once_all_its_trials_raised_an_alarm() -> None:
    stored: list[DuetTrial] = read_duets(FOLDER)
    trials = [replace(one, conditions=replace(one.conditions, source_hashes=todays_hashes())) for one in stored]
    real = describe([("real", trials)])
    assert "| 3 of 3 | 0 | 3 of 3 |" in real
    assert "3 of 3 cases raise an alarm in each of their trials" in real
    unseen = describe([("unseen", [replace(trial, slow_percent=5.0) for trial in trials])])
    assert "| 3 of 9 | " in unseen
    assert "| 0 of 3 | " in unseen
    assert "0 of 3 cases raise an alarm in each of their trials" in unseen
    for case_id in trials[0].case_ids:
        assert f"| {case_id} | 1 of 3 |" in unseen


def roles_of(trials: list[DuetTrial], case_id: str) -> tuple[list[DuetProcess], list[DuetProcess]]:
    found = [one for trial in trials for one in trial.processes if case_id in one.measured]
    return [one for one in found if not one.swapped], [one for one in found if one.swapped]


def test_a_drawn_trial_ends_as_a_duet_does() -> None:
    slower = [trial for trial in read_duets(FOLDER) if trial.slow_percent]
    case_id = min(slower[0].case_ids)
    roles = roles_of(slower, case_id)
    assert all(roles)
    draws = random.Random(1)  # noqa: S311
    alone = Counter(draw_outcome(case_id, roles, 1, draws) for _ in range(20))
    assert alone[DuetOutcome.SLOWER] == 0, "one process alone shows no change"
    more = Counter(draw_outcome(case_id, roles, 6, draws) for _ in range(20))
    assert more[DuetOutcome.SLOWER] > 0


def test_a_trial_of_other_code_is_no_trial_of_a_case_of_today() -> None:
    trial = read_duets(FOLDER)[0]
    case_id = min(trial.case_ids)
    older = dict.fromkeys(trial.conditions.source_hashes, "0123456789abcdef")
    assert not is_of_today(replace(trial, conditions=replace(trial.conditions, source_hashes=older)), case_id)
