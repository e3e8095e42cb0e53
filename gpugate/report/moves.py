"""The cases that moved between two runs by more than their noise, in words."""

from __future__ import annotations

from gpugate import units
from gpugate.results.changes import Changes, Moved
from gpugate.results.run import UNKNOWN, Night

MOST_MOVED = 5  # that moved the furthest; `gpugate history` has all


def describe_moves(before: Night, now: Night) -> list[str]:
    """The lines about the cases that both runs measured; none where they have no case in common."""
    shared, found = len(now.cases.keys() & before.cases.keys()), Changes(before, now).moved
    if not shared:
        return []
    counts = {
        f"inside {'its' if shared - len(found) == 1 else 'their'} noise": shared - len(found),
        "moved less far (gpugate history has all)": len(found[MOST_MOVED:]),
        "not measured then": len(now.cases) - shared,
    }
    rest = "; ".join(f"{units.number_of(count, 'case')} {words}" for words, count in counts.items() if count)
    branch = f" on {before.provenance.branch}" if before.provenance.branch is not None else ""
    commit = "an unknown commit" if before.version == UNKNOWN else f"{before.version}{branch}"
    head = f"since the last run here, {before.started:%Y-%m-%d %H:%M} of {commit}:"
    if not found:
        return [f"{head} {rest}"]
    lines = [f"  {moved.case_id}: {_describe_move(moved)}" for moved in found[:MOST_MOVED]]
    return [head, *lines, *([f"  {rest}"] if rest else [])]


def _describe_move(moved: Moved) -> str:
    """`speedup 9.31x -> 8.72x (-6.3 %), per step ...`: only what is outside its noise. A time that moved alone moved
    with the reference's, as on a busy machine."""
    changes = (("speedup", moved.speedup, units.ratio), ("per step", moved.per_step_ms, units.milliseconds))
    words = (
        f"{name} {written(one.before.median)} -> {written(one.after.median)} ({units.signed_percent(one.share)})"
        for name, one, written in changes
        if not one.is_noise
    )
    reference = "; the reference's time moved about as much" if moved.speedup.is_noise else ""
    return f"{', '.join(words)}, outside its noise{reference}"
