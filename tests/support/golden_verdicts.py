"""The golden file of verdicts: recorded processes and stored runs, judged by the code as it is.

`python -m tests.support.golden_verdicts` judges them and writes `tests/golden/verdicts.json`. A refactoring leaves that
file as it is; a commit that changes a verdict on purpose writes it again and says why.

Two sources are judged:

- every process that a case under `baselines/nvidia-h200/` has recorded, against the record itself, with its promise
  for an H200, once by itself and once with the next two processes as its confirmations;
- three stored runs of a small project on a CPU: `clean.json`; `faulty.json`, in which each check catches a fault; and
  `cut-off.json`, whose process died in the build of its last case.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpugate.measurement.record import Measurement
from gpugate.results.case import Remembered
from gpugate.results.summary import History
from gpugate.results.verdict import Verdict
from gpugate.session.decide_again import decide_again
from gpugate.store import run_file
from gpugate.store.baseline import Entry
from gpugate.workload import Case
from tests.support import recorded_nights

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/golden"
GOLDEN = FOLDER / "verdicts.json"
RUNS = ("clean", "faulty", "cut-off")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
Json = dict[str, Any]


def judged() -> Json:
    """Every verdict of both sources, as JSON."""
    return {"records": records(), "runs": {name: run(FOLDER / f"{name}.json") for name in RUNS}}


def records() -> Json:
    """Returns by case the tolerances of its record, and the verdicts of each recorded process, alone and confirmed."""
    entries, histories = recorded_nights.records()
    cases = recorded_nights.cases()
    return {case_id: _record(cases[case_id], entry, histories[case_id]) for case_id, entry in entries.items()}


def _record(case: Case, entry: Entry, history: History) -> Json:
    record = entry.record
    remembered = recorded_nights.remember(record, history)
    measured = [recorded_nights.measurement(case.id, record, process) for process in record.processes]

    def decide(processes: list[Measurement]) -> Json:
        return _verdicts(recorded_nights.judge(case, record, remembered, processes).verdicts)

    first = decide(measured[:1])
    return {
        **_tolerances(remembered),
        # What is recorded of outputs and counters is one value for all processes.
        "outputs and counters": {name: first[name] for name in ("equivalence", "counters")},
        "alone": [_timed(decide([one])) for one in measured],
        "confirmed": [_timed(decide([*measured[index:], *measured][:3])) for index in range(len(measured))],
    }


def _tolerances(remembered: Remembered) -> Json:
    then = remembered.current
    limits = then.wall_limits(remembered.checks)
    slope = then.control.slope if then.control is not None else None
    allowed, detectable = (limits.allowed, limits.detectable) if limits is not None else (0.0, math.inf)
    found = {"wall": allowed, "slope": slope, "detectable": detectable}
    return {"current": {name: _short(value) for name, value in found.items()}}


def run(path: Path) -> Json:
    """Decides the cases of a stored run again; returns the verdicts by case."""
    decided = decide_again(run_file.read(path))
    return {case_id: _verdicts(case.verdicts) or str(case.error) for case_id, case in decided.cases.items()}


def _timed(verdicts: Json) -> Json:
    return {name: found for name, found in verdicts.items() if name in ("speedup", "throughput")}


def _verdicts(verdicts: list[Verdict]) -> Json:
    """By check: the outcome, the reason code, the verdict's numbers, and the numbers that its reasons name, the
    smallest first."""
    return {
        one.check: [
            one.outcome.value,
            one.code.value,
            {name: _short(value) for name, value in one.numbers.items()},
            " ".join(sorted(_NUMBER.findall(" ".join((one.reason, *one.circumstances))), key=float)),
        ]
        for one in verdicts
    }


def _short(value: float | str | None) -> float | str | None:
    """Nine digits: the last ones of a float are those of a library's version."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


def text(document: Json) -> str:
    """A line for every process, so that a changed verdict is a changed line."""
    return "".join(f"{line}\n" for line in _lines(document, ""))


def _lines(value: Any, before: str) -> Iterator[str]:
    deep = isinstance(value, dict) and any(isinstance(one, dict | list) for one in value.values())
    if deep or (isinstance(value, list) and value and isinstance(value[0], dict)):
        opening, closing = "{}" if deep else "[]"
        entries = list(value.items() if deep else enumerate(value))
        yield f"{before}{opening}"
        for index, (name, one) in enumerate(entries):
            key = f"{json.dumps(name)}: " if deep else ""
            *lines, last = _lines(one, key)
            yield from (f" {line}" for line in lines)
            yield f" {last}{',' if index < len(entries) - 1 else ''}"
        yield closing
    else:
        yield f"{before}{json.dumps(value)}"


if __name__ == "__main__":
    GOLDEN.write_text(text(judged()), encoding="utf-8")
    sys.stdout.write(f"{GOLDEN.relative_to(ROOT)} is written\n")
