"""The diagnosis as a text for people and as JSON for programs. This module decides nothing."""

from __future__ import annotations

from rich.text import Text

from gpugate.commands.doctor.examination import Diagnosis
from gpugate.commands.doctor.finding import ProbeState
from gpugate.report.table import STYLES, Column, Table
from gpugate.report.terminal import render_text
from gpugate.report.visible_text import Rendered
from gpugate.store.codec import to_json
from gpugate.store.json_file import pretty, with_header

FORMAT = "gpugate-doctor"
# History: 1: the environment and a list of findings.
FORMAT_VERSION = 1


def document(diagnosis: Diagnosis) -> str:
    """Returns one JSON document, without environment variables and without output of a child other than its error."""
    body = {"trustworthy": not diagnosis.bad, **to_json(diagnosis)}
    return pretty(with_header(FORMAT, FORMAT_VERSION, body)) + "\n"


def text(diagnosis: Diagnosis, width: int, colour: bool) -> str:
    """Returns a group of lines for each group of findings, and a last line that sums up, for any stream; with
    `colour`, with ANSI escapes."""
    rows = [(one.group.value, one.name, one.state.value, one.sentence) for one in diagnosis.findings]
    headless = (Column("", left=True),) * 4
    table = Table("", headless, tuple(rows), grouped=True)
    return Rendered(render_text([*table.rich(width), Text(), _conclusion(diagnosis)], width, colour).lstrip("\n"))


def _conclusion(diagnosis: Diagnosis) -> Text:
    if diagnosis.bad:
        return Text(
            f"a gate run here would not be trustworthy: {', '.join(diagnosis.bad)}", style=STYLES[ProbeState.BAD]
        )
    return Text("a gate run here would be trustworthy", style=STYLES[ProbeState.OK])
