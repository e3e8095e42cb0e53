"""A trust report in words: one table of cases, one of rules, for a terminal of 100 columns and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from gpugate.commands.trust.analysis import CaseTrust, RuleTrust, TrustReport
from gpugate.commands.trust.rates import Rate
from gpugate.report.table import Column, Table, columns, escaped
from gpugate.report.terminal import printed

COLUMNS = 100
NOT_TRIED = "-"


def title(report: TrustReport) -> str:
    """Returns the title: the trials, and their machine."""
    processes = f"{report.processes} fresh process{'es' if report.processes > 1 else ''}"
    machine = f"{report.machine}: " if report.machine else ""
    return f"{machine}{report.trials:,} trials of {_cases(len(report.cases))} in {processes}"


def case_table(report: TrustReport) -> Table:
    """The results of our rule for every case."""
    slowdowns = _slowdowns(report)
    headings = _columns("group", "case", "trials", "runs", *_rule_headings(slowdowns), "cv %", "s")
    rows = tuple((case.group, *_case_cells(case, slowdowns)) for case in report.cases)
    return Table("", headings, rows, grouped=True, gap=1)


def rule_table(report: TrustReport) -> Table:
    """The results of every rule for all trials of a group."""
    slowdowns = _slowdowns(report)
    rows = tuple(
        (f"{group.name}, {_cases(group.cases)}", rule.rule, *_rule_cells(rule, slowdowns))
        for group in report.groups
        for rule in group.rules
    )
    return Table("", _columns("group", "rule", *_rule_headings(slowdowns)), rows, grouped=True, gap=1)


def nightly_table(report: TrustReport) -> Table:
    """False alarms of every rule when each case is judged once; a case without A/A trials is not counted."""
    cases = report.nightly[0].cases
    of_all = f" of {len(report.cases)}" if cases < len(report.cases) else ""
    suite = f"once a night, {_cases(cases)}{of_all}"
    rows = tuple((suite, one.rule, f"{one.expected:.2g}", f"{one.low:.2g}..{one.high:.2g}") for one in report.nightly)
    return Table("", _columns("suite", "rule", "false alarms expected", "interval"), rows, grouped=True, gap=1)


def notes(report: TrustReport) -> list[str]:
    """Returns the explanations that a new reader of the tables needs, one sentence each."""
    effects = [rate.design_effect for rate in _our_rates(report) if rate.design_effect is not None]
    ours = report.nightly[0].rule
    largest = f"at most {max(effects):.1f}" if effects else "not known"
    return [
        f"case: judged by {ours}; runs: fresh processes; s: median seconds per trial",
        "alarms: false ones among A/A trials, in which nothing changed; interval: of their rate in %, at 95 %",
        f"interval: allows for what trials of one process share (Korn and Graubard); design effect {largest}",
        "0.5%, 1%, ...: trials with that slowdown in which the rule alarmed, in %",
        "MDE: smallest slowdown tried from which on 95 % were caught (where the curve crosses 95 %)",
        "none: no slowdown can be told from none, since the rule alarms as often where nothing changed",
        "cv: standard deviation between processes of the ratio in A/A trials",
        f"{ours}: allows for as many checks as these cases have; a larger suite tolerates a little more",
    ]


def text(report: TrustReport, width: int = COLUMNS, colour: bool = False) -> str:
    """The tables as text for any stream; with `colour`, ANSI escapes."""
    return printed(renderables(report, width), width, colour)


def renderables(report: TrustReport, width: int) -> list[RenderableType]:
    """The tables for rich in `width` columns, in the order of reading."""
    parts = (part for table in _tables(report) for part in table.rich(width))
    told = [Text(note, style="dim", overflow="fold") for note in notes(report)]
    return [Text(title(report), style="bold"), *parts, Text(), *told]


def markdown(report: TrustReport) -> str:
    """The same for docs/trust.md: one table of cases, one of rules, the notes and where the rules come from."""
    sources = [f"- {escaped(rule)}: {escaped(source)}" for rule, source in report.sources.items()]
    blocks = [
        [escaped(title(report))],
        *([table.markdown()] for table in _tables(report)),
        [f"- {escaped(note)}" for note in notes(report)],
        ["Rules:"],
        sources,
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _slowdowns(report: TrustReport) -> list[float]:
    """Every slowdown above 0 that a case was tried with."""
    tried = {slowdown for case in report.cases for slowdown in case.rules[0].rates}
    return sorted(slowdown for slowdown in tried if slowdown > 0)


def _rule_headings(slowdowns: Sequence[float]) -> tuple[str, ...]:
    return ("alarms", "interval", *(f"{100 * slowdown:g}%" for slowdown in slowdowns), "MDE %")


def _case_cells(case: CaseTrust, slowdowns: Sequence[float]) -> tuple[str, ...]:
    cv = NOT_TRIED if case.between_run_cv is None else f"{100 * case.between_run_cv:.2g}"
    ours = _rule_cells(case.rules[0], slowdowns)
    return (
        _within(case.group, case.case_id),
        str(case.trials),
        str(case.processes),
        *ours,
        cv,
        f"{case.median_trial_s:.3g}",
    )


def _rule_cells(rule: RuleTrust, slowdowns: Sequence[float]) -> tuple[str, ...]:
    caught = (_caught(rule.rates.get(slowdown)) for slowdown in slowdowns)
    return (*_false_alarms(rule.false_alarms), *caught, _smallest_effect(rule, slowdowns))


def _false_alarms(rate: Rate | None) -> tuple[str, str]:
    """`2/200` and `0.1..3.6`, the interval in percent."""
    if rate is None:
        return NOT_TRIED, NOT_TRIED
    return f"{rate.alarms}/{rate.trials}", f"{100 * rate.low_by_process:.1f}..{100 * rate.high_by_process:.1f}"


def _caught(rate: Rate | None) -> str:
    """In percent; 100 and 0 mean all and none."""
    if rate is None:
        return NOT_TRIED
    if 0 < rate.alarms < rate.trials:
        return f"{min(99, max(1, round(100 * rate.share)))}"
    return "100" if rate.alarms else "0"


def _smallest_effect(rule: RuleTrust, slowdowns: Sequence[float]) -> str:
    """`1 (0.72)`: tried, and interpolated; `>10` where not even the largest was caught, `none` where all alarm."""
    if not slowdowns:
        return NOT_TRIED
    if rule.smallest_caught is None:
        return f">{100 * slowdowns[-1]:g}"
    if rule.minimum_detectable_effect is None:
        return "none"
    return f"{100 * rule.smallest_caught:g} ({100 * rule.minimum_detectable_effect:.2g})"


def _tables(report: TrustReport) -> tuple[Table, ...]:
    return case_table(report), rule_table(report), nightly_table(report)


def _columns(group: str, name: str, *figures: str) -> tuple[Column, ...]:
    return (Column(group, left=True), *columns(name, *figures))


def _cases(count: int) -> str:
    return f"{count} case{'' if count == 1 else 's'}"


def _our_rates(report: TrustReport) -> list[Rate]:
    return [detection.rate for case in report.cases for detection in case.rules[0].detections]


def _within(group: str, case_id: str) -> str:
    """`fp16` of `resnet50-inference/fp16/cuda` below the heading `resnet50-inference/cuda`."""
    first, _, last = group.rpartition("/")
    if last and case_id.startswith(f"{first}/") and case_id.endswith(f"/{last}"):
        return case_id[len(first) + 1 : -len(last) - 1] or case_id
    return case_id
