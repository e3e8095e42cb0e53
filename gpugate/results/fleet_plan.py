"""The plan of a night on several GPUs: which GPU or shard measures which cases. Pure.

A group is a single case, or all points of a sweep, since its knee needs each of them. The longest group goes first,
each to the GPU that is free first (LPT: Graham, Bounds on multiprocessing timing anomalies, SIAM J. Appl. Math. 17,
1969). No plan for n GPUs is shorter than the larger one of the longest group and the sum over n. LPT is at most
4/3 - 1/(3n) times as long as the shortest plan. Where the GPU that ends last has k groups, its last one is its
shortest, so that the plan takes at most k / (k - 1) times the bound: ten percent more from eleven groups on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpugate.units import Natural
from gpugate.workload import CaseId, Point

# From this share of the time on, copies make a case need its host. It was chosen on results/h200/night, in which four
# GPUs of one host, each with 16 cores, measured side by side; the records are of hosts with one GPU each. The speedups
# of the 58 pipelines below the share differ from the records by 0.7 standard deviations of a process, in the median.
# Those of the 15 above it are 8 % smaller, in the median.
COPIES = 0.25


def needs_host(on_cpu: bool, on_host_clock: bool, copies: Iterable[float | None]) -> bool:
    """True for a case beside which no other may run on its host, where each GPU has cores of its own.

    On a CPU that is every case. On a GPU it is a pipeline, which is timed by the host's clock, one side of which copies
    for a share of COPIES of its time or more: copies share the host's memory and its bus with other cases. `copies` are
    the counters `copy_fraction` of the two sides; a pipeline whose copies were not counted, None, needs its host.
    """
    return on_cpu or (on_host_clock and any(share is None or share >= COPIES for share in copies))


@dataclass(frozen=True)
class Shard:
    """Shard `number` of `count`, from 1 on. `cases` are the ids of the whole night, which all shards divide."""

    number: Natural
    count: Natural
    cases: tuple[CaseId, ...] = ()

    def __str__(self) -> str:
        return f"{self.number} of {self.count}"


def group_name(case_id: str, point: Point | None) -> str:
    """The name of the sweep that a point belongs to, as its test has it; of any other case its own id."""
    if point is None:
        return case_id
    workload, _, kind = case_id.rsplit("/", 2)
    return f"{workload}/{point.sweep}/{kind}"


def divide(durations_s: Mapping[str, float], count: int) -> list[list[str]]:
    """Divides groups by LPT into `count` shares. Equal input gives equal shares, whatever the order of the groups."""
    shares: list[list[str]] = [[] for _ in range(count)]
    free_at = [(0.0, number) for number in range(count)]
    for name in sorted(durations_s, key=lambda name: (-durations_s[name], name)):
        busy_s, number = heapq.heappop(free_at)
        shares[number].append(name)
        heapq.heappush(free_at, (busy_s + durations_s[name], number))
    return shares
