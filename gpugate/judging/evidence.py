"""Everything that the rules may ask for about one case, each number computed once. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpugate.judging.bill import BillChange, Found, broken_limits, compare_bill, detectable_by_bill
from gpugate.judging.duet import judge_duets
from gpugate.judging.machine_state import PROBE_RATIO, busy_cores, impossible_rate, slowed_reference, vanished_work
from gpugate.judging.outputs import Outputs, compare_outputs
from gpugate.measurement.record import Measurement
from gpugate.results.case import CaseResult, Promise, Remembered
from gpugate.results.duet import Duet, DuetOutcome, RecordedCode
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.summary import History, Summary, WallLimits
from gpugate.statistics.intervals import Estimate, time_interval, widen
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.statistics.sequential import ALTERNATIVE
from gpugate.statistics.variation import Control
from gpugate.workload import Contract
from gpugate.workload.counter_names import OF_TIME

PromiseStand = Literal["", "kept", "open", "missed"]
WallStand = Literal["", "slower", "open", "as recorded", "faster"]
BillStand = Literal["grown", "unchanged", "not compared"]
CodeStand = Literal["", "slower", "seems slower", "not slower", "undecided"]


def find_middle(values: Sequence[Estimate]) -> Estimate:
    """The value of a case: the interval of a single process, else the middle median between the two middle ones.

    Of an even number of processes the higher middle one is the median. An interval inside a process does not contain
    the differences between processes, and tolerances do.
    """
    if len(values) == 1:
        return values[0]
    medians = sorted(one.median for one in values)
    low, high = medians[(len(medians) - 1) // 2], medians[len(medians) // 2]
    return Estimate(high, low, high)


class Confirmed(NamedTuple):
    """The findings of all processes by item: `sure` are those of two processes, or of the only one.

    `reasons` are of the sure ones, else of those of one process of several, with the number of processes.
    """

    sure: Found
    reasons: tuple[Reason, ...]


def confirm(found: Sequence[Found], needed: int = 2) -> Confirmed:
    """Sorts the findings of several processes; `needed` of them make one sure."""
    often = Counter(name for one in found for name in one)
    every = {name: reason for one in reversed(found) for name, reason in one.items()}
    sure = {name: reason for name, reason in every.items() if often[name] >= min(needed, len(found))}
    facts = {"found": max((often[name] for name in sure), default=1), "processes": len(found)}
    several = (Reason(ReasonCode.IN_SOME_PROCESSES, facts),) if every and len(found) > 1 else ()
    return Confirmed(sure, (*(sure or every).values(), *several))


@dataclass(frozen=True)
class Evidence:
    """The evidence about one measured case, of which `first` is the process of the session.

    `timed` are the summaries of the processes with times, and `failures` the problems of further processes that do not
    count.
    """

    result: CaseResult
    first: Measurement
    promise: Promise
    record: Remembered | None
    timed: tuple[Summary, ...]
    failures: tuple[str, ...]
    unfit: str | None  # the reason for which times of this machine are no evidence
    not_engaged: str | None  # why the optimized side of some process did not engage, by its own account
    differences: tuple[str, ...]  # changes of the machine and its software since the record
    lacks_record: bool  # a gate has no record, or the record is of too few processes
    slow_host: float | None  # the launch latency over the recorded one, where that is far above 1
    impossible: Reason | None  # a time is faster than the ceilings of the machine allow
    slowed: Reason | None  # the reference was slowed, in every process
    busy: float | None  # cores that other processes kept busy
    outputs: Outputs  # of the first process with a wrong one, else of this process
    speedup: Estimate | None
    allowed: float  # the share by which the speedup may fall short of its promise by chance
    usual_low: float  # the speedup of one process, less what the recorded ones differ by; 0 beside other work
    wall: Estimate | None  # the optimized side's time over its record, less what the reference explains: 1.05 is slower
    wall_limits: WallLimits | None  # of a record of enough processes
    bills: tuple[BillChange, ...]
    detectable_by_bill: float | None  # the smallest slowdown that GPU work shows, where the host cannot slow the step
    grown: Confirmed  # items of the bill
    idle: Confirmed  # limits of counts that show that the optimization did not happen
    lagging: Confirmed  # the same of times, which a slow host can break, too
    broken: Confirmed  # other limits
    unseen: Reason | None  # work of the reference that was not seen of the optimized side
    unchecked: str | None  # why counters that the contract limits are missing
    code: RecordedCode | None
    duet: Duet | None

    @property
    def alone(self) -> bool:
        """True where no further process confirmed the times."""
        return len(self.timed) < 2

    @property
    def inert(self) -> bool:
        """True where the optimized side did nothing, at the same speed: two identical sides may differ by 1 % for their
        whole life."""
        value = self.timed[0].speedup if self.timed else None
        return self.first.inert and value is not None and value.low <= 1 + ALTERNATIVE and value.high >= 1 - ALTERNATIVE

    @property
    def promise_is(self) -> PromiseStand:
        """Kept by the interval or by the record, since the interval of two builds is wider than processes differ by;
        missed by both."""
        if self.speedup is None:
            return ""
        minimum = (self.promise.min_speedup or 0.0) * (1 - self.allowed)
        if max(self.speedup.low, self.usual_low) >= minimum:
            return "kept"
        return "missed" if self.speedup.high < minimum else "open"

    # The bill.

    @property
    def broken_by_machine(self) -> bool:
        """True where only limits of times are broken, on a machine that may break them."""
        found = self.lagging.sure.keys() | self.broken.sure.keys()
        return bool(found) and found <= OF_TIME and (self.unfit is not None or self.slow_host is not None)

    @property
    def costs_more(self) -> bool:
        limits = (self.lagging.sure or self.broken.sure) and not self.broken_by_machine
        return bool(self.grown.sure or limits)

    @property
    def doubted(self) -> list[Reason]:
        """The findings of one process of several, which decide nothing."""
        found = (self.grown, self.lagging, self.broken)
        return [reason for one in found if not one.sure for reason in one.reasons]

    @property
    def bill_is(self) -> BillStand:
        """The bill beside the record: "not compared" where none of its times is, but counts alone."""
        if self.grown.sure:
            return "grown"
        return "unchanged" if any(one.compared for one in self.bills) else "not compared"

    # The wall time, and the recorded code.

    @property
    def wall_is(self) -> WallStand:
        if self.wall is None or self.wall_limits is None:
            return ""
        most = 1 + self.wall_limits.allowed
        if self.wall.low > most:
            return "slower"
        if self.wall.high > most:
            return "open"
        return "faster" if self.wall.high < 1 / most else "as recorded"

    @property
    def not_within(self) -> bool:
        return self.wall_is in ("slower", "open")

    @property
    def code_is(self) -> CodeStand:
        """The code is not slower where the duet shows it, and where it is that of the record."""
        if self.code is None:
            return ""
        outcome = self.duet.outcome if self.duet is not None else None
        if self.code.unchanged or outcome in (DuetOutcome.SAME, DuetOutcome.FASTER):
            return "not slower"
        if self.duet is not None and self.duet.seems_slower:
            return "seems slower"
        return "slower" if outcome is DuetOutcome.SLOWER else "undecided"

    @property
    def gained(self) -> bool:
        """True where more than the wall time shows a gain, or where nothing else could show it."""
        code_faster = self.duet is not None and self.duet.outcome is DuetOutcome.FASTER
        bill_fell = bool(self.bills) and all(one.fell for one in self.bills)
        return code_faster or bill_fell or (self.bill_is != "unchanged" and self.code_is != "not slower")

    @property
    def only_the_machine(self) -> bool:
        """A wall time that neither the code nor other software explains; on a slow host an unchanged bill shows it."""
        same_code = self.code_is == "not slower" or (self.slow_host is not None and self.bill_is == "unchanged")
        longer = self.not_within and same_code and self.same_software
        return longer or (self.wall_is == "faster" and not self.gained)

    @property
    def same_software(self) -> bool:
        """True where no package or driver differs from the record's: a duet runs both versions on tonight's."""
        return self.record is not None and self.record.match == "exact"

    @property
    def record_convicts(self) -> bool:
        """True for a longer wall time where the record is all the evidence: no bill holds, no duet was measured, the
        software is the same."""
        is_alone = self.bill_is != "unchanged" and self.duet is None
        return self.wall_is == "slower" and is_alone and self.same_software


def gather(result: CaseResult, mode: Mode) -> Evidence:
    """Gathers the evidence about a measured case. Raises ValueError for a case that was not measured."""
    first, promise, record = result.measurement, result.promise, result.remembered
    if first is None or promise is None:
        raise ValueError(f"{result.case_id} was not measured: there is nothing to decide")
    timed, contract = result.timed, promise.contract or Contract()
    summaries = tuple(result.summarize(one) for one in timed)
    counted = [one for one in result.processes if one.counters_missing is None or _has_limited(one, contract)]
    limits = record.current.wall_limits(record.checks) if record is not None else None
    walls = [_change(one, record.current, limits.control) for one in timed] if record and limits else []
    bills = tuple(compare_bill(one, record) for one in counted)
    of_times = [one for one in contract.engaged if one.counter in OF_TIME]
    of_counts = [one for one in contract.engaged if one.counter not in OF_TIME]
    outputs = [compare_outputs(one, promise.tolerance) for one in result.processes]
    slow, code, busy = result.launch_slowdown, result.recorded_code, busy_cores(first)
    usual = record.current.half_widths[0] if record and len(timed) == 1 and busy is None else 0.0
    changes = (*(record.differences if record is not None else ()), *(code.machine_changes if code is not None else ()))
    return Evidence(
        result=result,
        first=first,
        promise=promise,
        record=record,
        timed=summaries,
        failures=tuple(dict.fromkeys(one.problem for one in result.attempts if one.problem)),
        unfit=result.unfit,
        not_engaged=next((one.not_engaged for one in result.processes if one.not_engaged is not None), None),
        differences=tuple(dict.fromkeys(changes)),
        lacks_record=mode is Mode.GATE if record is None else record.current.processes < DECIDING_PROCESSES,
        slow_host=slow if slow is not None and slow > PROBE_RATIO else None,
        impossible=impossible_rate(timed[0], summaries[0], result.size) if timed else None,
        slowed=slowed_reference(timed[0] if timed else first),
        busy=busy,
        outputs=next((one for one in outputs if one.problems), outputs[0]),
        speedup=find_middle([one.speedup for one in summaries]) if timed else None,
        allowed=_allow_chance(promise.min_speedup, record) if promise.min_speedup and record else 0.0,
        usual_low=summaries[0].speedup.median * math.exp(-usual) if usual else 0.0,
        wall=find_middle(walls) if walls else None,
        wall_limits=limits,
        bills=bills,
        detectable_by_bill=detectable_by_bill(first, record),
        grown=confirm([bill.grown for bill in bills]),
        idle=confirm([broken_limits(of_counts, one) for one in counted], needed=1),
        lagging=confirm([broken_limits(of_times, one) for one in counted]),
        broken=confirm([broken_limits(contract.limits, one) for one in counted]),
        unseen=vanished_work(first, contract),
        unchecked=None if _has_limited(first, contract) else first.counters_missing,
        code=code,
        duet=duet_of(code) if code is not None else None,
    )


def _has_limited(one: Measurement, contract: Contract) -> bool:
    """True for a process that has every counter which the contract limits."""
    return {limit.counter for limit in (*contract.engaged, *contract.limits)} <= one.optimized_counters.keys()


def _allow_chance(minimum: float, record: Remembered) -> float:
    """The share by which a speedup may fall short of its promise: a fall that the record allows is chance.

    0 where the record allows no such fall, where it is itself below the promise, and where it is of too few processes.
    A promise of a gain is kept by no loss, however much the record varies.
    """
    then = record.current
    if then.speedup < minimum or then.processes < DECIDING_PROCESSES:
        return 0.0
    least = max(then.speedup * (1 - then.tolerance(record.checks)), 1.0 if minimum > 1 else 0.0)
    return max(0.0, 1 - least / minimum)


def _change(measurement: Measurement, then: History, control: Control) -> Estimate:
    """The change of one process, with an interval that contains the variation between processes.

    A step that takes no longer than recorded is not slower, whatever its reference does, and a longer one is no gain.
    """
    now = time_interval([pair.optimized_ms for pair in measurement.pairs])
    reference_ms = statistics.median(pair.reference_ms for pair in measurement.pairs)
    explained = then.optimized_ms * (reference_ms / then.reference_ms) ** control.slope
    change = Estimate(now.median / explained, now.low / explained, now.high / explained)
    if (change.median > 1) is not (now.median > then.optimized_ms):
        change = Estimate(1.0, change.low / change.median, change.high / change.median)
    return widen(change, control.variation.half_width)


def duet_of(code: RecordedCode) -> Duet | None:
    """The duet of the case with the recorded code; None where no process measured one."""
    duets, _ = judge_duets(code.processes)
    return duets[0] if duets else None
