"""The picture of trials: a panel per group, a curve per rule, and the same bytes for the same trials."""

from pathlib import Path

from matplotlib.figure import Figure

from tests.tools.test_trust_report import report_of
from tools import trust_plot
from tools.rival_rules import RIVALS, compare

TRIALS = Path(__file__).parents[2] / "results/h200/trust/gpu-bound"


def test_the_picture_has_a_panel_per_group_and_a_curve_per_rule() -> None:
    report = compare(TRIALS)
    figure = Figure()
    trust_plot.draw(figure, report)
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title(loc="left").split("\n")[0] for panel in panels] == [group.name for group in report.groups]
    labels = [words.get_text() for words in figure.legends[0].get_texts()]
    assert labels == ["gpugate", "gpugate, baseline of several nights", *(rule.name for rule in RIVALS)]


def test_a_curve_shows_the_shares_of_its_rule_and_false_alarms_apart() -> None:
    report, figure = report_of(), Figure()
    trust_plot.draw(figure, report)
    panel = figure.axes[0]
    (curve,) = (line for line in panel.lines if line.get_label() == "gpugate")
    assert list(curve.get_ydata()) == [0, 0, 100, 100, 100, 100]
    assert list(curve.get_xdata()) == list(panel.get_xticks()[1:])
    colour = trust_plot.STYLES[0][0]
    (point,) = (line for line in panel.lines if len(line.get_xdata()) == 1 and line.get_color() == colour)
    assert list(point.get_ydata()) == [10.0]
    png = trust_plot.png(report)
    assert png == trust_plot.png(report)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
