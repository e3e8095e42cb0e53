"""The reason of a verdict: codes, each with the facts that its words name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from gpugate.units import NotFinite


class ReasonCode(str, Enum):
    """The finding of a check. `gpugate.results.reason_words` has the words of each code."""

    NOTHING_MEASURED = "nothing_measured"
    # Outputs.
    NO_OUTPUT_COMPARED = "no_output_compared"
    OUTPUTS_AGREE = "outputs_agree"
    VALUES_EQUAL = "values_equal"
    SAME_NOT_FINITE = "same_not_finite"
    STEPS_AGREE = "steps_agree"
    PROVEN = "proven"
    PROVEN_BEFORE = "proven_before"  # by an earlier run, of the same code on this machine
    OUTPUT_NOT_COMPARABLE = "output_not_comparable"
    RELATIVE_ERROR_TOO_LARGE = "relative_error_too_large"
    LARGEST_ERROR_TOO_LARGE = "largest_error_too_large"
    TOP1_AGREEMENT_TOO_LOW = "top1_agreement_too_low"
    VALUES_UNEQUAL = "values_unequal"
    STEPS_WRONG = "steps_wrong"
    STEPS_LEFT_OUT = "steps_left_out"
    OUTPUTS_REMEMBERED = "outputs_remembered"
    DISPROVED = "disproved"
    # Times: a bound has the facts `bound`, `value` and, but for a promise, `allowed`.
    BOUND_HELD = "bound_held"
    FASTER_THAN_RECORD = "faster_than_record"
    SPEEDUP_BELOW_PROMISE = "speedup_below_promise"
    SPEEDUP_BELOW_RECORD = "speedup_below_record"
    SPEEDUP_BELOW_ANCHOR = "speedup_below_anchor"
    SLOWER_THAN_RECORD = "slower_than_record"
    UNDECIDED = "undecided"
    PROCESSES_DISAGREE = "processes_disagree"
    GAIN_OF_A_SLOWER_REFERENCE = "gain_of_a_slower_reference"
    RANKS_SHARE_CORES = "ranks_share_cores"
    DID_NOTHING = "did_nothing"
    NO_RECORD = "no_record"
    NOT_RECORDED_YET = "not_recorded_yet"
    INTERVAL_TOO_WIDE = "interval_too_wide"
    TOO_FEW_PROCESSES = "too_few_processes"
    RECORD_VARIES = "record_varies"
    BOUNDS_NOTHING = "bounds_nothing"
    MACHINE_CHANGED = "machine_changed"
    CODE_SLOWER = "code_slower"
    CODE_NOT_SLOWER = "code_not_slower"
    CODE_UNCHANGED = "code_unchanged"
    CODE_AS_FAST = "code_as_fast"
    CODE_AS_RECORDED = "code_as_recorded"
    CODE_UNDECIDED = "code_undecided"
    OTHER_CONDITIONS = "other_conditions"
    NO_DUET = "no_duet"
    OTHER_CORES = "other_cores"
    NO_PAIRS = "no_pairs"
    NOT_TIMED = "not_timed"
    IMPOSSIBLE_RATE = "impossible_rate"
    REFERENCE_SLOWED = "reference_slowed"
    IMPOSSIBLE_BUS_RATE = "impossible_bus_rate"
    FRESH_PROCESS = "fresh_process"
    SIDES_MOVED = "sides_moved"
    REFERENCE_TIME = "reference_time"
    RECORD_DIFFERS = "record_differs"
    TOLERANCE_WIDENED = "tolerance_widened"
    PAIRS = "pairs"
    # Counters.
    COUNTED = "counted"
    COUNTED_IN_PART = "counted_in_part"
    NOT_ENGAGED = "not_engaged"
    NO_KERNEL_SEEN = "no_kernel_seen"
    FEW_OPERATORS_SEEN = "few_operators_seen"
    CONTRACT_NOT_CHECKED = "contract_not_checked"
    NOT_COUNTED = "not_counted"
    COUNTER_NOT_MEASURED = "counter_not_measured"
    COUNTER_BELOW_LIMIT = "counter_below_limit"
    COUNTER_ABOVE_LIMIT = "counter_above_limit"
    COUNTER_BELOW_SHARE_OF_REFERENCE = "counter_below_share_of_reference"
    COUNTER_ABOVE_SHARE_OF_REFERENCE = "counter_above_share_of_reference"
    COUNTER_ABOVE_RECORD = "counter_above_record"
    MEMORY_GROWS = "memory_grows"
    IN_SOME_PROCESSES = "in_some_processes"
    # Sweeps.
    TOO_FEW_POINTS = "too_few_points"
    KNEE_NOT_RECORDED = "knee_not_recorded"
    KNEE_AS_RECORDED = "knee_as_recorded"
    KNEE_MOVED = "knee_moved"
    THROUGHPUT_CURVE = "throughput_curve"
    # Every check.
    MACHINE_UNFIT = "machine_unfit"
    DEVICE_LOST = "device_lost"
    OTHER_WORK = "other_work"
    NOT_CONFIRMED = "not_confirmed"
    DISTURBED = "disturbed"
    ALL_DISTURBED = "all_disturbed"
    BEING_RECORDED = "being_recorded"
    # New
    EARLIER_RULE = "earlier_rule"
    OUTPUTS_DIFFER = "outputs_differ"
    PROMISE_KEPT = "promise_kept"
    PROMISE_OPEN = "promise_open"
    SLOW_HOST = "slow_host"
    WALL_AS_RECORDED = "wall_as_recorded"
    WALL_OPEN = "wall_open"
    THE_MACHINE = "the_machine"
    WORK_NOT_SEEN = "work_not_seen"
    LIMIT_BROKEN = "limit_broken"
    ITEM_GREW = "item_grew"
    BOTH_SIDES_GREW = "both_sides_grew"
    NO_BILL = "no_bill"
    KNEE = "knee"


Fact = Annotated[float | str, NotFinite()]


@dataclass(frozen=True)
class Reason:
    """One part of a reason. The unit of a fact is in its name, or that of the check: a ratio, or milliseconds."""

    code: ReasonCode
    facts: Mapping[str, Fact] = field(default_factory=dict)
