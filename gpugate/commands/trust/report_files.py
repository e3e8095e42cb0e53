"""What a trust run leaves beside its trials: the report as JSON, as Markdown and as a picture."""

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
from gpugate.commands.trust.trials_file import Conditions, write_whole
from gpugate.machine.environment import Environment
from gpugate.store.codec import pretty, to_json, with_header

FORMAT = "gpugate-trust"
# History: 1: the report of one machine.
FORMAT_VERSION = 1
JSON_NAME, MARKDOWN_NAME, PLOT_NAME = "trust.json", "trust.md", "trust.png"


@dataclass(frozen=True)
class TrustFile:
    """`skipped` are the cases that could not be measured, with the reason."""

    conditions: Conditions
    skipped: Mapping[str, str]
    report: TrustReport


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
    document = with_header(FORMAT, FORMAT_VERSION, to_json(made))
    write_whole(folder / JSON_NAME, pretty(document) + "\n")
    write_whole(folder / MARKDOWN_NAME, markdown(made.report))
    write_whole(folder / PLOT_NAME, png(made.report))


def _machine(environment: Environment) -> str:
    versions = [environment.device_name]
    versions += [f"driver {environment.driver}"] if environment.driver else []
    versions += [f"torch {environment.packages['torch']}"] if "torch" in environment.packages else []
    return ", ".join(versions)
