"""The bill of a step against its record and its contract: every item that grew, and every limit that is broken. Pure.

A count repeats exactly. A time of the device or of the CPU is compared twice: by itself, and after it is divided by the
reference's own item, which the same card, clock and cores took in the same process. It grew only where both comparisons
show it. Another card moves both sides alike, and the second comparison acquits; a reference that became faster by
itself, such as by another choice of cuDNN, moves the second alone, and the first acquits. Of 123 case-nights of an H200
and two H100, the mean of the longest kernels rose by 2 % of unchanged code in 7 by itself, in 7 after the division, and
in 2 by both. What slows both sides alike is left to the wall time and the duet.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gpugate.counter_names import EXACT, EXACT_UNLESS_AUTOTUNED
from gpugate.measurement.record import Counters, Measurement
from gpugate.results.bill import Bill, Bills, bills_of
from gpugate.results.case import Remembered
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.workload import Contract, Limit

SAME = 0.02  # of GPU work and of memory: a growth below it is none, and neither is one below this share of the step
DEVIATIONS = 3.0  # between recorded processes
# The rise of an item that is none: a share of the item, and milliseconds or bytes.
ROOM: Mapping[str, tuple[float, float]] = {
    "kernel_ms": (SAME, 0.0),
    "host_to_device_ms": (0.25, 0.0),  # a bus is shared
    "device_to_host_ms": (0.25, 0.0),
    "device_to_device_ms": (0.25, 0.0),
    "cpu_ms": (0.05, 0.2),  # on a busy machine, a step that waits takes longer to wake up
    "peak_bytes": (SAME, 2**21),  # that PyTorch's allocator takes at once for small tensors
}
TIMES = tuple(name for name in ROOM if name.endswith("_ms"))
Found = Mapping[str, Reason]  # by item or counter


class Change(NamedTuple):
    """The growth of a time as a log: by itself, and beside the reference's, each with the log that may be chance.

    Without a control, both are the same.
    """

    own: float
    own_most: float
    beside: float
    beside_most: float

    @property
    def grew(self) -> bool:
        return self.own > self.own_most and self.beside > self.beside_most

    @property
    def grew_alike(self) -> bool:
        """True where the item grew and the reference's explains it."""
        return self.own > self.own_most and self.beside <= self.beside_most

    @property
    def fell(self) -> bool:
        return self.own < -self.own_most and self.beside < -self.beside_most


@dataclass(frozen=True)
class BillChange:
    """The bill of one process against the record. `compared`: the record has times of the items, not counts alone."""

    compared: bool = False
    grown: Found = field(default_factory=dict)
    alike: Found = field(default_factory=dict)
    fell: bool = False


def compare_bill(measurement: Measurement, record: Remembered | None) -> BillChange:
    """Compares the bill of one process with the record: counts with the largest recorded, times with the median."""
    if record is None:
        return BillChange()
    counts = dict(_grown_counts(measurement.optimized_counters, record.optimized_counters))
    now, then = bills_of(measurement), [one for one in record.current.bills if one is not None]
    if now is None or len(then) < DECIDING_PROCESSES:
        return BillChange(grown=counts)
    changes = dict(_time_changes(now, then))
    step_ms = record.current.optimized_ms
    grown = {name: _item(name, now, then) for name, one in changes.items() if one.grew}
    grown = {name: one for name, one in grown.items() if _rise_ms(one) >= _least_ms(name, step_ms)}
    if "kernel_ms" in changes and not changes["kernel_ms"].grew:  # else the sum names the kernel
        grown |= {name: _item(name, now, then) for name, one in _kernel_changes(now, then) if one.grew}
    alike = {name: _item(name, now, then) for name, one in changes.items() if one.grew_alike}
    return BillChange(bool(changes), counts | grown, alike, any(one.fell for one in changes.values()))


def _least_ms(name: str, step_ms: float) -> float:
    """The milliseconds by which a copy time or CPU time has to rise."""
    return 0.0 if name == "kernel_ms" else max(SAME * step_ms, ROOM[name][1])


def _rise_ms(item: Reason) -> float:
    return float(item.facts["now"]) - float(item.facts["then"])


def _grown_counts(found: Counters, recorded: Counters) -> Iterator[tuple[str, Reason]]:
    autotuned = all(counters.get("autotuned", 0.0) > 0 for counters in (found, recorded))
    for name in (*(() if autotuned else EXACT_UNLESS_AUTOTUNED), *EXACT):
        if name in found and name in recorded and found[name] > _most(name, recorded[name]):
            yield name, Reason(ReasonCode.ITEM_GREW, {"item": name, "then": recorded[name], "now": found[name]})


def _most(name: str, recorded: float) -> float:
    """The largest accepted count. The threads of a pipeline give no whole number in a step: such a count may be a
    tenth, and one, above the recorded one. Bytes of compressed pictures differ with the pictures."""
    if name.endswith("_bytes"):
        return (1 + SAME) * recorded + ROOM.get(name, (SAME, 0.0))[1]
    return recorded if recorded == int(recorded) else 1.1 * recorded + 1


def _time_changes(now: Bills, then: Sequence[Bills]) -> Iterator[tuple[str, Change]]:
    """The change of every time that this process and the recorded ones have, by its name. Threads that wait in a loop
    make CPU time no evidence."""
    both = (now, *then)
    spins, control_spins = _is_any("spinning", _optimized(both)), _is_any("spinning", [one.reference for one in both])
    for name in TIMES:
        if name == "cpu_ms" and spins:
            continue
        control = None if name == "cpu_ms" and control_spins else name
        if change := _compare(now, then, name, control, ROOM[name][0]):
            yield name, change


def _kernel_changes(now: Bills, then: Sequence[Bills]) -> Iterator[tuple[str, Change]]:
    """The change of each kernel whose time changed by SAME of all GPU work. The reference's GPU work is the control,
    since both sides seldom run kernels of the same name. A library that picks kernels by their time may pick another
    name, so that the sum alone decides."""
    if _is_any("autotuned", _optimized((now, *then))):
        return
    least_ms = SAME * _usual(then, "kernel_ms")
    for name, now_ms in now.optimized.kernels_ms.items():
        change = _compare(now, then, name, "kernel_ms", SAME)
        if change is not None and now_ms - _usual(then, name) >= least_ms:
            yield name, change


def _compare(now: Bills, then: Sequence[Bills], name: str, control: str | None, same: float) -> Change | None:
    """The change of a time or a kernel, beside the `control` of the reference. None where this process or too few
    recorded ones have the item."""
    own, own_now = _recorded(then, name), _time(now.optimized, name)
    if not own_now or len(own) < DECIDING_PROCESSES:
        return None
    change, most = _against([math.log(value) for value in own], math.log(own_now), same)
    both = [(a, b) for one in then if (a := _time(one.optimized, name)) and (b := _time(one.reference, control))]
    control_now = _time(now.reference, control)
    if not control_now or len(both) < DECIDING_PROCESSES:
        return Change(change, most, change, most)
    return Change(change, most, *_against([math.log(a / b) for a, b in both], math.log(own_now / control_now), same))


def _against(recorded: Sequence[float], now: float, same: float) -> tuple[float, float]:
    """The change of a log from the median of the recorded ones, and the change that may be chance."""
    return now - statistics.median(recorded), max(math.log1p(same), DEVIATIONS * statistics.stdev(recorded))


def _time(bill: Bill, name: str | None) -> float:
    """The milliseconds of an item or of a kernel of this name; 0 for one that the bill does not have."""
    return 0.0 if name is None else bill.counters.get(name, bill.kernels_ms.get(name, 0.0))


def _recorded(then: Sequence[Bills], name: str) -> list[float]:
    """The times of the recorded processes that have the item."""
    return [value for bill in _optimized(then) if (value := _time(bill, name))]


def _usual(then: Sequence[Bills], name: str) -> float:
    return statistics.median(_time(bill, name) for bill in _optimized(then))


def _optimized(bills: Iterable[Bills]) -> list[Bill]:
    return [one.optimized for one in bills]


def _is_any(flag: str, bills: Iterable[Bill]) -> bool:
    return any(bill.counters.get(flag, 0.0) > 0 for bill in bills)


def _item(name: str, now: Bills, then: Sequence[Bills]) -> Reason:
    """The reason for a time that grew, with the kernel that grew most."""
    facts: dict[str, Fact] = {"item": name, "now": _time(now.optimized, name)}
    facts["then"] = statistics.median(_recorded(then, name))
    if name not in TIMES:
        facts["kernel"] = name
    if name == "kernel_ms" and now.optimized.kernels_ms:
        usual = {kernel: _usual(then, kernel) for kernel in now.optimized.kernels_ms}
        kernel = max(usual, key=lambda one: now.optimized.kernels_ms[one] - usual[one])
        facts |= {"kernel": kernel, "kernel_then": usual[kernel], "kernel_now": now.optimized.kernels_ms[kernel]}
    return Reason(ReasonCode.ITEM_GREW, facts)


def find_leak(measurement: Measurement) -> Found:
    """Memory that every step leaves allocated; a leak that the reference has too is not the optimization's."""
    name = "grown_bytes"
    ours, theirs = (one.get(name, 0.0) for one in (measurement.optimized_counters, measurement.reference_counters))
    grew = Reason(ReasonCode.ITEM_GREW, {"item": name, "then": theirs, "now": ours})
    return {name: grew} if ours > theirs else {}


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


def unknown_counters(measurement: Measurement, contract: Contract) -> set[str]:
    """The counters that the contract limits and this process did not measure."""
    return {limit.counter for limit in (*contract.engaged, *contract.limits)} - measurement.optimized_counters.keys()
