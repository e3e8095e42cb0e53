"""The common outcome of several fresh processes: the middle one decides. Its words name that process. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gpugate.results.verdict import Outcome

_FROM_BAD_TO_GOOD = (Outcome.REGRESSED, Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.IMPROVED)
_VERBS = {
    Outcome.PASS: ("holds", "hold"),
    Outcome.IMPROVED: ("beats", "beat"),
    Outcome.REGRESSED: ("is below", "are below"),
    Outcome.INCONCLUSIVE: ("is not clearly on either side of", "are not clearly on either side of"),
}


def voted(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of the middle one of several processes; INCONCLUSIVE where two processes contradict each other."""
    worse, better = _middle(outcomes)
    return Outcome.INCONCLUSIVE if worse is Outcome.REGRESSED is not better else worse


def disputed(outcomes: Sequence[Outcome]) -> bool:
    """True where the common outcome is INCONCLUSIVE because the two middle processes have different outcomes."""
    worse, better = _middle(outcomes)
    return voted(outcomes) is Outcome.INCONCLUSIVE and worse is not better


def decider(processes: int) -> str:
    """The name of the process that decides for two processes or more."""
    if processes == 2:
        return "both"
    return f"the middle one of {processes}" if processes % 2 else f"the middle two of {processes}"


def predicate(outcome: Outcome, processes: int, is_disputed: bool = False) -> str:
    """`holds` of one process, `the middle one of 3 holds`, `both hold` or `they disagree about` of several.

    `outcome` is one of those that processes vote on.
    """
    if is_disputed:
        return "they disagree about"
    one, several = _VERBS[outcome]
    return one if processes == 1 else f"{decider(processes)} {one if processes % 2 else several}"


def elsewhere(values: Sequence[str]) -> str:
    """`, in fresh processes 2.81x and 2.80x`: the measurements of the confirmations; empty without one."""
    if not values:
        return ""
    return f", in {'a fresh process' if len(values) == 1 else 'fresh processes'} {' and '.join(values)}"


def _middle(outcomes: Sequence[Outcome]) -> tuple[Outcome, Outcome]:
    """The two middle ones from bad to good; of an odd number both are the same."""
    ordered = sorted(outcomes, key=_FROM_BAD_TO_GOOD.index)
    return ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
