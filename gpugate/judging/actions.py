"""The one place that decides whether a session measures on. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from gpugate.judging.evidence import Evidence, WallStand
from gpugate.statistics.policy import DECIDING_PROCESSES, SHARP


class Action(str, Enum):
    """The next measurement of a case."""

    STOP = "stop"
    PAIRS = "pairs"  # more of them in this process
    PROCESS = "process"  # a fresh one measures the case again
    DUET = "duet"  # with the recorded code


@dataclass(frozen=True)
class Allowed:
    """The measurements that a session allows.

    `any_code`: the user names the code to compare with, so that a case without a record may be compared, too.
    `changed`: the source is not that of the record, so that every record is compared, a sharp one, too.
    """

    pairs: bool = True
    processes: int = DECIDING_PROCESSES
    duet: bool = False
    any_code: bool = False
    changed: bool = False


def next_action(evidence: Evidence, allowed: Allowed) -> Action:
    """The next measurement: a process confirms an alarm of one process or settles a contradiction of two, a duet shows
    what the record cannot, and pairs narrow an interval that a limit crosses.

    A duet comes before further looks at the wall time, which needs none where the duet decides. No further measurement
    changes a wrong output, a side that did not engage, an unfit machine or an impossible time.
    """
    is_wrong = evidence.outputs.problems or evidence.inert or evidence.not_engaged is not None or evidence.idle.sure
    if is_wrong or evidence.unfit is not None or evidence.impossible:
        return Action.STOP
    may_confirm = len(evidence.result.attempts) + 1 < allowed.processes
    if may_confirm and _wants_result(evidence):
        return Action.PROCESS
    if allowed.duet and _wants_duet(evidence, allowed):
        return Action.DUET
    if allowed.pairs and _wants_pairs(evidence):
        return Action.PAIRS
    return Action.PROCESS if may_confirm and _wants_time(evidence) else Action.STOP


def _find_wall(evidence: Evidence) -> WallStand:
    """The stand of the wall time where it decides: not on a slow host, and not beside a duet that decides."""
    decides = evidence.slow_host is None and evidence.code_is not in ("slower", "not slower")
    return evidence.wall_is if decides else ""


def _may_settle(evidence: Evidence) -> bool:
    """True where a limit crosses the interval of a time. On a CPU that other work keeps busy, further measurements
    narrow no interval."""
    is_loaded = evidence.result.device_kind == "cpu" and evidence.busy is not None
    return "open" in (evidence.promise_is, _find_wall(evidence)) and not is_loaded


def _wants_pairs(evidence: Evidence) -> bool:
    """Pairs are measured on once, before any further process, where the interval of this process is wider than what
    processes differ by."""
    if evidence.result.attempts or evidence.first.attempts > 1 or not evidence.timed or evidence.slowed:
        return False
    values = (evidence.timed[0].speedup, evidence.timed[0].optimized_ms)
    widths = evidence.record.current.half_widths if evidence.record is not None else (0.0, 0.0)
    can_narrow = any(one.high / one.low > 1.0001 * math.exp(2 * half) for one, half in zip(values, widths, strict=True))
    return can_narrow and _may_settle(evidence)


def _wants_result(evidence: Evidence) -> bool:
    """True for an alarm of one process that no duet can confirm: of the promise, and of the bill.

    A process whose reference was slowed may be spoiled, and a fresh one is not.
    """
    alarms = evidence.promise_is == "missed" or evidence.costs_more
    return bool(evidence.slowed) or (evidence.alone and alarms)


def _wants_time(evidence: Evidence) -> bool:
    """True for an open time, and for a longer one of a single process, or of two where one alone has a finding.

    Without a record no gate passes the case, so an open time needs no further process.
    """
    is_open = _may_settle(evidence) and evidence.record is not None
    return is_open or (_find_wall(evidence) == "slower" and bool(evidence.alone or evidence.doubted))


def _wants_duet(evidence: Evidence, allowed: Allowed) -> bool:
    """A duet is measured once, of a case whose times alarm or are open, whose record would miss a slowdown of SHARP, or
    whose source changed. No duet decides about a case whose times are no result."""
    recorded = evidence.record is not None or evidence.result.cores_changed is not None
    has_result = evidence.timed and not evidence.slowed
    if evidence.code is not None or not has_result or not (recorded or allowed.any_code):
        return False
    is_blunt = evidence.wall_limits is None or evidence.wall_limits.detectable > SHARP
    return evidence.promise_is == "missed" or evidence.not_within or is_blunt or allowed.changed
