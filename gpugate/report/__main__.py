"""`python -m gpugate.report RUN.json`: the tables of a stored run as Markdown, for results/."""

from __future__ import annotations

import sys
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.report.markdown import results_page
from gpugate.store import run_file


def main(arguments: list[str]) -> int:
    """Prints the table; 2 and one sentence on stderr for a file that cannot be read."""
    if len(arguments) != 1:
        print("usage: python -m gpugate.report RUN.json, a file that --perf-json wrote", file=sys.stderr)
        return 2
    try:
        print(results_page(run_file.read(Path(arguments[0]))), end="")
    except GpugateError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
