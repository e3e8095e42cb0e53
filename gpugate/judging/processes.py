"""The common outcome of several fresh processes: the middle one decides. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpugate.results.verdict import Outcome

_FROM_BAD_TO_GOOD = (Outcome.REGRESSED, Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.IMPROVED)


def vote(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of the middle one of several processes; INCONCLUSIVE where two processes contradict each other."""
    worse, better = _middle(outcomes)
    return Outcome.INCONCLUSIVE if worse is Outcome.REGRESSED is not better else worse


def is_disputed(outcomes: Sequence[Outcome]) -> bool:
    """True where the common outcome is INCONCLUSIVE because the two middle processes have different outcomes."""
    worse, better = _middle(outcomes)
    return vote(outcomes) is Outcome.INCONCLUSIVE and worse is not better


def _middle(outcomes: Sequence[Outcome]) -> tuple[Outcome, Outcome]:
    """The two middle ones from bad to good; of an odd number both are the same."""
    ordered = sorted(outcomes, key=_FROM_BAD_TO_GOOD.index)
    return ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
