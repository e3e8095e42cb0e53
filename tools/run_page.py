"""`python -m tools.run_page RUN.json [...]`: the tables of stored runs as Markdown, for results/, in order of time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from gpugate.report.view import RunView
from gpugate.store import run_file
from tools.markdown_table import plain, write_markdown
from tools.promises import is_strict

TEMPLATE = Path(__file__).with_suffix(".md")


def results_page(view: RunView) -> str:
    """Machine, date, driver and versions, the tables, and what was not PASS, skipped or failed."""
    packages = sorted(view.run.environment.packages.items())
    versions = ", ".join(f"{name} {version}" for name, version in packages) or "unknown"
    template = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(  # noqa: S701  # Markdown
        TEMPLATE.read_text(encoding="utf-8")
    )
    reference = describe_reference(view.run.started_at)
    writers = {"plain": plain, "write_markdown": write_markdown}
    return template.render(view=view, versions=versions, reference=reference, **writers) + "\n"


def describe_reference(started_at: str) -> str:
    """A line on what the speedups of a run are over, by its time."""
    defaults = "without TF32 in convolutions" if is_strict(started_at) else "with its own defaults"
    return f"the side in the column of that name, else the baseline: eager PyTorch {defaults}, or a library of the host"


def main(paths: Sequence[str]) -> None:
    """Prints the page of a run, or of several runs with a heading each."""
    runs = sorted((run_file.read(Path(path)) for path in paths), key=lambda run: run.started_at)
    for run in runs:
        heading = f"## The run of {run.started_at[:16].replace('T', ' ')} UTC\n\n" if len(runs) > 1 else ""
        sys.stdout.write(heading + results_page(RunView(run)) + ("" if run is runs[-1] else "\n"))


if __name__ == "__main__":
    main(sys.argv[1:])
