"""The cores that this process may use, their shares for processes that measure side by side, and the quota of time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
TOPOLOGY = Path("/sys/devices/system/cpu")


def find_usable_cores() -> frozenset[int]:
    """The cores that this process may use, as its scheduler or container has it."""
    return frozenset(os.sched_getaffinity(0))


def find_first_threads(cores: Collection[int]) -> dict[int, int]:
    """The first hardware thread of the physical core of each; a core whose topology is not known is its own."""
    found = {}
    for core in cores:
        text = read_or_empty(TOPOLOGY / f"cpu{core}/topology/thread_siblings_list")
        first = text.strip().replace("-", ",").partition(",")[0]
        found[core] = int(first) if first.isdecimal() else core
    return found


def share_cores(
    usable: Collection[int], near: Sequence[Collection[int]], first_thread: Mapping[int, int]
) -> list[frozenset[int]]:
    """Divides the usable cores into a share for each process, from those that are `near` its GPU. Pure.

    GPUs of one NUMA node divide the cores of their node into equal shares, and both threads of a physical core stay
    together. Where a GPU has no near core that is usable, or nodes overlap, the GPUs divide all cores. Where there are
    fewer physical cores than processes, the processes have all of them in common.
    """
    nodes = [frozenset(usable) & frozenset(cores) for cores in near]
    different = set(nodes)
    if not all(nodes) or sum(map(len, different)) > len(frozenset().union(*different)):
        nodes = [frozenset(usable)] * len(near)
    shares: list[frozenset[int]] = []
    for number, node in enumerate(nodes):
        physical = sorted({first_thread[core] for core in node})
        together, position = nodes.count(node), nodes[:number].count(node)
        first, last = (len(physical) * edge // together for edge in (position, position + 1))
        own = set(physical[first:last] if len(physical) >= together else physical)
        shares.append(frozenset(core for core in node if first_thread[core] in own))
    return shares


def find_quota(cores: int) -> float | None:
    """The smallest quota of CPU time of this process, in cores; None where it is not below the number of `cores`."""
    smallest = min(_read_quotas().values(), default=cores)
    return round(smallest, 3) if smallest < cores else None


def count_periods() -> Counter[tuple[Path, str]]:
    """The counts of each control group with a quota: `nr_periods` in which it ran, and `nr_throttled` of them."""
    texts = ((group, read_or_empty(group / "cpu.stat")) for group in _read_quotas())
    counts = ((group, line.split()) for group, text in texts for line in text.splitlines())
    return Counter({(group, name): int(count) for group, (name, count) in counts})


def _read_quotas() -> dict[Path, float]:
    """The quotas in cores of this process's control group and of all above it, by cgroup v1 and v2.

    A container may see its own group as the root.
    """
    found = {}
    for _, controllers, path in (line.split(":", 2) for line in read_or_empty(OWN_CGROUPS).splitlines()):
        mounts = ("cpu", controllers) if "cpu" in controllers.split(",") else () if controllers else ("", "unified")
        own = Path(path.lstrip("/"))
        for group in (CGROUPS / mount / each for mount in mounts for each in (own, *own.parents)):
            of_v1 = (read_or_empty(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
            limits = (read_or_empty(group / "cpu.max") or " ".join(of_v1)).split()
            if len(limits) == 2 and all(map(str.isdecimal, limits)):  # `max` and -1 mean none
                found[group] = int(limits[0]) / int(limits[1])
    return found


def read_or_empty(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
