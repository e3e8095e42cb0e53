"""Stand-in for ncu: its report is which launches of a table pass its filters, and the environment that it has seen.

What it prints of a report is in `table.json` beside it, since a profiled run keeps no variable that could say so. The
runs 0 and 1 make one where they are in `reports`; launches in ranges that are `gone` do not come again in run 1.
"""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAM = """#!{python}
import sys

sys.path.insert(0, {root!r})
from tests.support.fake_ncu import main

sys.exit(main(sys.argv[1:], {folder!r}))
"""


def install(folder: Path, rows: list[list[str]], **more: object) -> None:
    """Makes an `ncu` in the folder, which a PATH may name."""
    (folder / "table.json").write_text(json.dumps({"rows": rows, **more}), encoding="utf-8")
    root = str(Path(__file__).parents[2])
    program = PROGRAM.format(python=sys.executable, root=root, folder=str(folder))
    (folder / "ncu").write_text(program, encoding="utf-8")
    (folder / "ncu").chmod(0o755)


class Filters:
    """The filters that ncu's options set, by name, as ncu's manual defines them."""

    def __init__(self, words: Sequence[str]) -> None:
        self._options = dict(word.lstrip("-").split("=", 1) for word in words if "=" in word)

    def lets_through(self, symbol: str) -> bool:
        if "kernel-name" not in self._options:
            return True
        assert self._options["kernel-name-base"] == "mangled"
        operator, _, expression = self._options["kernel-name"].partition(":")
        assert operator == "regex"
        return bool(re.search(expression, symbol))


def main(words: list[str], folder: str) -> int:
    here = Path(folder)
    table = json.loads((here / "table.json").read_text())
    options = dict(word.lstrip("-").split("=", 1) for word in words if "=" in word)
    if words[0] == "--import":
        return _print(words, options, table)
    with (here / "words").open("a") as file:
        print(json.dumps(words), file=file)
    Path(options["log-file"]).write_text(table["log"])
    if int("kernel-name" in options) in table["reports"]:
        filters = Filters(words)
        rows = [row for row in table["rows"] if "kernel-name" not in options or row[5] not in table["gone"]]
        passed = [row for row in rows if filters.lets_through(row[2])]
        report = {"passed": passed, "environment": dict(os.environ)}
        Path(options["export"] + ".ncu-rep").write_text(json.dumps(report))
    Path(os.environ["GPUGATE_PROFILED_IN"], "index.json").write_text((here / "index.json").read_text())
    return 0


def _print(words: list[str], options: dict[str, str], table: dict[str, object]) -> int:
    if "--nvtx" in words or any(word.startswith("--section") for word in words):
        print("==ERROR== Invalid option for --import")
        return 1
    spelled = table["spelled"] if options["print-kernel-base"] == "demangled" else {}
    print(table["head"])
    for number, row in enumerate(json.loads(Path(words[1]).read_text())["passed"]):
        name = spelled.get(row[2], row[2]) + os.environ.get("CI_JOB_TOKEN", "")
        cells = [str(number), row[1], name, *row[3:]]
        print(",".join('"' + cell.replace('"', '""') + '"' for cell in cells))
    return 0
