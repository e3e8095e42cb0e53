"""A shard: the part of a night that one process measures on a GPU of its own."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.units import Natural
from gpugate.workload import CaseId


@dataclass(frozen=True)
class Shard:
    """Shard `number` of `count`, from 1 on. `cases` are the ids of the whole night, which all shards divide."""

    number: Natural
    count: Natural
    cases: tuple[CaseId, ...] = ()

    def __str__(self) -> str:
        return f"{self.number} of {self.count}"
