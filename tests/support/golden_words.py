"""The golden texts of a run: nine runs as screen, details, results page and night page.

`python -m tests.support.golden_words` writes them to `tests/golden/words/`. A refactoring leaves those files as they
are; a commit that changes a word on purpose writes them again.

The runs are the three of the golden verdicts; two invented runs of an H200, one with a case for every outcome and one
with more cases than a screen has lines for; three made-up sessions: `gpu.json`, `cpu.json`, and `busy.json` beside
other work, with bills, duets and proofs; and a night of recorded processes with a fault on purpose, with a ladder, a
sweep and a slower case, which was cut off.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from gpugate import __version__
from gpugate.report.pages.night import night_page
from gpugate.report.screen import screen
from gpugate.report.terminal import render_text
from gpugate.report.view import RunView
from gpugate.results.run import RunResult
from gpugate.session.decide_again import decide_again
from gpugate.store import run_file
from tests.support import stored_runs
from tests.support.golden_verdicts import FOLDER, RUNS
from tests.support.recorded_nights import Faults, recorded_night

WORDS = FOLDER / "words"
COLUMNS, DETAILED_COLUMNS = 120, 200
SLOW = "video/segment/cuda-graph/cuda"
LOST = "two-layer-net/all/cuda"
_WORKLOADS = ("video/segment", "resnet18-training", "driving-workers", "two-layer-net")
_STYLE = re.compile("<style>.*?</style>", re.DOTALL)  # the look of a page has its own tests, in a browser


@cache
def texts() -> dict[str, str]:
    """Every golden text by the name of its file."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {name: decide_again(run_file.read(FOLDER / f"{name}.json")) for name in (*RUNS, "busy")}
        outcomes = stored_runs.every_outcome()
        runs["every-outcome"] = stored_runs.stored(Path(folder) / "run.json", *outcomes, gate=True, accepted=())
        runs["crowded"] = stored_runs.stored(Path(folder) / "run.json", *stored_runs.crowded())
    runs |= {name: run_file.read(FOLDER / f"{name}.json") for name in ("gpu", "cpu")}
    runs["night"] = _night()
    last = {
        "faulty": ("clean-night", runs["clean"]),
        "night": ("2026-11-22", _of_few_workloads(recorded_night(0, Faults(absent={LOST}), commit="a" * 40))),
    }
    return {
        name: words.replace(__version__, "VERSION")
        for run_name, run in runs.items()
        for name, words in _texts(run_name, run, last.get(run_name))
    }


def _night() -> RunResult:
    """Has a slower case, a skipped and a failed one, and one that was not reached."""
    failed, skipped = {"two-layer-net/no-sync/cuda": "out of memory"}, {"two-layer-net/cuda-graph/cuda": "no graph"}
    faults = Faults({SLOW: 0.3}, skipped, failed, packages={"torch": "2.12.0"})
    run = _of_few_workloads(recorded_night(5, faults, commit="b" * 40))
    run.mutated, run.interrupted = "slow:5", True
    last = list(run.cases.values())[-1]
    last.measurement, last.summary, last.verdicts = None, None, []
    return run


def _of_few_workloads(run: RunResult) -> RunResult:
    return replace(run, cases={name: case for name, case in run.cases.items() if case.workload in _WORKLOADS})


def _texts(name: str, run: RunResult, last: tuple[str, RunResult] | None) -> Iterator[tuple[str, str]]:
    view = RunView(run)
    yield f"{name}.screen.txt", render_text(screen(view, COLUMNS), COLUMNS, False) + "\n".join(view.next_command)
    yield f"{name}.details.txt", render_text(screen(view, DETAILED_COLUMNS, detailed=True), DETAILED_COLUMNS, False)
    yield (
        f"{name}.page.html",
        _STYLE.sub("", night_page(view, last or "no earlier night").decode()),
    )


if __name__ == "__main__":
    for name, words in texts().items():
        (WORDS / name).write_text(words, encoding="utf-8")
    sys.stdout.write(f"{WORDS} is written\n")
