"""Counters of torch.compile for one build of a side: what torch's counts of the whole process gain while it runs."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpugate.counter_names import COMPILER_COUNTERS

LIMIT = "recompile_limit"  # in torch's messages about either of its limits


class CompilerCounters:
    """Counts while a side is built, takes its first step, computes outputs and runs timed blocks."""

    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()  # by name, and the compilations of each frame by its number
        self.limit_problem: str | None = None  # names the function for which torch reached its limit

    @contextmanager
    def count(self) -> Iterator[None]:
        before = _read()
        yield
        self._counts += _read() - before
        if self._counts[LIMIT] and self.limit_problem is None:
            self.limit_problem = (
                f"torch.compile reached its limit of recompilations of {_function_at_limit()}: further forms of input "
                f"run eagerly; compile for dynamic shapes, or raise torch._dynamo.config.{LIMIT}"
            )

    def counters(self) -> dict[str, float]:
        """Returns the counts by the names of gpugate.counter_names.

        A function that both sides compile is one frame to torch: the first compilation by a side is no recompilation.
        """
        again = sum(n - 1 for frame, n in self._counts.items() if isinstance(frame, int)) - self._counts[LIMIT]
        return {name: float(self._counts[name]) for name in COMPILER_COUNTERS} | {"recompilations": max(0.0, again)}


def _read() -> Counter[Any]:
    """Reads torch's counts. It never imports the compiler, which takes 3 s."""
    convert_frame, utils = (sys.modules.get(f"torch._dynamo.{name}") for name in ("convert_frame", "utils"))
    if convert_frame is None or utils is None:
        return Counter()
    found = defaultdict(Counter, utils.counters)  # a copy: a look-up adds the missing names
    counts = Counter(convert_frame.FRAME_COMPILE_COUNTER)
    counts["compiled_graphs"] = found["stats"]["unique_graphs"]
    counts["graph_breaks"] = found["graph_break"].total()
    counts["eager_frames"] = found["frames"]["total"] - found["frames"]["ok"]
    counts[LIMIT] = sum(count for message, count in found["unimplemented"].items() if LIMIT in message)
    return counts


def _function_at_limit() -> str:
    """Finds the function by the number of its frame, which torch notes beside the failed compilation."""
    metrics = sys.modules["torch._dynamo.utils"].get_compilation_metrics()
    frames = [(str(one.compile_id).partition("/")[0], one) for one in metrics]
    failed = [frame for frame, one in frames if LIMIT in (one.fail_reason or "")]
    names = [one.co_name for frame, one in frames if frame in failed[-1:] and one.co_name]
    return repr(names[-1]) if names else "a function"
