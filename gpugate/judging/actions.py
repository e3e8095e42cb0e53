"""The one place that decides whether a session measures on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpugate.judging.evidence import Evidence
from gpugate.statistics.policy import DECIDING_PROCESSES


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
    """The next measurement: pairs narrow an interval that a limit crosses, a process confirms an alarm of one process
    or settles a contradiction of two, and a duet shows what the record cannot.

    No further measurement changes a wrong output, a side that did not engage, an unfit machine or an impossible time.
    """
    if evidence.is_certain or evidence.unfit is not None or evidence.ranks_share_cores or evidence.times_ceiling:
        return Action.STOP
    if allowed.pairs and _wants_pairs(evidence):
        return Action.PAIRS
    if evidence.tried < allowed.processes and _wants_process(evidence):
        return Action.PROCESS
    return Action.DUET if allowed.duet and _wants_duet(evidence, allowed) else Action.STOP


def _may_settle(evidence: Evidence) -> bool:
    return evidence.is_open and not evidence.is_loaded


def _wants_pairs(evidence: Evidence) -> bool:
    """Pairs are measured on once, before any further process."""
    is_first = evidence.tried == 1 and evidence.first.attempts == 1 and bool(evidence.timed)
    return is_first and not evidence.no_result and _may_settle(evidence) and evidence.can_narrow


def _wants_process(evidence: Evidence) -> bool:
    """Without a record no gate passes the case, so an open time needs no further process.

    A process whose reference was slowed may be spoiled, and a fresh one is not.
    """
    if evidence.no_result or (_may_settle(evidence) and evidence.record is not None):
        return True
    # On a slow host, no process is spent on wall times.
    slower = evidence.wall_is == "slower" and not evidence.slow_host
    return evidence.alone and (evidence.promise_is == "missed" or slower or evidence.costs_more)


def _wants_duet(evidence: Evidence, allowed: Allowed) -> bool:
    """A duet is measured once, of a case whose times alarm or are open, whose record would miss a slowdown, or whose
    source changed."""
    recorded = evidence.record is not None or evidence.other_cores is not None
    if evidence.code is not None or not evidence.timed or not (recorded or allowed.any_code):
        return False
    return evidence.promise_is == "missed" or evidence.not_within or evidence.is_blunt or allowed.changed
