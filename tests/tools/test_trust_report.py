"""The printed report of trust: its numbers, in 100 columns and as Markdown."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpugate.report.table import Table
from tests.support.simulated_trials import Noise, trials
from tests.support.tiny_project import ROOT
from tools.trust.analysis import TrustReport, analyse
from tools.trust.command import main
from tools.trust.report import case_table, markdown, rule_table, text, title
from tools.trust.trials import Trial

RESULTS = ROOT / "results"
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


def test_the_title_names_machine_trials_cases_and_processes(report: TrustReport) -> None:
    assert title(report) == "NVIDIA H200: 840 trials of 3 cases in 10 fresh processes"
    alone = report_of(["net/fast/cpu"], machine="", processes=1, repeats=1)
    assert title(alone) == "7 trials of 1 case in 1 fresh process"


def test_a_row_has_false_alarms_detection_limit_and_noise(report: TrustReport) -> None:
    row = cells(case_table(report))[-1]
    assert 0.05 < float(row.pop("cv %")) < 0.6
    shares = {"0.5%": "0", "1%": "0", "2%": "100", "3%": "100", "5%": "100", "10%": "100"}
    alarms = {"alarms": "4/40", "interval": "0.1..49.9", **shares, "MDE %": "2"}
    assert row == {"group": "net/cpu", "case": "fast", "trials": "280", "runs": "10", **alarms, "s": "6.5"}


def test_rules_stand_below_each_other_in_every_group(report: TrustReport) -> None:
    table = cells(rule_table(report))
    groups = ["resnet50-inference-batch1/cuda, 2 cases", "net/cpu, 1 case"]
    assert [(row["group"], row["rule"]) for row in table] == [
        (group, rule) for group in groups for rule in ("gpugate", "deaf")
    ]
    assert (table[0]["alarms"], table[1]["alarms"], table[1]["MDE %"]) == ("8/80", "0/80", ">10")


@pytest.mark.parametrize(("alarms", "words"), [(0, "0"), (1, "1"), (100, "50"), (199, "99"), (200, "100")])
def test_100_and_0_mean_all_and_none(alarms: int, words: str) -> None:
    taken = trials(Noise(), [0.01], processes=200, repeats=1, instances=1, pairs=1)
    report = analyse(taken, {"gpugate": [trial.process < alarms for trial in taken]}, "")
    assert cells(case_table(report))[0]["1%"] == words


def test_a_slowdown_that_was_not_tried_is_a_dash() -> None:
    quiet = trials(Noise(), [0.0], processes=2, case_id="net/slow/cpu")
    slowed = trials(Noise(), [0.01], processes=1, case_id="net/fast/cuda")
    first, second = cells(
        case_table(analyse([*quiet, *slowed], {"gpugate": [ours(one) for one in (*quiet, *slowed)]}, ""))
    )
    assert (first["alarms"], first["1%"], first["cv %"]) == ("4/8", "-", "0")
    assert (second["alarms"], second["interval"], second["1%"], second["cv %"]) == ("-", "-", "0", "-")
    (row,) = cells(case_table(report_of(["net/fast/cpu"], slowdowns=[0.0])))
    assert row["MDE %"] == "-"


def test_the_text_fits_its_columns_and_has_colour_when_asked_for(report: TrustReport) -> None:
    assert max(map(len, text(report, 100).splitlines())) <= 100
    assert "channels-last-fp16 " in text(report, 100)
    assert max(map(len, text(report, 86).splitlines())) <= 86
    assert "\x1b[1m" in text(report, 100, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", text(report, 100, colour=True)) == text(report, 100)


def test_markdown_has_two_tables_with_whole_rows_and_the_notes(report: TrustReport) -> None:
    blocks = markdown(report).split("\n\n")
    assert [len(block.splitlines()) - 2 for block in blocks[1:3]] == [3, 4]
    assert all(len({line.count("|") for line in block.splitlines()}) == 1 for block in blocks[1:3])
    assert blocks[3].startswith(
        "- case: judged by the first rule; runs: fresh processes; s: median seconds per trial\n"
    )


def test_the_words_need_no_torch() -> None:
    script = "import sys, tools.trust.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_the_stored_reports_are_those_of_todays_rules(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "trials")
    (copy / "trust.md").unlink()
    duet = ["--duet"] if next(folder.glob("duets-*.json"), None) else []
    assert main([*duet, "--report-only", "--output", str(copy)]) == 0
    again = f"python -m tools.trust {' '.join(duet)} --report-only --output {folder.relative_to(RESULTS.parent)}"
    assert (copy / "trust.md").read_text(encoding="utf-8") == (folder / "trust.md").read_text(encoding="utf-8"), again
