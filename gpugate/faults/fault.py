"""The value of `--perf-mutate`: one fault and its size. Imports no torch, so that reading the command line is fast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gpugate.errors import OptionError


class Kind(NamedTuple):
    """One known fault. `size` is the word for its number, as in `slow:PERCENT`; a fault without one takes no number."""

    size: str = ""
    example: float = 0.0
    largest: float = math.inf
    not_on_a_cpu: str | None = None  # the reason why a case of a CPU cannot have it
    of_ranks: bool = False  # only a case that spans GPUs can have it
    caught_by: tuple[str, ...] = ("counters",)  # one of these checks must fail


def _make_timed(*caught_by: str, not_on_a_cpu: str | None = None) -> Kind:
    return Kind("PERCENT", 5, 1000, not_on_a_cpu, caught_by=caught_by)  # beyond 1000 % a run would seem to hang


_OF_OUTPUTS = ("equivalence",)
KINDS: Mapping[str, Kind] = {
    "slow": _make_timed("speedup", "throughput"),
    "longer-kernel": _make_timed("counters", not_on_a_cpu="a CPU runs no kernels whose time could be counted"),
    "cpu-work": _make_timed("speedup", "throughput", "counters"),
    "sync": Kind(not_on_a_cpu="a CPU has no device to wait for"),
    "pageable": Kind(not_on_a_cpu="a CPU copies nothing to a device"),
    "launch": Kind(not_on_a_cpu="a CPU launches no kernels that could be counted"),
    "no-graph": Kind(not_on_a_cpu="a CPU captures no CUDA graphs"),
    "graph-break": Kind(),
    "copy": Kind(not_on_a_cpu="a CPU copies nothing from a device"),
    "wrong": Kind("EPS", 0.01, caught_by=_OF_OUTPUTS),
    "stale": Kind(caught_by=_OF_OUTPUTS),
    "leak": Kind(not_on_a_cpu="the memory of a CPU is not counted"),
    "skip-work": Kind(caught_by=_OF_OUTPUTS),
    **dict.fromkeys(("one-bucket", "no-overlap"), Kind(of_ranks=True)),
    **dict.fromkeys(("no-average", "skip-rank"), Kind(of_ranks=True, caught_by=_OF_OUTPUTS)),
    "slow-rank": Kind(of_ranks=True),
}
OF_RANKS = tuple(name for name, kind in KINDS.items() if kind.of_ranks)
TIMED = tuple(name for name, kind in KINDS.items() if kind.size == "PERCENT")  # their size is a share of a time
SPELLING = {name: f"{name}:{kind.size}" if kind.size else name for name, kind in KINDS.items()}
EXAMPLE = {name: f"{name}:{kind.example:g}" for name, kind in KINDS.items() if kind.size}


@dataclass(frozen=True)
class Fault:
    """A fault; `amount` is a percentage for those of TIMED, the relative L2 error of `wrong`, and unused otherwise."""

    kind: str
    amount: float = 0.0

    def __str__(self) -> str:
        """Spells the fault as on the command line, with all digits."""
        return f"{self.kind}:{repr(self.amount).removesuffix('.0')}" if KINDS[self.kind].size else self.kind

    @staticmethod
    def parse(text: str) -> Fault:
        """Parses a value of `--perf-mutate`. Raises OptionError for anything but a known fault of a usable size."""
        name, colon, number = text.partition(":")
        kind = KINDS.get(name)
        if kind is None:
            raise OptionError(f"--perf-mutate is {text!r}: use one of {', '.join(SPELLING.values())}")
        if not kind.size:
            if colon:
                raise OptionError(f"--perf-mutate is {text!r}: {name} has no size, give {name} alone")
            return Fault(name)
        try:
            amount = float(number)
        except ValueError:
            amount = math.nan
        if not (0 < amount <= kind.largest and math.isfinite(amount)):
            most = f" up to {kind.largest:g}" if math.isfinite(kind.largest) else ""
            raise OptionError(f"--perf-mutate is {text!r}: give a number above 0{most}, such as {EXAMPLE[name]}")
        return Fault(name, amount)
