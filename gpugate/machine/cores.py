"""The cores of a host, shared out to processes that measure side by side, each near its GPU."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def find_usable_cores() -> frozenset[int]:
    """The cores that this process may use, as its scheduler or container has it."""
    return frozenset(os.sched_getaffinity(0))


def find_first_threads(cores: Collection[int]) -> dict[int, int]:
    """The first hardware thread of the physical core of each; a core whose topology is not known is its own."""
    return {core: _first_thread(core) for core in cores}


def _first_thread(core: int) -> int:
    try:
        text = (TOPOLOGY / f"cpu{core}/topology/thread_siblings_list").read_text(encoding="utf-8")
    except OSError:
        return core
    first = text.strip().replace("-", ",").partition(",")[0]
    return int(first) if first.isdecimal() else core


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
