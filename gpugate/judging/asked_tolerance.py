"""The tolerance that a user gives, checked against the smallest one that the records allow. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpugate.errors import OptionError
from gpugate.results.case import Remembered
from gpugate.statistics.tolerance import BOUNDS_NOTHING


def smallest_tolerance(remembered: Remembered) -> float:
    """A share: the larger one of those that the current record and the anchor are judged with by default."""
    return max(then.tolerance(remembered.checks) for then in (remembered.current, remembered.anchor))


def refuse_below_floor(asked: float, remembered: Mapping[str, Remembered | None]) -> None:
    """Raises OptionError, with both numbers, where `asked` is below the smallest tolerance of a case."""
    floors = [(smallest_tolerance(known), case_id) for case_id, known in remembered.items() if known is not None]
    largest, case_id = max(floors, default=(0.0, ""))
    if asked < largest:
        if largest >= BOUNDS_NOTHING:
            raise OptionError(
                f"--perf-tolerance is {100 * asked:g} %, and the processes that recorded {case_id} vary by too much to "
                "bound anything: leave that case out, or record it on a quieter machine"
            )
        smallest = write_rounded_up(largest)
        raise OptionError(
            f"--perf-tolerance is {100 * asked:g} %, below the {smallest} % that this machine resolves for {case_id}: "
            f"ask for {smallest} or more, or leave that case out"
        )


def write_rounded_up(share: float) -> str:
    """`1.84` for 0.01837: percent, of which the text itself, asked for, is enough."""
    return f"{math.ceil(share * 1e4) / 100:g}"
