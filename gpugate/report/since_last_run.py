"""The lines about the last run of the same host: the cases that moved since then by more than their noise. Pure."""

from __future__ import annotations

from gpugate import units
from gpugate.results.changes import Changes, Moved, facts_of_night
from gpugate.results.run import UNKNOWN, Night

MOST_CASES = 5  # that moved the furthest; `gpugate history` has all


def describe_moves(before: Night, now: Night) -> list[str]:
    """The lines about the cases that both runs measured; none where they have no case in common."""
    changes = Changes(facts_of_night(before), facts_of_night(now))
    new, shared = len(changes.gained), len(now.cases) - len(changes.gained)
    if not shared:
        return []
    found = changes.moved
    head = f"since the last run here, {_name(before)}:"
    rest = [f"{units.number_of(new, 'case')} not measured then"] if new else []
    if not found:
        one = shared == 1
        inside = "its case is inside its noise" if one else f"all {shared} cases are inside their noise"
        return [f"{head} {'; '.join([inside, *rest])}"]
    lines = [f"  {moved.case_id}: {_describe(moved)}, outside its noise" for moved in found[:MOST_CASES]]
    if len(found) > MOST_CASES:
        rest.insert(0, f"{len(found) - MOST_CASES} more moved (gpugate history has all)")
    others = shared - len(found)
    if others:
        inside = "the other case is inside its noise" if others == 1 else f"the other {others} are inside their noise"
        rest.insert(0, inside)
    return [head, *lines, *([f"  {'; '.join(rest)}"] if rest else [])]


def _name(night: Night) -> str:
    branch = night.provenance.branch
    on = f" on {branch}" if branch not in (None, UNKNOWN) else ""
    commit = "of an unknown commit" if night.version == UNKNOWN else f"of {night.version}{on}"
    return f"{night.started:%Y-%m-%d %H:%M} {commit}"


def _describe(moved: Moved) -> str:
    """`speedup 9.31x -> 8.72x (-6.3 %), per step ...`: only what is outside its noise."""
    changes = (("speedup", moved.speedup, units.ratio), ("per step", moved.per_step_ms, units.milliseconds))
    words = (
        f"{name} {written(one.before.median)} -> {written(one.after.median)} ({units.signed_percent(one.share)})"
        for name, one, written in changes
        if not one.is_noise
    )
    return ", ".join(words)
