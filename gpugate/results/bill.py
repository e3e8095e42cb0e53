"""The bill: the cost of a step of each side, item by item, which repeats on every host of one GPU kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from statistics import median
from typing import Annotated, Any

from gpugate.measurement.record import OTHERS, Counters, Measurement, StepProfile
from gpugate.units import NotNegative, round_stored
from gpugate.workload.counter_names import BILLED

MOST_KERNELS = 40  # by name, the longest first; the rest is one item
LEAST_SHARE = 0.01  # of the time of all kernels: a shorter kernel is a part of the rest


@dataclass(frozen=True)
class Bill:
    """The bill of one side: its counters of BILLED, and on a GPU its kernels by name, as a step profile names them."""

    counters: Counters  # of gpugate.workload.counter_names, per step; an absent one was not measured
    kernels_ms: Mapping[str, NotNegative]  # time of each kernel by its name, in ms per step; empty where not counted


@dataclass(frozen=True)
class Bills:
    """The bills of both sides, from one process."""

    reference: Bill
    optimized: Bill


def median_kernels_ms(recorded: Sequence[Bills]) -> dict[str, float]:
    """The median time of each kernel of the optimized side over processes; one that lacks the kernel spent none."""
    times = [one.optimized.kernels_ms for one in recorded]
    return {name: median([one.get(name, 0.0) for one in times]) for name in dict.fromkeys(chain.from_iterable(times))}


def bills_of(measurement: Measurement) -> Bills | None:
    """The bills of a measurement, rounded as they are stored; None where nothing was counted."""
    one, other = measurement.reference_counters, measurement.optimized_counters
    if not (one or other):
        return None
    return Bills(_bill(one, measurement.reference_profile), _bill(other, measurement.optimized_profile))


def _bill(counters: Counters, profile: StepProfile | None) -> Bill:
    on_gpu = profile is not None and "kernel_ms" in counters  # on a CPU, a profile lists operators
    kernels = {name: ms for name, (_, ms) in profile.kernels.items()} if profile is not None and on_gpu else {}
    return Bill({name: round_stored(counters[name]) for name in counters if name in BILLED}, _longest(kernels))


def _longest(kernels_ms: Mapping[str, float]) -> dict[str, float]:
    """The longest kernels, and the sum of all others under OTHERS."""
    least_ms = LEAST_SHARE * sum(kernels_ms.values())
    long = [name for name, ms in kernels_ms.items() if name != OTHERS and ms >= least_ms]
    found = {name: kernels_ms[name] for name in sorted(long, key=lambda name: (-kernels_ms[name], name))[:MOST_KERNELS]}
    others = [ms for name, ms in kernels_ms.items() if name not in found]
    found |= {OTHERS: sum(others)} if others else {}
    return {name: round_stored(ms) for name, ms in found.items()}


@dataclass(frozen=True)
class BillColumns:
    """The bills of one side of several processes, by item: one value of all that have a bill, or one of each."""

    counters: Mapping[str, NotNegative | tuple[NotNegative | None, ...]]
    kernels_ms: Mapping[str, NotNegative | tuple[NotNegative | None, ...]]


@dataclass(frozen=True)
class BillsColumns:
    """The bills of several processes as they are stored: each name once. `measured` is False for one without bill."""

    measured: tuple[bool, ...]
    reference: BillColumns
    optimized: BillColumns

    @property
    def bills(self) -> tuple[Bills | None, ...]:
        """Raises ValueError for columns of different lengths."""
        for side in (self.reference, self.optimized):
            for name, column in (*side.counters.items(), *side.kernels_ms.items()):
                if isinstance(column, tuple) and len(column) != len(self.measured):
                    raise ValueError(f"{name!r} has {len(column)} values for {len(self.measured)} processes")
        sides = self.reference, self.optimized
        return tuple(
            Bills(*(Bill(_values(side.counters, index), _values(side.kernels_ms, index)) for side in sides))
            if is_measured
            else None
            for index, is_measured in enumerate(self.measured)
        )


_ITEMS = tuple(one.name for one in fields(Bill))


def _values(columns: Mapping[str, float | tuple[float | None, ...]], index: int) -> dict[str, float]:
    found = {name: column[index] if isinstance(column, tuple) else column for name, column in columns.items()}
    return {name: value for name, value in found.items() if value is not None}


def _to_columns(bills: Sequence[Bills | None]) -> dict[str, Any]:
    """The fields of `BillsColumns`: a new process then changes one line for each item."""
    columns: dict[str, Any] = {"measured": [one is not None for one in bills]}
    for side in ("reference", "optimized"):
        of_side = [None if one is None else getattr(one, side) for one in bills]
        columns[side] = {name: _columns([bill and getattr(bill, name) for bill in of_side]) for name in _ITEMS}
    return columns


def _columns(items: Sequence[Mapping[str, float] | None]) -> dict[str, float | list[float | None]]:
    """The values of each item; None stands for a process without bill, and for one that has no such item."""
    found: dict[str, float | list[float | None]] = {}
    for name in sorted({name for one in items if one is not None for name in one}):
        values = [None if one is None else one.get(name) for one in items]
        first = next(value for value in values if value is not None)
        alike = all(one is None or one.get(name) == first for one in items)
        found[name] = first if alike else values
    return found


class _InColumns:
    """Makes pydantic store the bills of several processes as `BillsColumns`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(
            lambda columns: columns.bills,
            handler.generate_schema(BillsColumns),
            serialization=core_schema.plain_serializer_function_ser_schema(_to_columns),
        )


ProcessBills = Annotated[tuple[Bills | None, ...], _InColumns()]


def stored_bills() -> ProcessBills:
    """Declares a field of a dataclass that has the bills of processes, and is stored where any has one."""
    declared: ProcessBills = field(default=(), metadata={"exclude_if": lambda bills: not any(bills)})
    return declared
