"""The sharpness of the recorded cases: the slowdown that each one's record detects, and the false alarms of a night.

`python -m tools.sharpness` writes sharpness.md of each machine below `results/`. It simulates the nights of an H200, in
three to four minutes.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpugate import units
from gpugate.report.table import Table, columns
from gpugate.report.view import SHARP
from gpugate.results.summary import History
from gpugate.store import baseline
from gpugate.store.json_file import write_atomically
from gpugate.store.source_hash import parse_module
from tools import simulated_nights as nights
from tools.machines import H200, MACHINES, ROOT, Machine
from tools.markdown_table import Markdown, write_markdown

NAME = "sharpness.md"
HEAD = """# Sharpness of the recorded cases of an {gpu}

`python -m tools.sharpness` writes this page from the records of `{machine}/`.
Its figures belong to the rules, the records and the promises of the hash `{rules}`.
"""
SIMULATED = """## Simulated nights

Each night, the whole suite is judged by the gate's own rules: records and promises, with up to three processes.
{billed} of {cases} records have a bill, which is judged, too; no duet is simulated. A step that takes longer runs its
kernels longer where these take half of it, and otherwise takes more CPU time, which is no evidence where threads wait
in a loop. The times of a bill vary as between the recorded processes.
All processes of a case share the loan of its night, which moves the optimized side and its bill. "As git shows" is a
standard deviation of 0.41 %, the largest of the loans in the history of the records, and 0.51 % for `inductor-fp16`;
with the loan before the four of these records, `inductor-fp16` has 2.15 %. 1.4 % is the largest
distance of two loans.
"As recorded", the variations and medians of a case are those of its record, which is in-sample. "Unknown", each night
draws them from what the record leaves open. "Recorded anew", the record is drawn from such a variation, too.
"""
LEFT_OUT = "## Each recorded process, judged by the record of the others\n"
OF_CASES = """## Cases

A case catches a slowdown by its wall time, 95 times in 100: log time less slope x log reference time. The slope and the
variation are shrunk over the cases.
"""
NIGHTS, SLOW_NIGHTS, RECORDINGS = 500, 150, 15
RULES = (
    "gpugate/judging/actions.py",
    "gpugate/judging/bill.py",
    "gpugate/judging/duet.py",
    "gpugate/judging/evidence.py",
    "gpugate/judging/rules.py",
    "gpugate/measurement/speedup.py",
    "gpugate/results/case.py",
    "gpugate/results/summary.py",
    "gpugate/statistics/intervals.py",
    "gpugate/statistics/policy.py",
    "gpugate/statistics/variation.py",
    "tools/sharpness.py",
    "tools/simulated_nights.py",
    "tools/trust/our_rule.py",
)


class CaseSharpness(NamedTuple):
    """The wall time of one case: shares, and the slope of its reference."""

    case_id: str
    detectable: float
    tolerance: float
    slope: float


def judge_cases(machine: Machine = H200) -> list[CaseSharpness]:
    """Every recorded case of a machine, the sharpest first."""
    files = baseline.load_all(machine.baselines)
    checks = 2 * sum(len(file.cases) for file in files.values())
    found = (_case(case_id, then, checks) for case_id, then in baseline.histories_of(files).items())
    return sorted(found, key=lambda one: (one.detectable, one.case_id))


def _case(case_id: str, then: History, checks: int) -> CaseSharpness:
    limits = then.wall_limits(checks)
    if limits is None:
        return CaseSharpness(case_id, math.inf, math.inf, 0.0)
    return CaseSharpness(case_id, limits.detectable, limits.allowed, limits.control.slope)


def hash_rules(machine: Machine) -> str:
    """Computes 16 hex digits of SHA-256 over the records, the promises and the code of RULES, but for its comments."""
    modules = [parse_module((ROOT / name).read_text(encoding="utf-8"), "") for name in RULES]
    parts = sorted({one.text for module in modules for one in module.statements})
    parts.append(repr(sorted(nights.load_promises(machine).items())))
    parts += [path.read_text(encoding="utf-8") for path in sorted(machine.baselines.rglob("*.json"))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def describe_simulation() -> str:
    suite = nights.load_cases()
    return SIMULATED.format(billed=nights.count_bills(suite), cases=len(suite))


def simulate() -> str:
    """The tables of the simulated nights of an H200."""
    suite = nights.load_cases()
    recordings = NIGHTS // nights.NIGHTS_OF_A_RECORD
    known = [(case, nights.copy_record(case)) for case in suite]
    free: list[tuple[nights.Case, nights.Truth | None]] = [(case, None) for case in suite]
    quiet = [
        ("no loan effect, as recorded", _draw_nights(known, nights.NO_LOANS)),
        (Markdown("**loans as git shows, as recorded**"), _draw_nights(known, nights.LOANS_IN_GIT)),
        ("loans as git shows, unknown", _draw_nights(free, nights.LOANS_IN_GIT)),
        *(
            (name, nights.simulate_recordings(suite, processes, nights.LOANS_IN_GIT, recordings, 0.0))
            for name, processes in (("loans as git shows, recorded anew", None), ("the same of three processes", 3))
        ),
        ("loans as git shows with the one before, as recorded", _draw_nights(known, nights.LOANS_WITH_THE_ONE_BEFORE)),
        ("loans of 1.4 %, as recorded", _draw_nights(known, nights.HARD_LOANS)),
    ]
    slow = [
        (Markdown("**by the records, no loan effect**"), _draw_nights(known, nights.NO_LOANS, nights.SLOWDOWN)),
        ("by the records, loans as git shows", _draw_nights(known, nights.LOANS_IN_GIT, nights.SLOWDOWN)),
        *(
            (name, nights.simulate_recordings(suite, processes, nights.LOANS_IN_GIT, RECORDINGS, nights.SLOWDOWN))
            for name, processes in (
                ("recorded anew, loans", None),
                ("the same of three processes", 3),
                ("the same of 11 processes", 11),
            )
        ),
    ]
    return "\n\n".join(
        [
            _table(("nights on which nothing changed", "false alarms a night", "nights with any", "most often"), quiet),
            _caught_table(slow),
        ]
    )


def judge_left_out(machine: Machine) -> str:
    """The gates of the recorded processes, each of which was left out of the record that judged it."""
    left = nights.leave_one_out(machine)
    return (
        f"{left.false_alarms} of {left.processes} gates were red, and {left.caught} with a step "
        f"{units.percent(nights.SLOWDOWN)} slower. The 99 % interval of {left.excluding} of {left.processes} "
        f"processes excludes the median of the others; of pairs and builds alone, it would be {left.excluding_alone}."
    )


def _draw_nights(
    suite: Sequence[tuple[nights.Case, nights.Truth | None]], loans: nights.Loans, slowdown: float = 0.0
) -> nights.Nights:
    count = SLOW_NIGHTS if slowdown else NIGHTS
    return nights.simulate_nights(suite, loans, count, np.random.default_rng(nights.SEED), slowdown)


def _table(headings: Sequence[str], found: Sequence[tuple[str, nights.Nights]]) -> str:
    names = list(nights.load_entries())
    rows = []
    for name, red in found:
        worst = int(red.mean(axis=0).argmax())
        most = f"`{names[worst]}` {units.percent(float(red[:, worst].mean()))}"
        rows.append((name, f"{red.sum(axis=1).mean():.3f}", units.percent(float(red.any(axis=1).mean())), most))
    return write_markdown(Table("", columns(*headings), tuple(rows)))


def _caught_table(found: Sequence[tuple[str, nights.Nights]]) -> str:
    rows = []
    for name, red in found:
        shares = red.mean(axis=0)
        caught = [f"{int((shares >= share).sum())} of {len(shares)}" for share in (nights.CAUGHT, 0.5)]
        rows.append((name, *caught, units.percent(float(shares.mean()))))
    headings = columns(
        f"a step {units.percent(nights.SLOWDOWN)} slower", "caught in >= 95 % of nights", ">= 50 %", "mean of all cases"
    )
    return write_markdown(Table("", headings, tuple(rows)))


def format_head(machine: Machine) -> str:
    name = machine.baselines.relative_to(ROOT).as_posix()
    return HEAD.format(gpu=machine.gpu, machine=name, rules=hash_rules(machine))


def format_cases(found: list[CaseSharpness]) -> str:
    sharp, median = sum(one.detectable <= SHARP for one in found), statistics.median(one.detectable for one in found)
    summary = (
        f"**{sharp} of {len(found)} cases** catch a slowdown of {units.percent(SHARP)}; the median detectable slowdown "
        f"is {units.percent(median)}."
    )
    headings = columns("case", "detectable", "tolerance", "slope of the reference")
    rows = tuple((one.case_id, _percent(one.detectable), _percent(one.tolerance), f"{one.slope:.2f}") for one in found)
    return f"{OF_CASES}\n{summary}\n\n{write_markdown(Table('', headings, rows))}\n"


def _percent(share: float) -> str:
    return units.percent(share) if math.isfinite(share) else "none"


if __name__ == "__main__":
    for machine in MACHINES:
        # The hash is taken first: it is of the code that simulates, not of what was edited meanwhile.
        parts = [format_head(machine)]
        parts += [f"{describe_simulation()}\n{simulate()}\n"] if machine is H200 else []
        parts += [f"{LEFT_OUT}\n{judge_left_out(machine)}\n", format_cases(judge_cases(machine))]
        write_atomically(machine.results / NAME, "\n".join(parts))
