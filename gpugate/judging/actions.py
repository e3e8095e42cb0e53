"""The one place that decides whether a session measures on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpugate.judging.evidence import Evidence
from gpugate.statistics.policy import DECIDING_PROCESSES


class Action(str, Enum):
    """The next measurement of a case."""

    STOP = "stop"
    PAIRS = "pairs"  # more of them in this process, once and before any further one
    PROCESS = "process"  # a fresh one measures the case again
    DUET = "duet"  # with the recorded code


@dataclass(frozen=True)
class Allowed:
    """The measurements that a session allows.

    `duet`: it knows the code to compare with. `changed`: the source is not that of the record, or the user names the
    code to compare with, so that a duet needs no alarm.
    """

    pairs: bool = True
    processes: int = DECIDING_PROCESSES
    duet: bool = False
    changed: bool = False


def next_action(evidence: Evidence, allowed: Allowed) -> Action:
    """The next measurement: a process confirms an alarm of one process or settles a contradiction of two, a duet shows
    what the record cannot, and pairs narrow the interval of a case without a record.

    A duet comes before further looks at the wall time, which needs none where the duet decides, nor on a slow host. No
    further measurement changes a wrong output, a side that did not engage, an unfit machine or an impossible time. On a
    CPU that other work keeps busy, further ones narrow no interval.
    """
    is_wrong = evidence.outputs.problems or evidence.inert or evidence.not_engaged is not None or evidence.idle.sure
    if is_wrong or evidence.unfit is not None or evidence.impossible:
        return Action.STOP
    may_confirm = len(evidence.result.attempts) + 1 < allowed.processes
    alarms = evidence.alone and (evidence.promise_is == "missed" or evidence.costs_more)
    if may_confirm and (alarms or evidence.slowed):  # a process whose reference was slowed may be spoiled
        return Action.PROCESS
    if allowed.duet and _wants_duet(evidence, allowed):
        return Action.DUET
    decides = evidence.slow_host is None and evidence.code_is not in ("slower", "not slower")
    wall_is = evidence.wall_is if decides else ""
    is_loaded = evidence.result.device_kind == "cpu" and evidence.busy is not None
    is_open = "open" in (evidence.promise_is, wall_is) and not is_loaded
    # A fresh process says more than further pairs. Without a record, no gate passes the case, which needs none.
    if is_open and evidence.record is None:
        is_first = not evidence.result.attempts and evidence.first.attempts == 1
        return Action.PAIRS if allowed.pairs and is_first else Action.STOP
    is_doubtful = wall_is == "slower" and (evidence.alone or evidence.doubted)
    return Action.PROCESS if may_confirm and (is_doubtful or is_open) else Action.STOP


def _wants_duet(evidence: Evidence, allowed: Allowed) -> bool:
    """A duet is measured once, of a case whose times alarm or are open, or whose source changed: the recorded source is
    not slower than itself. No duet decides about a case whose times are no result."""
    if evidence.code is not None or not evidence.timed or evidence.slowed:
        return False
    return allowed.changed or evidence.promise_is == "missed" or evidence.not_within
