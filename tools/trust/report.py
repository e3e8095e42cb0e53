"""A trust report in words: a table of cases and a table of rules, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gpugate.report.table import Column, Table, columns, plain
from gpugate.report.terminal import render_text
from gpugate.units import number_of
from tools.trust.analysis import CaseTrust, RuleTrust, TrustReport
from tools.trust.rates import Rate

NOT_TRIED = "-"
NOTES = (
    "case: judged by the first rule; runs: fresh processes; s: median seconds per trial",
    "alarms: false ones among A/A trials, in which nothing changed; interval: of their rate in %, at 95 %",
    "interval: it allows for what trials of one process share (Korn and Graubard)",
    "0.5%, 1%, ...: trials with that slowdown in which the rule alarmed, in %",
    "MDE: smallest slowdown tried from which on 95 % were caught",
    "cv: standard deviation between processes of the ratio in A/A trials",
    "gpugate: allows for as many checks as these cases have; a larger suite tolerates a little more",
)


def title(report: TrustReport) -> str:
    """The number of trials, and their machine."""
    processes = number_of(report.processes, "fresh process", "fresh processes")
    machine = f"{report.machine}: " if report.machine else ""
    return f"{machine}{report.trials:,} trials of {number_of(len(report.cases), 'case')} in {processes}"


def case_table(report: TrustReport) -> Table:
    """The alarms of the first rule for every case."""
    slowdowns = _slowdowns(report)
    headings = _columns("group", "case", "trials", "runs", *_rule_headings(slowdowns), "cv %", "s")
    return Table("", headings, tuple(_case_row(case, slowdowns) for case in report.cases), grouped=True, gap=1)


def rule_table(report: TrustReport) -> Table:
    """The alarms of every rule for all trials of a group."""
    slowdowns = _slowdowns(report)
    rows = tuple(
        (f"{group.name}, {number_of(group.cases, 'case')}", rule.rule, *_rule_cells(rule, slowdowns))
        for group in report.groups
        for rule in group.rules
    )
    return Table("", _columns("group", "rule", *_rule_headings(slowdowns)), rows, grouped=True, gap=1)


def text(report: TrustReport, width: int, colour: bool = False) -> str:
    """The tables as text for any stream; with `colour`, ANSI escapes."""
    tables = [*case_table(report).rich(width), *rule_table(report).rich(width)]
    notes = [Text(note, style="dim", overflow="fold") for note in NOTES]
    return render_text([Text(title(report), style="bold"), *tables, Text(), *notes], width, colour)


def markdown(report: TrustReport) -> str:
    notes = "\n".join(f"- {plain(note)}" for note in NOTES)
    blocks = [plain(title(report)), case_table(report).markdown(), rule_table(report).markdown(), notes]
    return "\n\n".join(blocks) + "\n"


def _slowdowns(report: TrustReport) -> list[float]:
    """Every slowdown above 0 that a case was tried with."""
    return sorted({slowdown for case in report.cases for slowdown in case.alarms.rates if slowdown > 0})


def _columns(group: str, name: str, *figures: str) -> tuple[Column, ...]:
    return (Column(group, left=True), *columns(name, *figures))


def _rule_headings(slowdowns: Sequence[float]) -> tuple[str, ...]:
    return ("alarms", "interval", *(f"{100 * slowdown:g}%" for slowdown in slowdowns), "MDE %")


def _case_row(case: CaseTrust, slowdowns: Sequence[float]) -> tuple[str, ...]:
    cv = NOT_TRIED if case.between_run_cv is None else f"{100 * case.between_run_cv:.2g}"
    figures = (str(case.trials), str(case.processes), *_rule_cells(case.alarms, slowdowns))
    return (case.group, _within(case.group, case.case_id), *figures, cv, f"{case.median_trial_s:.3g}")


def _rule_cells(rule: RuleTrust, slowdowns: Sequence[float]) -> tuple[str, ...]:
    caught = (_caught(rule.rates.get(slowdown)) for slowdown in slowdowns)
    return (*_false_alarms(rule.false_alarms), *caught, _smallest_caught(rule, slowdowns))


def _false_alarms(rate: Rate | None) -> tuple[str, str]:
    """`2/200` and `0.1..3.6`, the interval in percent."""
    if rate is None:
        return NOT_TRIED, NOT_TRIED
    return f"{rate.alarms}/{rate.trials}", f"{100 * rate.low:.1f}..{100 * rate.high:.1f}"


def _caught(rate: Rate | None) -> str:
    """Writes the share of alarms in percent: 100 for all, 0 for none."""
    if rate is None:
        return NOT_TRIED
    if 0 < rate.alarms < rate.trials:
        return f"{min(99, max(1, round(100 * rate.share)))}"
    return "100" if rate.alarms else "0"


def _smallest_caught(rule: RuleTrust, slowdowns: Sequence[float]) -> str:
    """Writes the smallest caught slowdown in percent: `>10` where not even the largest slowdown was caught."""
    if not slowdowns:
        return NOT_TRIED
    return f">{100 * slowdowns[-1]:g}" if rule.smallest_caught is None else f"{100 * rule.smallest_caught:g}"


def _within(group: str, case_id: str) -> str:
    """`fp16` of `resnet50-inference/fp16/cuda` in the group `resnet50-inference/cuda`."""
    first, _, last = group.rpartition("/")
    return case_id.removeprefix(f"{first}/").removesuffix(f"/{last}") or case_id
