"""The tolerance that a user asks for, against the smallest one that this machine can tell apart from chance. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from gpugate.errors import OptionError
from gpugate.results.case import Remembered
from gpugate.statistics.tolerance import BOUNDS_NOTHING


class Floor(NamedTuple):
    """The case with the largest of all smallest tolerances, a share; `cases` counts those above the asked one."""

    case_id: str
    smallest: float
    cases: int


def smallest_tolerance(remembered: Remembered) -> float:
    """A share: the larger one of those that the current record and the anchor are judged with by default."""
    return max(then.tolerance(remembered.checks) for then in (remembered.current, remembered.anchor))


def floor_above(asked: float | None, remembered: Mapping[str, Remembered | None]) -> Floor | None:
    """The largest floor of a case above `asked`, a share; None where no floor is above it. Keys are case ids."""
    smallest = {case_id: smallest_tolerance(known) for case_id, known in remembered.items() if known is not None}
    above = {case_id: floor for case_id, floor in smallest.items() if asked is not None and asked < floor}
    if not above:
        return None
    case_id = max(above, key=above.__getitem__)
    return Floor(case_id, above[case_id], len(above))


def refuse_below_floor(asked: float, remembered: Mapping[str, Remembered | None]) -> None:
    """Raises OptionError, with both numbers, where `asked` is less than some case's history can tell from chance."""
    floor = floor_above(asked, remembered)
    if floor is not None:
        if floor.smallest >= BOUNDS_NOTHING:
            raise OptionError(
                f"--perf-tolerance is {100 * asked:g} %, and the processes that recorded {floor.case_id} vary by too "
                "much to bound anything: leave that case out, or record it on a quieter machine"
            )
        smallest = rounded_up(floor.smallest)
        raise OptionError(
            f"--perf-tolerance is {100 * asked:g} %, below the {smallest} % that this machine resolves for "
            f"{floor.case_id}: ask for {smallest} or more, or leave that case out"
        )


def rounded_up(share: float) -> str:
    """`1.84` for 0.01837: percent, of which the text itself, asked for, is enough."""
    return f"{math.ceil(share * 1e4) / 100:g}"
