"""The printed report of trust: its numbers, its width, and the stored reports."""

import re
from pathlib import Path

import pytest

from gpugate.report.table import Table
from tests.support.simulated_trials import Noise, trials
from tools.archive import RESULTS, list_files
from tools.trust.analysis import TrustReport, analyse
from tools.trust.command import main
from tools.trust.report import case_table, text
from tools.trust.trials import Trial

FOLDERS = sorted(path.parent for path in RESULTS.rglob("trust.md"))
CASES = ("resnet50-inference-batch1/channels-last-fp16/cuda", "resnet50-inference-batch1/fp16/cuda", "net/fast/cpu")


def ours(trial: Trial) -> bool:
    """Alarms once in process 0 when nothing changed, and from 2 % on always."""
    return trial.slowdown >= 0.02 or (trial.process == 0 and trial.slowdown == 0)


def report_of(case_ids=CASES, machine: str = "NVIDIA H200", slowdowns=None, **kwargs) -> TrustReport:
    options = {**kwargs, **({} if slowdowns is None else {"slowdowns": slowdowns})}
    taken = [one for case_id in case_ids for one in trials(Noise(0.002, 0.002, 0.002), case_id=case_id, **options)]
    alarms = {"gpugate": [ours(trial) for trial in taken], "deaf": [False] * len(taken)}
    return analyse(taken, alarms, machine)


@pytest.fixture(scope="module")
def report() -> TrustReport:
    return report_of()


def cells(table: Table) -> list[dict[str, str]]:
    headings = [column.heading for column in table.columns]
    return [dict(zip(headings, row, strict=True)) for row in table.rows]


def test_a_row_has_false_alarms_detection_limit_and_noise(report: TrustReport) -> None:
    row = cells(case_table(report))[-1]
    assert 0.05 < float(row.pop("cv %")) < 0.6
    shares = {"0.5%": "0", "1%": "0", "2%": "100", "3%": "100", "5%": "100", "10%": "100"}
    alarms = {"alarms": "4/40", "interval": "0.1..49.9", **shares, "MDE %": "2"}
    assert row == {"group": "net/cpu", "case": "fast", "trials": "280", "runs": "10", **alarms, "s": "6.5"}


def test_the_text_fits_its_columns_and_has_colour_when_asked_for(report: TrustReport) -> None:
    assert max(map(len, text(report, 100).splitlines())) <= 100
    assert "channels-last-fp16 " in text(report, 100)
    assert max(map(len, text(report, 86).splitlines())) <= 86
    assert "\x1b[1m" in text(report, 100, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", text(report, 100, colour=True)) == text(report, 100)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_the_stored_reports_are_those_of_todays_rules(folder: Path, tmp_path: Path) -> None:
    trials = list_files(folder, "*.json")
    for path in trials:
        (tmp_path / path.name).symlink_to(path)
    duet = ["--duet"] if trials[0].name.startswith("duets-") else []
    assert main([*duet, "--report-only", "--output", str(tmp_path)]) == 0
    again = f"python -m tools.trust {' '.join(duet)} --report-only --output {folder.relative_to(RESULTS.parent)}"
    assert (tmp_path / "trust.md").read_text(encoding="utf-8") == (folder / "trust.md").read_text(encoding="utf-8"), (
        again
    )
