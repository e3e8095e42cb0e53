"""`python -m tools.run_page RUN.json`: the tables of a stored run as Markdown, for results/."""

from __future__ import annotations

import sys
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from gpugate.report.table import plain
from gpugate.report.view import RunView
from gpugate.store import run_file

TEMPLATE = Path(__file__).with_suffix(".md")


def results_page(view: RunView) -> str:
    """Machine, date, driver and versions, the tables, and what was not PASS, skipped or failed."""
    packages = sorted(view.run.environment.packages.items())
    versions = ", ".join(f"{name} {version}" for name, version in packages) or "unknown"
    template = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(  # noqa: S701  # Markdown
        TEMPLATE.read_text(encoding="utf-8")
    )
    return template.render(view=view, versions=versions, plain=plain) + "\n"


if __name__ == "__main__":
    sys.stdout.write(results_page(RunView(run_file.read(Path(sys.argv[1])))))
