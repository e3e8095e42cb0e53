"""Everything that the rules may ask for about one case, each number computed once. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpugate.counter_names import OF_TIME
from gpugate.judging.bill import (
    BillChange,
    Found,
    broken_limits,
    compare_bill,
    find_leak,
    unknown_counters,
)
from gpugate.judging.duet import judge_duets
from gpugate.judging.machine_state import SLOW_LAUNCH, busy_cores
from gpugate.judging.outputs import Outputs, compare_outputs
from gpugate.judging.plausibility import impossible_rate, slowed_reference, vanished_work
from gpugate.measurement.record import Measurement
from gpugate.results.case import CaseResult, Promise, Remembered
from gpugate.results.duet import Duet, DuetOutcome, RecordedCode
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.summary import History, Summary
from gpugate.statistics.intervals import Estimate, machine_half_width, time_interval, widen
from gpugate.statistics.policy import MIN_PROCESSES, SHARP
from gpugate.statistics.sequential import ALTERNATIVE
from gpugate.statistics.variation import Control, Variation
from gpugate.workload import Contract

PromiseStand = Literal["", "kept", "open", "missed"]
WallStand = Literal["", "slower", "open", "as recorded", "faster"]
CodeStand = Literal["", "slower", "not slower", "undecided"]
WIDEST_HALF_WIDTH = 0.15  # of the interval of a speedup without a record, relative to its median


def find_middle(values: Sequence[Estimate], worse_is_more: bool) -> Estimate:
    """The value of a case: the interval of a single process, else the middle median between the two middle ones.

    Of an even number of processes the worse middle one is the median. An interval inside a process does not contain the
    differences between processes, and tolerances do.
    """
    if len(values) == 1:
        return values[0]
    medians = sorted(one.median for one in values)
    low, high = medians[(len(medians) - 1) // 2], medians[len(medians) // 2]
    return Estimate(high if worse_is_more else low, low, high)


class Wall(NamedTuple):
    """The time of the optimized side over its record, less what the reference's time explains: 1.05 is 5 % slower.

    `allowed` and `detectable` are shares.
    """

    value: Estimate
    allowed: float
    detectable: float

    @property
    def stand(self) -> WallStand:
        if self.value.low > 1 + self.allowed:
            return "slower"
        if self.value.high > 1 + self.allowed:
            return "open"
        return "faster" if self.value.high < 1 / (1 + self.allowed) else "as recorded"


class Confirmed(NamedTuple):
    """The findings of all processes by item: those of two processes, or of the only one, and those of one of several.

    `reasons` are the first ones, with the number of processes.
    """

    sure: Found
    doubted: Found
    reasons: tuple[Reason, ...]


def confirm(found: Sequence[Found], needed: int = 2) -> Confirmed:
    """Sorts the findings of several processes; `needed` of them make one sure."""
    often = Counter(name for one in found for name in one)
    every = {name: reason for one in reversed(found) for name, reason in one.items()}
    sure = {name: reason for name, reason in every.items() if often[name] >= min(needed, len(found))}
    doubted = {name: reason for name, reason in every.items() if name not in sure}
    facts = {"found": max((often[name] for name in sure), default=1), "processes": len(found)}
    several = (Reason(ReasonCode.IN_SOME_PROCESSES, facts),) if len(found) > 1 else ()
    return Confirmed(sure, doubted, (*(sure or doubted).values(), *several))


@dataclass(frozen=True)
class Evidence:
    """The evidence about one case. `processes` counted, this one first; `timed` are the summaries of those with times.

    `failures` are the problems of further processes that do not count, and `tried` is the number of all processes.
    """

    case_id: str
    mode: Mode
    on_cpu: bool
    processes: tuple[Measurement, ...]
    timed: tuple[Summary, ...]
    tried: int
    failures: tuple[str, ...]
    promise: Promise
    record: Remembered | None
    other_cores: tuple[float, float] | None  # of the record, and now
    ranks_share_cores: bool  # of one CPU
    unfit: str | None  # why times of this machine are no evidence
    slow_host: float | None  # the launch latency over the recorded one, where that is far above 1
    no_result: tuple[Reason, ...]  # why the times are no result
    busy: float | None  # cores that other processes kept busy
    not_comparable: str | None  # why the outputs cannot be compared, so that nothing was timed
    not_engaged: str | None  # why the optimized side of some process did not engage, by its own account
    outputs: Outputs  # of the first process with a wrong one, else of this process
    speedup: Estimate | None
    allowed: float  # the share by which the speedup may fall short of its promise by chance
    promise_is: PromiseStand  # empty without times
    wall: Wall | None
    wall_is: WallStand  # empty without times, and without a record of enough processes
    code_is: CodeStand  # empty where the code was not to be compared with the recorded one
    bills: tuple[BillChange, ...]
    grown: Confirmed  # items of the bill
    idle: Confirmed  # limits of counts that show that the optimization did not happen
    lagging: Confirmed  # the same of times, which a slow host can break, too
    broken: Confirmed  # other limits
    unseen: tuple[Reason, ...]  # work of the reference that was not seen of the optimized side
    unchecked: str | None  # why counters that the contract limits are missing
    code: RecordedCode | None
    duet: Duet | None

    @property
    def first(self) -> Measurement:
        return self.processes[0]

    @property
    def alone(self) -> bool:
        """True where no further process confirmed the times."""
        return len(self.timed) < 2

    @property
    def unconfirmed(self) -> bool:
        """True where further processes were to confirm the times, and failed."""
        return self.alone and bool(self.failures)

    @property
    def is_wrong(self) -> bool:
        return bool(self.outputs.problems)

    @property
    def uncounted(self) -> bool:
        return not self.first.optimized_counters and self.first.counters_missing is None

    @property
    def times_ceiling(self) -> float | None:
        """The rate of an impossible time, as a multiple of the machine's ceiling."""
        found = [one.facts["times_ceiling"] for one in self.no_result if "times_ceiling" in one.facts]
        return float(found[0]) if found else None

    @property
    def inert(self) -> bool:
        """True where the optimized side did nothing, at the same speed: two identical sides may differ by 1 % for their
        whole life."""
        value = self.timed[0].speedup if self.timed else None
        return self.first.inert and value is not None and value.low <= 1 + ALTERNATIVE and value.high >= 1 - ALTERNATIVE

    @property
    def is_open(self) -> bool:
        """True where a limit crosses the interval of a time. On a slow host, no limit of the record does."""
        wall_open = self.wall_is == "open" and self.slow_host is None
        return self.promise_is == "open" or self.too_wide or wall_open

    @property
    def is_loaded(self) -> bool:
        """True on a CPU that other work keeps busy: further measurements narrow no interval there."""
        return self.on_cpu and self.busy is not None

    @property
    def is_certain(self) -> bool:
        """True for what no further process changes: a wrong output, and a side that did not engage but for times."""
        return self.is_wrong or self.inert or self.not_engaged is not None or bool(self.idle.sure)

    @property
    def too_wide(self) -> bool:
        """True where a developer's run without a record cannot show the size of a speedup."""
        wide = self.speedup is not None and self.speedup.half_width > WIDEST_HALF_WIDTH
        return wide and self.mode is Mode.DEVELOPER and self.record is None

    # The bill.

    @property
    def broken_by_machine(self) -> bool:
        """True where only limits of times are broken, on a machine that may break them."""
        unfit = self.unfit is not None or self.slow_host is not None
        found = self.lagging.sure.keys() | self.broken.sure.keys()
        return unfit and bool(found) and found <= OF_TIME

    @property
    def costs_more(self) -> bool:
        limits = (self.lagging.sure or self.broken.sure) and not self.broken_by_machine
        return bool(self.grown.sure or limits)

    @property
    def doubted(self) -> tuple[Reason, ...]:
        """The findings of one process of several, which decide nothing."""
        return tuple(
            reason
            for one in (self.grown, self.lagging, self.broken)
            for reason in (one.reasons if one.doubted and not one.sure else ())
        )

    @property
    def alike(self) -> tuple[Reason, ...]:
        """The items that grew as the reference's did."""
        return tuple({name: reason for bill in self.bills for name, reason in bill.alike.items()}.values())

    @property
    def has_no_bill(self) -> bool:
        """True where the record has no times of a bill, but counts alone."""
        return self.record is not None and not any(one.compared for one in self.bills)

    @property
    def bill_holds(self) -> bool:
        return self.record is not None and not self.has_no_bill and not self.grown.sure

    # The wall time, and the recorded code.

    @property
    def lacks_record(self) -> bool:
        """True where a gate has no record, and where a record is of too few processes."""
        too_few = self.record is not None and self.record.current.processes < MIN_PROCESSES
        return too_few or (self.record is None and self.mode is Mode.GATE)

    @property
    def not_within(self) -> bool:
        return self.wall_is in ("slower", "open")

    @property
    def gained(self) -> bool:
        """True where more than the wall time shows a gain, or where nothing else could show it."""
        code_faster = self.duet is not None and self.duet.outcome is DuetOutcome.FASTER
        bill_fell = bool(self.bills) and all(one.fell for one in self.bills)
        return code_faster or bill_fell or (self.has_no_bill and self.code_is != "not slower")

    @property
    def only_the_machine(self) -> bool:
        """True for a wall time outside its tolerance that the code does not explain. On a slow host, a bill that holds
        shows that, too."""
        same_code = self.code_is == "not slower" or (self.slow_host is not None and self.bill_holds)
        return (self.not_within and same_code) or (self.wall_is == "faster" and not self.gained)

    @property
    def slowed_by_host(self) -> bool:
        return self.slow_host is not None and self.not_within

    @property
    def record_convicts(self) -> bool:
        """True for a longer wall time with a grown bill, and for one where the record is all the evidence: no bill
        holds, no duet was measured, the software is the same."""
        same_software = self.record is not None and self.record.match == "exact"
        alone = same_software and not self.bill_holds and self.duet is None
        return self.wall_is == "slower" and (bool(self.grown.sure) or alone)

    @property
    def is_blunt(self) -> bool:
        """True where the record would miss a slowdown of SHARP."""
        return self.wall is None or self.wall.detectable > SHARP

    @property
    def differences(self) -> tuple[str, ...]:
        """The changes of the machine and its software since the record."""
        found = self.record.differences if self.record is not None else ()
        return tuple(dict.fromkeys((*found, *(self.code.machine_changes if self.code is not None else ()))))

    @property
    def can_narrow(self) -> bool:
        """True where the interval of this process is wider than what processes differ by: more pairs narrow it."""
        if self.record is None or not self.timed:
            return True
        values = (self.timed[0].speedup, self.timed[0].optimized_ms)
        widths = zip(values, self.record.current.half_widths, strict=True)
        return any(one.high / one.low > 1.0001 * math.exp(2 * (half or 0.0)) for one, half in widths)


def gather(result: CaseResult, mode: Mode, asked_tolerance: float | None) -> Evidence:
    """Gathers the evidence about a measured case.

    `asked_tolerance` is the share by which the user lets a time rise, None for what the machine can resolve. Raises
    ValueError for a case that was not measured.
    """
    measurement, promise, record = result.measurement, result.promise, result.remembered
    if measurement is None or promise is None:
        raise ValueError(f"{result.case_id} was not measured: there is nothing to decide")
    processes, timed, contract = result.processes, result.timed, promise.contract or Contract()
    summaries = tuple(result.summarize(one) for one in timed)
    first = timed[0] if timed else measurement
    impossible = impossible_rate(first, summaries[0], result.size) if summaries else None
    allowed = _allow_chance(promise.min_speedup, record) if promise.min_speedup and record else 0.0
    no_result = impossible or slowed_reference(first)
    unseen = vanished_work(measurement, promise.contract)
    unchecked = measurement.counters_missing if unknown_counters(measurement, contract) else None
    counted = [one for one in processes if one.optimized_counters or one.counters_missing is None]
    counted = [one for one in counted if one.counters_missing is None or not unknown_counters(one, contract)]
    counted = [] if unseen or unchecked or measurement not in counted else counted
    bills = tuple(compare_bill(one, record) for one in counted)
    of_times = [one for one in contract.engaged if one.counter in OF_TIME]
    of_counts = [one for one in contract.engaged if one.counter not in OF_TIME]
    outputs = [compare_outputs(one, promise.tolerance) for one in processes]
    speedup = find_middle([one.speedup for one in summaries], worse_is_more=False) if summaries else None
    wall = _compare_wall(timed, record, asked_tolerance)
    duet = duet_of(result.recorded_code) if result.recorded_code is not None else None
    cores, slow = result.cores_changed, result.launch_slowdown
    slow_host = slow if slow is not None and slow > SLOW_LAUNCH and record is not None else None
    return Evidence(
        case_id=result.case_id,
        mode=mode,
        on_cpu=result.device_kind == "cpu",
        processes=processes,
        timed=summaries,
        tried=1 + len(result.attempts),
        failures=tuple(dict.fromkeys(one.problem for one in result.attempts if one.problem)),
        promise=promise,
        record=record,
        other_cores=(cores.recorded, cores.now) if cores is not None and record is None else None,
        ranks_share_cores=result.ranks_share_cores,
        unfit=result.environment_problem,
        slow_host=slow_host,
        no_result=(no_result,) if no_result is not None else (),
        busy=busy_cores(measurement),
        outputs=next((one for one in outputs if one.problems), outputs[0]),
        not_comparable=next((one.problem for one in measurement.differences if one.problem and not timed), None),
        not_engaged=next((one.not_engaged for one in processes if one.not_engaged is not None), None),
        speedup=speedup,
        allowed=allowed,
        promise_is=_stand_of_promise(speedup, (promise.min_speedup or 0.0) * (1 - allowed)),
        wall=wall,
        wall_is=wall.stand if wall is not None else "",
        code_is=_stand_of_code(result.recorded_code, duet),
        bills=bills,
        grown=confirm([{**bill.grown, **find_leak(one)} for bill, one in zip(bills, counted, strict=True)]),
        idle=confirm([broken_limits(of_counts, one) for one in counted], needed=1),
        lagging=confirm([broken_limits(of_times, one) for one in counted]),
        broken=confirm([broken_limits(contract.limits, one) for one in counted]),
        unseen=(unseen,) if unseen is not None else (),
        unchecked=unchecked,
        code=result.recorded_code,
        duet=duet,
    )


def _allow_chance(minimum: float, record: Remembered) -> float:
    """The share by which a speedup may fall short of its promise: a fall that the record allows is chance.

    0 where the record allows no such fall, where it is itself below the promise, and where it is of too few processes.
    """
    then = record.current
    if then.speedup < minimum or then.processes < MIN_PROCESSES:
        return 0.0
    return max(0.0, 1 - then.speedup * (1 - then.tolerance(record.checks)) / minimum)


def _stand_of_promise(speedup: Estimate | None, minimum: float) -> PromiseStand:
    if speedup is None:
        return ""
    return "kept" if speedup.low >= minimum else "missed" if speedup.high < minimum else "open"


def _stand_of_code(code: RecordedCode | None, duet: Duet | None) -> CodeStand:
    """The code is not slower where the duet shows it, and where it is that of the record."""
    if code is None:
        return ""
    if code.unchanged or (duet is not None and duet.outcome in (DuetOutcome.SAME, DuetOutcome.FASTER)):
        return "not slower"
    return "slower" if duet is not None and duet.outcome is DuetOutcome.SLOWER else "undecided"


def _compare_wall(timed: Sequence[Measurement], record: Remembered | None, asked: float | None) -> Wall | None:
    """None without a record of enough processes."""
    if record is None or not timed or (allowed := record.wall_tolerance) is None:
        return None
    allowed = allowed if asked is None else asked
    changes = [_change(one, record.current) for one in timed]
    return Wall(find_middle(changes, worse_is_more=True), allowed, record.current.detectable_slowdown(allowed))


def _change(measurement: Measurement, then: History) -> Estimate:
    """The change of one process, with an interval that contains the variation between processes.

    A step that takes no longer than recorded is not slower, whatever its reference does, and a longer one is no gain.
    """
    control = then.wall or Control(0.0, Variation(0.0, 1.0))
    now = time_interval([pair.optimized_ms for pair in measurement.pairs])
    reference_ms = statistics.median(pair.reference_ms for pair in measurement.pairs)
    explained = then.optimized_ms * (reference_ms / then.reference_ms) ** control.slope
    change = Estimate(now.median / explained, now.low / explained, now.high / explained)
    if (change.median > 1) is not (now.median > then.optimized_ms):
        change = Estimate(1.0, change.low / change.median, change.high / change.median)
    return widen(change, machine_half_width(control.variation))


def duet_of(code: RecordedCode) -> Duet | None:
    """The duet of the case with the recorded code; None where no process measured one."""
    duets, _ = judge_duets(code.processes)
    return duets[0] if duets else None
