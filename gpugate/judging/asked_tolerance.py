"""The tolerance that a user gives, checked against the smallest one that the records allow. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gpugate.errors import OptionError
from gpugate.results.case import Remembered


def refuse_below_floor(asked: float, remembered: Mapping[str, Remembered | None]) -> None:
    """Raises OptionError, with both numbers, where `asked` is below the smallest tolerance of a case."""
    known = {case_id: one for case_id, one in remembered.items() if one is not None}
    floors = [(one.current.wall_tolerance(one.checks) or 0.0, case_id) for case_id, one in known.items()]
    largest, case_id = max(floors, default=(0.0, ""))
    if asked < largest:
        smallest = write_rounded_up(largest)
        raise OptionError(
            f"--perf-tolerance is {100 * asked:g} %, below the {smallest} % that this machine resolves for {case_id}: "
            f"ask for {smallest} or more, or leave that case out"
        )


def write_rounded_up(share: float) -> str:
    """`1.84` for 0.01837: percent, of which the text itself, asked for, is enough."""
    return f"{math.ceil(share * 1e4) / 100:g}"
