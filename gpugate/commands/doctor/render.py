"""The diagnosis as a text for people and as JSON for programs. This module decides nothing."""

from __future__ import annotations

from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpugate.commands.doctor.examination import Diagnosis
from gpugate.commands.doctor.finding import Finding, State
from gpugate.report.terminal import printed
from gpugate.store.codec import to_json
from gpugate.store.json_file import pretty, with_header

FORMAT = "gpugate-doctor"
# History: 1: the environment and a list of findings.
FORMAT_VERSION = 1
GAP = 2
STYLES = {State.OK: "green", State.ABSENT: "dim", State.BAD: "bold red"}


def document(diagnosis: Diagnosis) -> str:
    """Returns one JSON document, without environment variables and without output of a child other than its error."""
    body = {"trustworthy": not diagnosis.bad, **to_json(diagnosis)}
    return pretty(with_header(FORMAT, FORMAT_VERSION, body)) + "\n"


def text(diagnosis: Diagnosis, width: int, colour: bool) -> str:
    """Returns the whole diagnosis for any stream; with `colour`, with ANSI escapes."""
    return printed([renderable(diagnosis)], width, colour)


def renderable(diagnosis: Diagnosis) -> RenderableType:
    """Returns one table per group, with equal columns in all of them, and a last line that sums up."""
    names = max(len(finding.name) for finding in diagnosis.findings)
    parts: list[RenderableType] = []
    for group, findings in groupby(diagnosis.findings, key=lambda finding: finding.group):
        table = Table.grid(padding=(0, GAP, 0, 0))
        table.add_column(width=names, no_wrap=True)
        table.add_column(width=max(len(state.value) for state in State), no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            table.add_row(*_row(finding))
        parts += [Text(group.value, style="bold"), table, Text()]
    return Group(*parts, _conclusion(diagnosis))


def _row(finding: Finding) -> tuple[Text, Text, Text]:
    return Text(finding.name), Text(finding.state.value, style=STYLES[finding.state]), Text(finding.sentence)


def _conclusion(diagnosis: Diagnosis) -> Text:
    if diagnosis.bad:
        return Text(f"a gate run here would not be trustworthy: {', '.join(diagnosis.bad)}", style=STYLES[State.BAD])
    return Text("a gate run here would be trustworthy", style=STYLES[State.OK])
