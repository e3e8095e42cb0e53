"""The picture of trials has a panel for each group and a curve for each rule."""

from pathlib import Path

from matplotlib.figure import Figure

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
