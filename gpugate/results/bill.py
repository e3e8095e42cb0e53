"""What a step of each side costs, item by item, per step: the bill, which repeats on every host of one GPU kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from gpugate.measurement.record import Counters, Measurement
from gpugate.measurement.step_profile import OTHERS, StepProfile
from gpugate.units import NotNegative, round_stored

MOST_KERNELS = 40  # by name, the longest first; the rest is one item


@dataclass(frozen=True)
class Bill:
    """The bill of one side: its counters, and on a GPU its kernels by name, as a step profile names them."""

    counters: Counters  # of gpugate.counter_names, per step; an absent one was not measured
    kernels_ms: Mapping[str, NotNegative]  # time of each kernel by its name, in ms per step; empty where not counted


@dataclass(frozen=True)
class Bills:
    """The bills of both sides, from one process."""

    reference: Bill
    optimized: Bill


def bills_of(measurement: Measurement) -> Bills | None:
    """The bills of a measurement, rounded as they are stored; None where nothing was counted."""
    one, other = measurement.reference_counters, measurement.optimized_counters
    if not (one or other):
        return None
    return Bills(_bill(one, measurement.reference_profile), _bill(other, measurement.optimized_profile))


def _bill(counters: Counters, profile: StepProfile | None) -> Bill:
    on_gpu = profile is not None and "kernel_ms" in counters  # on a CPU, a profile lists operators
    kernels = {name: ms for name, (_, ms) in profile.kernels.items()} if profile is not None and on_gpu else {}
    return Bill({name: round_stored(value) for name, value in counters.items()}, _longest(kernels))


def _longest(kernels_ms: Mapping[str, float]) -> dict[str, float]:
    """The longest kernels, and the sum of all others under OTHERS."""
    names = sorted(kernels_ms.keys() - {OTHERS}, key=lambda name: (-kernels_ms[name], name))
    found = {name: kernels_ms[name] for name in names[:MOST_KERNELS]}
    others = [ms for name, ms in kernels_ms.items() if name not in found]
    found |= {OTHERS: sum(others)} if others else {}
    return {name: round_stored(ms) for name, ms in found.items()}


@dataclass(frozen=True)
class BillColumns:
    """The bills of one side of several processes: a list by item, with a value for each process, or None."""

    counters: Mapping[str, tuple[NotNegative | None, ...]]
    kernels_ms: Mapping[str, tuple[NotNegative | None, ...]]


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
                if len(column) != len(self.measured):
                    raise ValueError(f"{name!r} has {len(column)} values for {len(self.measured)} processes")
        sides = self.reference, self.optimized
        return tuple(
            Bills(*(Bill(_values(side.counters, index), _values(side.kernels_ms, index)) for side in sides))
            if is_measured
            else None
            for index, is_measured in enumerate(self.measured)
        )


_NO_ITEM = Bill({}, {})
_ITEMS = tuple(one.name for one in fields(Bill))


def _values(columns: Mapping[str, Sequence[float | None]], index: int) -> dict[str, float]:
    return {name: value for name, column in columns.items() if (value := column[index]) is not None}


def _to_columns(bills: Sequence[Bills | None]) -> dict[str, Any]:
    """The fields of `BillsColumns`: a new process then changes one line for each item."""
    columns: dict[str, Any] = {"measured": [one is not None for one in bills]}
    for side in ("reference", "optimized"):
        of_side = [_NO_ITEM if one is None else getattr(one, side) for one in bills]
        columns[side] = {name: _columns([getattr(bill, name) for bill in of_side]) for name in _ITEMS}
    return columns


def _columns(items: Sequence[Mapping[str, float]]) -> dict[str, list[float | None]]:
    return {name: [one.get(name) for one in items] for name in sorted({name for one in items for name in one})}


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
