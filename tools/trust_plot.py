"""Detection against slowdown as a picture: one panel per group, one curve per rule."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tools.trust.analysis import CAUGHT, GroupTrust, RuleTrust, TrustReport
from tools.trust.rates import Rate
from tools.trust.report import title

ABREAST = 3  # panels
PANEL_INCHES = (4.2, 3.0)
EDGE_INCHES = 1.2  # for title and legend
ZERO_GAP = 1.3  # in doublings
LEGEND_ABREAST = 3
BESIDE = 0.16
DOTS_PER_INCH = 150
# Okabe and Ito's colours, which colour-blind readers tell apart; ours first. Marker and line tell them apart in grey.
STYLES = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#009E73", "^", "-."),
    ("#CC79A7", "D", ":"),
    ("#E69F00", "v", "--"),
    ("#56B4E9", "P", "-."),
)


def png(report: TrustReport) -> bytes:
    """The picture as a PNG file, the same bytes for the same report."""
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure, report)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return stream.getvalue()


def draw(figure: Figure, report: TrustReport) -> None:
    """Fills an empty figure: one panel per group."""
    groups = report.groups
    abreast = min(ABREAST, len(groups))
    down = math.ceil(len(groups) / abreast)
    figure.set_size_inches(max(2, abreast) * PANEL_INCHES[0], down * PANEL_INCHES[1] + EDGE_INCHES)
    panels: list[Axes] = list(figure.subplots(down, abreast, squeeze=False, sharey=True).flat)
    places = _places(report)
    for index, (panel, group) in enumerate(zip(panels, groups, strict=False)):
        _draw_axes(panel, group, places)
        if index % abreast == 0:
            panel.set_ylabel("trials with an alarm, %")
        if index + abreast >= len(groups):
            panel.set_xlabel("slowdown of one side, %")
        for number, rule in enumerate(group.rules):
            _draw_rule(panel, rule, number, len(group.rules), places)
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    figure.suptitle(f"{title(report)}\nband and bars: 95 % intervals", fontsize=11)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=LEGEND_ABREAST, frameon=False, fontsize=9)


def _places(report: TrustReport) -> dict[float, float]:
    """Returns the place of each slowdown on the x axis: its logarithm; 0, which has none, stands apart to the left."""
    tried = {slowdown for group in report.groups for slowdown in group.rules[0].rates}
    places = {slowdown: math.log2(slowdown) for slowdown in sorted(tried) if slowdown > 0}
    return {0.0: min(places.values(), default=0.0) - ZERO_GAP, **places}


def _draw_axes(panel: Axes, group: GroupTrust, places: Mapping[float, float]) -> None:
    panel.set_title(f"{group.name}\n{_about(group.rules[0])}", fontsize=9, loc="left")
    panel.set_ylim(-4, 104)
    panel.set_xlim(places[0.0] - 0.6, max(places.values()) + 0.3)
    panel.set_xticks(list(places.values()), [f"{100 * slowdown:g}" if slowdown else "0\nA/A" for slowdown in places])
    panel.axvline(places[0.0] + ZERO_GAP / 2, color="0.8", linewidth=0.8)
    panel.axhline(100 * CAUGHT, color="0.6", linewidth=0.8)
    panel.annotate(f"{100 * CAUGHT:g}", (places[0.0] - 0.5, 100 * CAUGHT - 5), color="0.4", fontsize=8)
    panel.tick_params(labelsize=9)
    panel.spines[["top", "right"]].set_visible(False)


def _draw_rule(panel: Axes, rule: RuleTrust, index: int, rules: int, places: Mapping[float, float]) -> None:
    """The curve, and false alarms as a point of its own, beside those of the other rules; a band around ours."""
    colour, marker, line = STYLES[index % len(STYLES)]
    style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "zorder": 4 if index else 5}
    slowed = {slowdown: rate for slowdown, rate in rule.rates.items() if slowdown > 0}
    xs = [places[slowdown] for slowdown in slowed]
    shares = [100 * rate.share for rate in slowed.values()]
    panel.plot(xs, shares, linestyle=line, linewidth=1.2 if index else 2.4, label=rule.rule, **style)
    if not index:
        low, high = [100 * rate.low for rate in slowed.values()], [100 * rate.high for rate in slowed.values()]
        panel.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)
    if rule.false_alarms:
        x = places[0.0] + BESIDE * (index - (rules - 1) / 2)
        rate = rule.false_alarms
        panel.errorbar(x, 100 * rate.share, yerr=_error(rate), elinewidth=1, **style)


def _about(rule: RuleTrust) -> str:
    """Returns the numbers that the scale hides: of false alarms, and of trials."""
    trials = f"{sum(rate.trials for rate in rule.rates.values()):,} trials"
    if rule.false_alarms is None:
        return trials
    return f"{trials}; {rule.rule}: {rule.false_alarms.alarms} of {rule.false_alarms.trials} A/A alarmed"


def _error(rate: Rate) -> list[list[float]]:
    """Returns errorbar's argument for one point: the reach of the interval below and above it, in percent."""
    return [[100 * (rate.share - rate.low)], [100 * (rate.high - rate.share)]]
