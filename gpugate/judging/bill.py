"""The bill of a step against its record and its contract: every item that grew, and every limit that is broken. Pure.

A count repeats exactly. A time of the device or of the CPU is compared beside the reference's own item, which the same
card, clock and cores took in the same process: it grew where the ratio of both did, and where more than half of that
rise is its own. Another card moves both sides alike, and not their ratio; a reference that became faster by itself,
such as by another choice of cuDNN, moves the ratio alone. results/bill.md has the figures of unchanged code.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpugate.measurement.record import OTHERS, Counters, Measurement
from gpugate.results.bill import Bill, Bills, bills_of, median_kernels_ms
from gpugate.results.case import Remembered
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.statistics.variation import margin_of_two
from gpugate.workload import Limit
from gpugate.workload.counter_names import EXACT, EXACT_UNLESS_AUTOTUNED

SAME = 0.02  # of GPU work and of memory: a growth below it is none, and neither is one below this share of the step
# Of the GPU work of kernels that were chosen by timing them, where they are not those of enough recorded processes: two
# such cases of a gate of equal code took 6 and 7 % more, three of another host 2 and 6 % more, and 2 % less.
CHOSEN_ANEW = 0.1
DEVIATIONS = 3.0  # between recorded processes
# Of a step: its kernels at least, and at most the time in which its host enqueues it, which may then rise by two fifths
# before the step takes longer.
MOSTLY_KERNELS, HIDDEN = 0.9, 0.7
# The rise of an item that is none: a share of the item, and milliseconds or bytes.
ROOM: Mapping[str, tuple[float, float]] = {
    "kernel_ms": (SAME, 0.0005),  # a kernel of a microsecond took 9 % longer on another machine
    "host_to_device_ms": (0.25, 0.0),  # a bus is shared
    "device_to_host_ms": (0.25, 0.0),
    "device_to_device_ms": (0.25, 0.0),
    "cpu_ms": (0.05, 0.2),  # on a busy machine, a step that waits takes longer to wake up
    "peak_bytes": (SAME, 2**21),  # that PyTorch's allocator takes at once for small tensors
}
TIMES = tuple(name for name in ROOM if name.endswith("_ms"))
Found = Mapping[str, Reason]  # by item or counter


@dataclass(frozen=True)
class BillChange:
    """The bill of one process against the record: the items that grew.

    `compared`: the record has times of the items, not counts alone. `fell`: some time fell.
    """

    compared: bool = False
    grown: Found = field(default_factory=dict)
    fell: bool = False


def compare_bill(measurement: Measurement, record: Remembered | None) -> BillChange:
    """Compares the bill of one process with the record: counts with the largest recorded, times with the median."""
    leak, now = _find_leak(measurement), bills_of(measurement)
    if record is None or now is None:
        return BillChange(grown=leak)
    recorded, changes = [one for one in record.current.bills if one is not None], set[int | None]()
    counts = record.optimized_counters, *(one.optimized.counters for one in recorded)
    grown = dict(_grown_counts(measurement.optimized_counters, counts)) | leak
    for name in TIMES:
        then, room = _find_comparable(name, measurement, recorded)
        change = _compare(name, now, then, room)
        changes.add(change)
        if change == 1:
            facts = _describe_rise(name, now, then)
            # GPU work counts in a step that waits for the host, too; copies and CPU time count by their share of it.
            share = 0.0 if name == "kernel_ms" else SAME
            if float(facts["now"]) - float(facts["then"]) >= max(share * record.current.optimized_ms, ROOM[name][1]):
                grown[name] = Reason(ReasonCode.ITEM_GREW, facts)
    return BillChange(changes != {None}, grown, -1 in changes)


def _grown_counts(found: Counters, recorded: Sequence[Counters]) -> Iterator[tuple[str, Reason]]:
    for name in (*(() if found.get("autotuned") else EXACT_UNLESS_AUTOTUNED), *EXACT):
        then = [one[name] for one in recorded if name in one]
        if name in found and then and found[name] > _most(name, then, found[name]):
            yield name, Reason(ReasonCode.ITEM_GREW, {"item": name, "then": max(then), "now": found[name]})


def _most(name: str, recorded: Sequence[float], now: float) -> float:
    """The largest accepted count. The threads of a pipeline give no whole number in a step, or few by chance: then a
    count may be a tenth, and one, above the largest recorded one. Bytes of compressed pictures differ."""
    most = max(recorded)
    if name.endswith("_bytes"):
        return (1 + SAME) * most + ROOM.get(name, (SAME, 0.0))[1]
    by_chance = now != int(now) and len(recorded) <= DECIDING_PROCESSES  # the largest one and each
    is_exact = all(count == int(count) for count in recorded) and not by_chance
    return most if is_exact or not most else 1.1 * most + 1


def _find_comparable(name: str, now: Measurement, recorded: Sequence[Bills]) -> tuple[Sequence[Bills], float]:
    """The processes that a time is compared with, and the share by which it may rise.

    GPU work is compared with that of the same kernels where enough processes have them: a library that chooses kernels,
    by a rule or by their time, chooses others on some nights, and a process then takes 5 to 11 % longer. One recorded
    process with these kernels is not enough: another host took 6 % more than it.
    """
    room = ROOM[name][0]
    if name != "kernel_ms" or now.optimized_profile is None:
        return recorded, room
    # All kernels of tonight: beside a new long one, a bill names fewer of the others.
    alike = [one for one in recorded if has_kernels_of({*now.optimized_profile.kernels, OTHERS}, one.optimized)]
    if len(alike) >= DECIDING_PROCESSES:
        return alike, room
    return recorded, CHOSEN_ANEW if now.optimized_counters.get("autotuned") else room


def has_kernels_of(now: Collection[str], then: Bill) -> bool:
    """True where less than SAME of the recorded time is of kernels that are not among those of now."""
    gone_ms = sum(ms for name, ms in then.kernels_ms.items() if name not in now)
    return gone_ms < SAME * sum(then.kernels_ms.values())


def _compare(name: str, now: Bills, then: Sequence[Bills], room: float) -> int | None:
    """1 where a time grew, -1 where it fell, else 0: beside the reference's, else by itself, where enough processes
    have it. None where this process or too few recorded ones have the time."""
    ours = [_log_time(one.optimized, name) for one in (now, *then)]
    ratios = [_log_ratio(one, name) for one in (now, *then)]
    beside = _find_change(ratios, room)
    if beside is None:
        return _find_change(ours, room)
    return beside if beside * _change(ours) > 0.5 * abs(_change(ratios)) else 0


def _find_change(logs: Sequence[float], same: float) -> int | None:
    """1 where the first log is above the median of the others by more than chance, -1 where it is below, else 0."""
    recorded = [value for value in logs[1:] if not math.isnan(value)]
    if math.isnan(logs[0]) or len(recorded) < DECIDING_PROCESSES:
        return None
    change, most = _change(logs), _log_tolerance(statistics.stdev(recorded), same)
    return (change > most) - (change < -most)


def _log_tolerance(noise: float, same: float) -> float:
    return max(math.log1p(same), DEVIATIONS * noise)


def _change(logs: Sequence[float]) -> float:
    """The first log less the median of the others."""
    return logs[0] - statistics.median(value for value in logs[1:] if not math.isnan(value))


def _log_time(bill: Bill, name: str) -> float:
    """NaN without a time, and for CPU time of threads that wait in a loop."""
    value = bill.counters.get(name, 0.0)
    return math.nan if not value or (name == "cpu_ms" and bill.counters.get("spinning")) else math.log(value)


def _log_ratio(bills: Bills, name: str) -> float:
    return _log_time(bills.optimized, name) - _log_time(bills.reference, name)


def detectable_by_bill(measurement: Measurement, record: Remembered | None) -> float | None:
    """The smallest slowdown, a share of the step, that GPU work shows 95 times in 100; None for a step that its host
    may slow down, and where too few recorded processes have GPU work of both sides.

    On a card that is faster by more than half of the slowdown, it is not seen.
    """
    now, name = bills_of(measurement), "kernel_ms"
    if now is None or record is None:
        return None
    then, room = _find_comparable(name, measurement, [one for one in record.current.bills if one is not None])
    ratios = [ratio for one in then if not math.isnan(ratio := _log_ratio(one, name))]
    step_ms, counters = record.current.optimized_ms, record.optimized_counters
    is_hidden = counters.get("enqueue_ms", math.inf) <= HIDDEN * step_ms and not counters.get("synchronizing_calls")
    work_ms = statistics.median(one.optimized.counters.get(name, 0.0) for one in then) if then else 0.0
    if not is_hidden or work_ms < MOSTLY_KERNELS * step_ms or len(ratios) < DECIDING_PROCESSES:
        return None
    noise, room = statistics.stdev(ratios), max(room, ROOM[name][1] / work_ms)
    return math.expm1(_log_tolerance(noise, room) + margin_of_two(noise, len(ratios))) * work_ms / step_ms


def _describe_rise(name: str, now: Bills, then: Sequence[Bills]) -> dict[str, Fact]:
    """The facts of a time that grew, with the kernel that grew most."""
    recorded = [value for one in then if (value := one.optimized.counters.get(name))]
    facts: dict[str, Fact] = {"item": name, "now": now.optimized.counters[name], "then": statistics.median(recorded)}
    kernels = now.optimized.kernels_ms if name == "kernel_ms" else {}
    if kernels:
        usual = median_kernels_ms(then)
        kernel = max(kernels, key=lambda one: kernels[one] - usual.get(one, 0.0))
        facts |= {"kernel": kernel, "kernel_then": usual.get(kernel, 0.0), "kernel_now": kernels[kernel]}
    return facts


def _find_leak(measurement: Measurement) -> dict[str, Reason]:
    """Memory that every step leaves allocated; a leak that the reference has too is not the optimization's."""
    name = "grown_bytes"
    ours, theirs = (one.get(name, 0.0) for one in (measurement.optimized_counters, measurement.reference_counters))
    return {name: Reason(ReasonCode.ITEM_GREW, {"item": name, "then": theirs, "now": ours})} if ours > theirs else {}


def broken_limits(limits: Sequence[Limit], measurement: Measurement) -> dict[str, Reason]:
    """The reason for each broken limit, by its counter."""
    found, reference = measurement.optimized_counters, measurement.reference_counters
    return {limit.counter: reason for limit in limits if (reason := broken_limit(limit, found, reference))}


def broken_limit(limit: Limit, found: Counters, reference: Counters) -> Reason | None:
    """The reason for a broken limit, else None. A counter that was not measured breaks its limit."""
    value, theirs = found.get(limit.counter), reference.get(limit.counter)
    least, most = limit.at_least_of_reference, limit.at_most_of_reference
    facts: dict[str, Fact] = {"counter": limit.counter}
    if value is None or (theirs is None and (least, most) != (None, None)):
        return Reason(ReasonCode.LIMIT_BROKEN, facts)
    for side, bound, share in (
        ("below", limit.at_least, None),
        ("above", limit.at_most, None),
        ("below", least and least * (theirs or 0.0), least),
        ("above", most and most * (theirs or 0.0), most),
    ):
        if bound is not None and (value < bound if side == "below" else value > bound):
            facts |= {"value": value, "side": side, "limit": bound}
            return Reason(ReasonCode.LIMIT_BROKEN, facts if share is None else {**facts, "share": share})
    return None
