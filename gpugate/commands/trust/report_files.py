"""The report that a trust run writes beside its trials: as JSON, as Markdown and as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpugate.commands.trust.analysis import TrustReport, analyse
from gpugate.commands.trust.folder import Taken
from gpugate.commands.trust.our_rule import our_rules
from gpugate.commands.trust.plot import png
from gpugate.commands.trust.report import markdown
from gpugate.commands.trust.rival_rules import RIVALS
from gpugate.commands.trust.trials_file import Conditions
from gpugate.errors import TrustError
from gpugate.machine.environment import Environment
from gpugate.store.json_file import JsonFile, NextSteps, write_atomically

JSON_NAME, MARKDOWN_NAME, PLOT_NAME = "trust.json", "trust.md", "trust.png"


@dataclass(frozen=True)
class TrustFile:
    """`skipped` are the cases that could not be measured, with the reason."""

    conditions: Conditions
    skipped: Mapping[str, str]
    report: TrustReport


_AGAIN = "make it again with --report-only"
FILE = JsonFile(
    "gpugate-trust",
    1,  # History: 1: the report of one machine.
    TrustFile,
    TrustError,
    NextSteps(_AGAIN, _AGAIN, _AGAIN, unwritable="make room, every trial is kept"),
)


def reported(taken: Taken) -> TrustFile:
    """Raises ValueError for no trials."""
    if taken.conditions is None:
        raise ValueError("no trials: there is nothing to report")
    rules = [*our_rules(taken.trials), *RIVALS]
    return TrustFile(
        conditions=taken.conditions,
        skipped=taken.skipped,
        report=analyse(taken.trials, rules, _machine(taken.conditions.environment)),
    )


def write_report(folder: Path, made: TrustFile) -> None:
    """Raises TrustError for what cannot be written, and PlotError without matplotlib; the old files then stay."""
    FILE.write(folder / JSON_NAME, made)
    _write(folder / MARKDOWN_NAME, markdown(made.report))
    _write(folder / PLOT_NAME, png(made.report))


def _write(path: Path, content: str | bytes) -> None:
    with FILE.writing(path):
        write_atomically(path, content)


def _machine(environment: Environment) -> str:
    versions = [environment.device_name]
    versions += [f"driver {environment.driver}"] if environment.driver else []
    versions += [f"torch {environment.packages['torch']}"] if "torch" in environment.packages else []
    return ", ".join(versions)
