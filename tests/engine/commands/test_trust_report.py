"""What is printed and drawn of trust: the numbers of the report, in 100 columns, as Markdown and as a picture."""

import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from gpugate.commands.trust import plot
from gpugate.commands.trust.analysis import TrustReport, analyse
from gpugate.commands.trust.report import case_table, markdown, notes, rule_table, text, title
from gpugate.commands.trust.rival_rules import RIVALS, Rule
from gpugate.commands.trust.trial import Trial
from gpugate.report.table import Table
from tests.support.simulated_trials import Noise, trials

ROOT = Path(__file__).parents[3]
CASES = ("resnet50-inference-batch1/channels-last-fp16/cuda", "resnet50-inference-batch1/fp16/cuda", "net/fast/cpu")


def ours(trial: Trial) -> bool:
    """Alarms once in process 0 when nothing changed, and from 2 % on always."""
    return trial.slowdown >= 0.02 or (trial.process == 0 and trial.slowdown == 0)


def report_of(case_ids=CASES, machine: str = "NVIDIA H200", **kwargs) -> TrustReport:
    taken = [one for case_id in case_ids for one in trials(Noise(0.002, 0.002, 0.002), case_id=case_id, **kwargs)]
    return analyse(taken, [Rule("gpugate", "a stand-in", ours), *RIVALS], machine)


@pytest.fixture(scope="module")
def report() -> TrustReport:
    return report_of()


def table_of(words: str) -> list[list[str]]:
    lines = [line for line in words.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def cells(table: Table) -> list[dict[str, str]]:
    headings = [column.heading for column in table.columns]
    return [dict(zip(headings, row, strict=True)) for row in table.rows]


def test_the_title_says_machine_trials_cases_and_processes(report: TrustReport) -> None:
    assert title(report) == "NVIDIA H200: 840 trials of 3 cases in 10 fresh processes"
    alone = report_of(["net/fast/cpu"], machine="", processes=1, repeats=1)
    assert title(alone) == "7 trials of 1 case in 1 fresh process"
    many = report_of(["net/fast/cpu"], processes=150, repeats=1, instances=1, pairs=1)
    assert title(many) == "NVIDIA H200: 1,050 trials of 1 case in 150 fresh processes"


def test_a_row_says_false_alarms_detection_limits_and_noise(report: TrustReport) -> None:
    row = cells(case_table(report))[-1]
    cv = float(row.pop("cv %"))
    assert 0.05 < cv < 0.6
    assert row == {
        "group": "net/cpu",
        "case": "fast",
        "trials": "280",
        "runs": "10",
        "alarms": "4/40",
        "interval": "0.1..49.9",
        "0.5%": "0",
        "1%": "0",
        "2%": "100",
        "3%": "100",
        "5%": "100",
        "10%": "100",
        "MDE %": "2 (1.9)",
        "s": "6.5",
    }


def test_rules_stand_below_each_other_in_every_group(report: TrustReport) -> None:
    table = cells(rule_table(report))
    assert [row["rule"] for row in table] == ["gpugate", *(rule.name for rule in RIVALS)] * 2
    assert list(dict.fromkeys(row["group"] for row in table)) == [
        "resnet50-inference-batch1/cuda, 2 cases",
        "net/cpu, 1 case",
    ]
    median, gpucheck = table[1:3]
    assert (median["alarms"], median["3%"], median["10%"]) == ("0/80", "0", "100")
    assert gpucheck["MDE %"] == ">10"


@pytest.mark.parametrize(("alarms", "words"), [(0, "0"), (1, "1"), (100, "50"), (199, "99"), (200, "100")])
def test_100_and_0_mean_all_and_none(alarms: int, words: str) -> None:
    taken = trials(Noise(), [0.01], processes=200, repeats=1, instances=1, pairs=1)
    report = analyse(taken, [Rule("gpugate", "", lambda trial: trial.process < alarms)])
    assert cells(case_table(report))[0]["1%"] == words


def test_the_text_fits_100_columns_and_the_name_gives_way_below(report: TrustReport) -> None:
    assert max(map(len, text(report).splitlines())) <= 100
    assert "channels-last-fp16 " in text(report)
    assert "/cuda\ncase " in text(report)
    narrow = text(report, width=86)
    assert max(map(len, narrow.splitlines())) <= 86
    assert re.search(r"^channels-last-fp +280 .*\n16$", narrow, re.MULTILINE)


def test_tables_of_different_groups_have_their_columns_below_each_other() -> None:
    taken = [one for case_id in CASES for one in trials(Noise(), [0.0, 0.1], case_id=case_id)]
    report = analyse(taken, [Rule("gpugate", "", lambda trial: trial.case_id == CASES[0] and trial.slowdown > 0)])
    heads = [line for line in text(report).splitlines() if line.startswith("case ") and "MDE" in line]
    assert len(heads) == 2
    assert heads[0] == heads[1]


def test_colour_is_only_there_when_asked_for(report: TrustReport) -> None:
    assert "\x1b[" not in text(report)
    assert "\x1b[1m" in text(report, colour=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", text(report, colour=True)) == text(report)


def test_what_was_not_tried_is_a_dash() -> None:
    quiet = trials(Noise(), [0.0], processes=2, case_id="net/slow/cpu")
    slowed = trials(Noise(), [0.01], processes=1, case_id="net/fast/cuda")
    report = analyse([*quiet, *slowed], [Rule("gpugate", "", ours)])
    first, second = cells(case_table(report))
    assert (first["alarms"], first["1%"], first["cv %"]) == ("4/8", "-", "0")
    assert (second["alarms"], second["interval"], second["1%"], second["cv %"]) == ("-", "-", "0", "-")
    assert "once a night, 1 case of 2" in text(report)
    figure = Figure()
    plot.draw(figure, report)
    assert figure.axes[1].get_title(loc="left") == "net/cuda\n4 trials"


def test_a_report_of_a_a_trials_alone_has_no_detection() -> None:
    report = analyse(trials(Noise(), [0.0]), [Rule("gpugate", "", ours)])
    (row,) = cells(case_table(report))
    assert not any(heading[0].isdigit() for heading in row)
    assert row["MDE %"] == "-"
    assert plot.png(report)


@pytest.mark.parametrize(
    ("alarms", "cell"),
    [(lambda trial: True, "none"), (lambda trial: trial.slowdown > 0, "0.5 (0.47)"), (lambda trial: False, ">10")],
    ids=["always", "where it is slower", "never"],
)
def test_a_rule_that_always_alarms_detects_nothing(alarms: Callable[[Trial], bool], cell: str) -> None:
    report = analyse(trials(Noise(), case_id="net/fast/cpu"), [Rule("gpugate", "", alarms)])
    assert cells(case_table(report))[0]["MDE %"] == cell


def test_text_and_markdown_say_what_is_a_median_and_what_a_larger_suite_tolerates(report: TrustReport) -> None:
    for told in (text(report), markdown(report)):
        words = " ".join(told.split())
        assert words.count("s: median seconds per trial") == 1
        assert words.count("gpugate: allows for as many checks as these cases have; a larger suite tolerates") == 1
        assert words.count("none: no slowdown can be told from none") == 1


def test_the_notes_say_how_much_trials_of_one_process_share(report: TrustReport) -> None:
    assert any("design effect at most 4.0" in note for note in notes(report))
    silent = analyse(trials(Noise(), [0.0]), [Rule("gpugate", "", lambda trial: False)])
    assert any("design effect not known" in note for note in notes(silent))


def test_markdown_has_three_tables_with_whole_rows(report: TrustReport) -> None:
    tables = [table_of(block) for block in markdown(report).split("\n\n") if block.startswith("|")]
    assert [table[0][1] for table in tables] == ["case", "rule", "rule"]
    assert [len(table) - 2 for table in tables] == [3, 10, 5]
    assert all(len(row) == len(table[0]) for table in tables for row in table)
    assert tables[0][2][:2] == ["resnet50-inference-batch1/cuda", "channels-last-fp16"]
    assert tables[2][2][:3] == ["once a night, 3 cases", "gpugate", "0.3"]


def test_markdown_names_the_source_of_every_rule(report: TrustReport) -> None:
    for rule in RIVALS:
        assert f"- {rule.name}: {rule.source.replace('<', '&lt;')}" in markdown(report)


def test_a_pipe_in_a_name_adds_no_cell() -> None:
    taken = trials(Noise(), [0.0])
    report = analyse(taken, [Rule("gpugate", "", ours)], group_of=lambda case_id: "this|that")
    head, _, *rows = table_of(markdown(report).split("\n\n")[1])
    assert [len(row) for row in rows] == [len(head)]
    assert rows[0][0] == r"this\|that"


def test_the_picture_has_a_panel_per_group_and_a_curve_per_rule(report: TrustReport) -> None:
    figure = Figure()
    plot.draw(figure, report)
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title(loc="left").split("\n") for panel in panels] == [
        ["resnet50-inference-batch1/cuda", "560 trials; gpugate: 8 of 80 A/A alarmed"],
        ["net/cpu", "280 trials; gpugate: 4 of 40 A/A alarmed"],
    ]
    assert figure.get_suptitle().startswith(title(report))
    assert [panel.get_xlabel() for panel in panels] == ["slowdown of one side, %"] * 2
    assert [panel.get_ylabel() for panel in panels] == ["trials with an alarm, %", ""]
    labels = [words.get_text() for words in figure.legends[0].get_texts()]
    assert labels == ["gpugate", *(rule.name for rule in RIVALS)]


def test_a_curve_shows_the_shares_of_its_rule_and_false_alarms_apart(report: TrustReport) -> None:
    figure = Figure()
    plot.draw(figure, report)
    panel = figure.axes[0]
    (curve,) = (line for line in panel.lines if line.get_label() == "gpugate")
    assert list(curve.get_ydata()) == [0, 0, 100, 100, 100, 100]
    assert list(curve.get_xdata()) == list(panel.get_xticks()[1:])
    (point,) = (line for line in panel.lines if len(line.get_xdata()) == 1 and line.get_color() == plot.STYLES[0][0])
    assert list(point.get_ydata()) == [10.0]
    assert point.get_xdata()[0] < panel.get_xticks()[1] - 1
    assert [words.get_text() for words in panel.get_xticklabels()] == ["0\nA/A", "0.5", "1", "2", "3", "5", "10"]
    (band,) = (shape for shape in panel.collections if shape.get_alpha() is not None)
    rates = [detection.rate for detection in report.groups[0].rules[0].detections[1:]]
    ends = {round(100 * end, 6) for rate in rates for end in (rate.low_by_process, rate.high_by_process)}
    assert {round(float(y), 6) for y in band.get_paths()[0].vertices[:, 1]} == ends


@pytest.mark.parametrize("groups", range(1, 8))
def test_any_number_of_groups_makes_a_picture_of_at_most_six_panels(groups: int) -> None:
    report = report_of([f"net{number}/fast/cpu" for number in range(groups)], processes=2, repeats=1, pairs=2)
    figure = Figure()
    plot.draw(figure, report)
    assert sum(panel.get_visible() for panel in figure.axes) == min(groups, 6)


def test_the_picture_is_a_png_and_the_same_for_the_same_report(report: TrustReport) -> None:
    first, second = plot.png(report), plot.png(report)
    assert first == second
    assert first[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", first[16:24])
    assert (width, height) == (1260, 630)
    assert b"Software" not in first


def test_without_matplotlib_one_sentence_names_the_extra(report: TrustReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(plot.PlotError) as raised:
        plot.png(report)
    assert "gpugate[trust]" in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_words_need_neither_torch_nor_matplotlib() -> None:
    modules = "gpugate.commands.trust.plot, gpugate.commands.trust.report"
    script = f"import sys, {modules}; sys.exit(bool({{'torch', 'matplotlib'}} & {{*sys.modules}}))"
    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False).returncode == 0
