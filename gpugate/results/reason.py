"""The reason of a verdict: codes, each with the facts that its words name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from gpugate.units import NotFinite


class ReasonCode(str, Enum):
    """The finding of a check. `gpugate.results.reason_words` has the words of each code.

    A code of an older run that no rule has any more is read as EARLIER_RULE.
    """

    EARLIER_RULE = "earlier_rule"
    # Every check.
    NOTHING_MEASURED = "nothing_measured"
    MACHINE_UNFIT = "machine_unfit"
    OTHER_WORK = "other_work"
    NOT_CONFIRMED = "not_confirmed"
    IN_SOME_PROCESSES = "in_some_processes"
    # Outputs.
    OUTPUTS_AGREE = "outputs_agree"
    PROVEN = "proven"
    OUTPUTS_DIFFER = "outputs_differ"
    STEPS_WRONG = "steps_wrong"
    STEPS_LEFT_OUT = "steps_left_out"
    OUTPUTS_REMEMBERED = "outputs_remembered"
    DISPROVED = "disproved"
    # Times that are no result.
    RANKS_SHARE_CORES = "ranks_share_cores"
    IMPOSSIBLE_RATE = "impossible_rate"
    REFERENCE_SLOWED = "reference_slowed"
    # The speedup against its promise.
    PROMISE_KEPT = "promise_kept"
    SPEEDUP_BELOW_PROMISE = "speedup_below_promise"
    PROMISE_OPEN = "promise_open"
    INTERVAL_TOO_WIDE = "interval_too_wide"
    DID_NOTHING = "did_nothing"
    FRESH_PROCESS = "fresh_process"
    PAIRS = "pairs"
    # The bill and the contract.
    COUNTED = "counted"
    NOT_ENGAGED = "not_engaged"
    WORK_NOT_SEEN = "work_not_seen"
    LIMIT_BROKEN = "limit_broken"
    ITEM_GREW = "item_grew"
    BOTH_SIDES_GREW = "both_sides_grew"
    NO_BILL = "no_bill"
    # The wall time against the record, and the recorded code.
    NO_RECORD = "no_record"
    OTHER_CORES = "other_cores"
    SLOW_HOST = "slow_host"
    WALL_AS_RECORDED = "wall_as_recorded"
    FASTER_THAN_RECORD = "faster_than_record"
    SLOWER_THAN_RECORD = "slower_than_record"
    WALL_OPEN = "wall_open"
    THE_MACHINE = "the_machine"
    CODE_SLOWER = "code_slower"
    CODE_NOT_SLOWER = "code_not_slower"
    CODE_UNDECIDED = "code_undecided"
    RECORD_DIFFERS = "record_differs"
    # Sweeps.
    KNEE = "knee"
    THROUGHPUT_CURVE = "throughput_curve"

    @classmethod
    def _missing_(cls, value: object) -> ReasonCode | None:
        return cls.EARLIER_RULE if isinstance(value, str) and value.isidentifier() else None


Fact = Annotated[float | str, NotFinite()]


@dataclass(frozen=True)
class Reason:
    """One part of a reason. The unit of a fact is in its name, or that of the check: a ratio, or milliseconds."""

    code: ReasonCode
    facts: Mapping[str, Fact] = field(default_factory=dict)
