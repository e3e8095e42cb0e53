"""Stand-in for ncu: its report is the environment that it has seen, which a real report contains too.

A profiled run keeps no variable that could say what it shall do: this stands in `plan.json` beside it.
"""

import json
import os
import sys
from pathlib import Path

PROGRAM = """#!{python}
import sys

sys.path.insert(0, {root!r})
from tests.support.fake_ncu import main

sys.exit(main(sys.argv[1:], {folder!r}))
"""


def install(folder: Path, log: str, reports: bool, index: dict[str, object]) -> None:
    """Makes an `ncu` in the folder, which a PATH may name. Its run has the index of captures `index`."""
    plan = {"log": log, "reports": reports, "index": index}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    root = str(Path(__file__).parents[2])
    program = PROGRAM.format(python=sys.executable, root=root, folder=str(folder))
    (folder / "ncu").write_text(program, encoding="utf-8")
    (folder / "ncu").chmod(0o755)


def main(words: list[str], folder: str) -> int:
    plan = json.loads(Path(folder, "plan.json").read_text(encoding="utf-8"))
    options = dict(word.lstrip("-").split("=", 1) for word in words if "=" in word)
    Path(folder, "words").write_text(json.dumps(words), encoding="utf-8")
    Path(options["log-file"]).write_text(plan["log"], encoding="utf-8")
    if plan["reports"]:
        Path(options["export"] + ".ncu-rep").write_text(json.dumps(dict(os.environ)), encoding="utf-8")
    Path(os.environ["GPUGATE_PROFILED_IN"], "index.json").write_text(json.dumps(plan["index"]), encoding="utf-8")
    return 0
