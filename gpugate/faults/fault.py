"""The value of `--perf-mutate`: one fault and its size. Imports no torch, so that reading the command line is fast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gpugate.errors import OptionError

OF_RANKS = ("one-bucket", "no-overlap", "no-average", "skip-rank", "slow-rank")  # of cases that span GPUs
# Spellings on the command line; the word after the colon stands for a number, which is required.
SPELLING: Mapping[str, str] = {
    "slow": "slow:PERCENT",
    "longer-kernel": "longer-kernel:PERCENT",
    "cpu-work": "cpu-work:PERCENT",
    "sync": "sync",
    "pageable": "pageable",
    "launch": "launch",
    "no-graph": "no-graph",
    "graph-break": "graph-break",
    "copy": "copy",
    "wrong": "wrong:EPS",
    "stale": "stale",
    "leak": "leak",
    "skip-work": "skip-work",
    **{kind: kind for kind in OF_RANKS},
}
TIMED = ("slow", "longer-kernel", "cpu-work")  # the faults whose size is a share of a time
EXAMPLE: Mapping[str, str] = {**{kind: f"{kind}:5" for kind in TIMED}, "wrong": "wrong:0.01"}
LARGEST: Mapping[str, float] = dict.fromkeys(TIMED, 1000.0)  # percent; beyond it a run would seem to hang


@dataclass(frozen=True)
class Fault:
    """A fault; `amount` is a percentage for those of TIMED, the relative L2 error of `wrong`, and unused otherwise."""

    kind: str
    amount: float = 0.0

    def __str__(self) -> str:
        """Spells the fault as on the command line, with all digits."""
        return f"{self.kind}:{repr(self.amount).removesuffix('.0')}" if self.kind in EXAMPLE else self.kind

    @staticmethod
    def parse(text: str) -> Fault:
        """Parses a value of `--perf-mutate`. Raises OptionError for anything but a known fault of a usable size."""
        kind, colon, amount = text.partition(":")
        if kind not in SPELLING:
            raise OptionError(f"--perf-mutate is {text!r}: use one of {', '.join(SPELLING.values())}")
        if kind in EXAMPLE:
            return Fault(kind, _amount(kind, amount, text))
        if colon:
            raise OptionError(f"--perf-mutate is {text!r}: {kind} has no size, give {kind} alone")
        return Fault(kind)


def _amount(kind: str, text: str, whole: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    largest = LARGEST.get(kind, math.inf)
    if not (0 < amount <= largest and math.isfinite(amount)):
        most = f" up to {largest:g}" if kind in LARGEST else ""
        raise OptionError(f"--perf-mutate is {whole!r}: give a number above 0{most}, such as {EXAMPLE[kind]}")
    return amount
