"""The shard that a session measures: the value of `--perf-shard`, and the tests of its cases."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gpugate.errors import OptionError
from gpugate.results.fleet_plan import PlannedCase, Shard, divide, group_cases, group_name, needs_host
from gpugate.session.selection import cases_of

if TYPE_CHECKING:
    import pytest

    from gpugate.measurement.record import Counters
    from gpugate.store.baseline import Record
    from gpugate.workload import Case

OPTION = "--perf-shard"
SLURM, KUBERNETES = "slurm", "kubernetes"
COUNT_VARIABLE = "GPUGATE_SHARDS"  # a pod of an Indexed Job knows its index and not their number
NO_RECORD: tuple[Counters, Counters] = ({}, {})
_SHARD = re.compile(r"(\d{1,5})/(\d{1,5})")


def parse_shard(text: str, variables: Mapping[str, str] = os.environ) -> Shard:
    """The shard that `I/N`, `slurm` or `kubernetes` names. Raises OptionError for one that is not there.

    A task of a Slurm array has the position of its id in the array, which may begin with any number. The index of a
    pod of Kubernetes begins with 0.
    """
    if text == SLURM:
        step = f"submit it by sbatch --array=1-4, or give {OPTION} I/N"
        first, own = (_read(text, f"SLURM_ARRAY_TASK_{name}", variables, step) for name in ("MIN", "ID"))
        stride = _read(text, "SLURM_ARRAY_TASK_STEP", {"SLURM_ARRAY_TASK_STEP": "1", **variables}, step)
        count = _read(text, "SLURM_ARRAY_TASK_COUNT", variables, step)
        number, named = (own - first) // max(1, stride) + 1, f"{text} (task {own} of an array from {first} on)"
    elif text == KUBERNETES:
        step = f"make it a Job with completionMode: Indexed that sets {COUNT_VARIABLE}, or give {OPTION} I/N"
        own, count = (_read(text, name, variables, step) for name in ("JOB_COMPLETION_INDEX", COUNT_VARIABLE))
        number, named = own + 1, f"{text} (index {own}, {COUNT_VARIABLE} {count})"
    else:
        found = _SHARD.fullmatch(text)
        if found is None:
            raise OptionError(f"{OPTION} is {text!r}: give I/N, such as 1/4, {SLURM} or {KUBERNETES}")
        number, count, named = int(found[1]), int(found[2]), text
    if not 1 <= number <= count:
        known = f"from 1/{count} to {count}/{count}" if count else "such as 1/4"
        raise OptionError(f"{OPTION} {named} is shard {number} of {count}, which is not there: give one {known}")
    return Shard(number, count)


def _read(option: str, name: str, variables: Mapping[str, str], step: str) -> int:
    text = variables.get(name)
    if text is None:
        raise OptionError(f"{OPTION} {option} needs the variable {name}, which is not set: {step}")
    if not re.fullmatch(r"\d{1,9}", text):
        raise OptionError(f"{OPTION} {option} needs a whole number in the variable {name}, which is {text!r}: {step}")
    return int(text)


def plan_case(case: Case, record: Record | None = None, cores: int = 0) -> PlannedCase:
    """The facts that place a case in a plan. `cores` are those that each GPU has for itself.

    A case that was recorded with more cores is planned as one without a record.
    """
    if record is None or record.environment.cpu_count > cores:
        sides = NO_RECORD
    else:
        sides = record.reference_counters, record.optimized_counters
    copies = (side.get("copy_fraction") for side in sides)
    alone = needs_host(case.device_kind == "cpu", case.workload.timing == "pipeline", copies)
    return PlannedCase(case.id, group_name(case.id, case.optimization.point), alone, case.optimization.needs.gpus)


def select_shard(items: Sequence[pytest.Item], shard: Shard) -> tuple[Shard, set[pytest.Item]]:
    """The shard with the cases of all selected tests, and the tests that belong to other shards.

    All tests of a case stay together, and so do the points of a sweep. A test without a case belongs to every shard.
    Raises OptionError for a shard that would have no case.
    """
    cases = {case.id: case for item in items for case in cases_of(item)}
    planned = [plan_case(case) for case in cases.values()]  # without records: a shard has a host of its own
    groups = group_cases(planned, {})
    if groups and shard.number > len(groups):
        raise OptionError(
            f"{OPTION} {shard.number}/{shard.count} has no case, since the selected ones make {len(groups)} groups, of "
            f"which a sweep is one: give {len(groups)} shards at most"
        )
    own = {case_id for group in divide(groups, shard.count)[shard.number - 1] for case_id in group.cases}
    others = {item for item in items if (found := cases_of(item)) and found[0].id not in own}
    return replace(shard, cases=tuple(cases)), others
