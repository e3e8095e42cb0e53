"""The lines about the last run of the same host: the cases that moved since then by more than their noise. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate import units
from gpugate.results.night import UNKNOWN, CaseNight, Night

MOST_CASES = 5  # that moved the furthest; `gpugate history` has all


@dataclass(frozen=True)
class Moved:
    """A case whose intervals of the two runs do not overlap, in the speedup or in the time per step."""

    case_id: str
    words: str
    share: float  # the larger of both changes


def describe_moves(before: Night, now: Night) -> list[str]:
    """The lines about the cases that both runs measured; none where they have no case in common."""
    shared = [case_id for case_id in now.cases if case_id in before.cases]
    if not shared:
        return []
    found = [moved for case_id in shared if (moved := _compare(before.cases[case_id], now.cases[case_id]))]
    found.sort(key=lambda moved: -moved.share)
    head = f"since the last run here, {_name(before)}:"
    new = len(now.cases) - len(shared)
    rest = [f"{units.number_of(new, 'case')} not measured then"] if new else []
    if not found:
        one = len(shared) == 1
        inside = "its case is inside its noise" if one else f"all {len(shared)} cases are inside their noise"
        return [f"{head} {'; '.join([inside, *rest])}"]
    lines = [f"  {moved.case_id}: {moved.words}, outside its noise" for moved in found[:MOST_CASES]]
    if len(found) > MOST_CASES:
        rest.insert(0, f"{len(found) - MOST_CASES} more moved (gpugate history has all)")
    others = len(shared) - len(found)
    if others:
        inside = "the other case is inside its noise" if others == 1 else f"the other {others} are inside their noise"
        rest.insert(0, inside)
    return [head, *lines, *([f"  {'; '.join(rest)}"] if rest else [])]


def _name(night: Night) -> str:
    branch = night.provenance.branch
    on = f" on {branch}" if branch not in (None, UNKNOWN) else ""
    commit = "of an unknown commit" if night.version == UNKNOWN else f"of {night.version}{on}"
    return f"{night.started:%Y-%m-%d %H:%M} {commit}"


def _compare(before: CaseNight, now: CaseNight) -> Moved | None:
    words, shares = [], []
    for name, written in (("speedup", units.ratio), ("optimized_ms", units.milliseconds)):
        old, new = before.estimate(name), now.estimate(name)
        if old.overlaps(new):
            continue
        share = new.median / old.median - 1
        label = "speedup" if name == "speedup" else "per step"
        words.append(f"{label} {written(old.median)} -> {written(new.median)} ({units.signed_percent(share)})")
        shares.append(abs(share))
    return Moved(now.case_id, ", ".join(words), max(shares)) if words else None
