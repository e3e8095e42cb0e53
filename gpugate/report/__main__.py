"""`python -m gpugate.report RUN.json`: the tables of a stored run as Markdown, for results/."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.report.markdown import results_page
from gpugate.report.view import RunView
from gpugate.report.visible_text import show_controls
from gpugate.store import run_file


def main(words: Sequence[str] | None = None) -> int:
    """Prints the tables; 2 and one sentence on stderr for a file that cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m gpugate.report", description="the tables of a run, as Markdown")
    parser.add_argument("run", metavar="RUN.json", type=Path, help="a file that --perf-json or --perf-report wrote")
    try:
        print(results_page(RunView(run_file.read(parser.parse_args(words).run))), end="")
    except GpugateError as error:
        print(show_controls(str(error)), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
