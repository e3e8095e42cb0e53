"""Cores shared out to processes that measure side by side, on made-up hosts."""

from pathlib import Path

import pytest

from gpugate.machine import cores
from gpugate.machine.cores import find_first_threads, share_cores

# Two NUMA nodes of four physical cores, whose second threads are numbered from 8 on.
THREADS = {core: core % 8 for core in range(16)}
NODES = (frozenset({0, 1, 2, 3, 8, 9, 10, 11}), frozenset({4, 5, 6, 7, 12, 13, 14, 15}))


@pytest.mark.parametrize(
    ("near", "shares"),
    [
        ((NODES[0], NODES[1]), [NODES[0], NODES[1]]),
        ((NODES[0], NODES[0]), [{0, 1, 8, 9}, {2, 3, 10, 11}]),
        ((NODES[1], NODES[0], NODES[1]), [{4, 5, 12, 13}, NODES[0], {6, 7, 14, 15}]),
        ((NODES[0], frozenset()), [NODES[0], NODES[1]]),  # not reported: all cores are divided
        ((NODES[0], frozenset(range(16))), [NODES[0], NODES[1]]),  # nodes that overlap too
        ((NODES[0],) * 5, [NODES[0]] * 5),  # fewer physical cores than processes
        ((NODES[0], NODES[0], NODES[0]), [{0, 8}, {1, 9}, {2, 3, 10, 11}]),
    ],
)
def test_gpus_of_a_node_divide_its_physical_cores(near: tuple[frozenset[int], ...], shares: list[set[int]]) -> None:
    assert share_cores(range(16), near, THREADS) == shares


def test_only_usable_cores_are_shared() -> None:
    assert share_cores({2, 3, 5}, NODES, THREADS) == [{2, 3}, {5}]
    assert share_cores({2, 3}, NODES, THREADS) == [{2}, {3}]


def test_the_threads_of_a_core_come_from_the_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for core, text in ((0, "0,4\n"), (4, "0,4\n"), (6, "6-7\n"), (7, "6-7\n")):
        (tmp_path / f"cpu{core}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{core}/topology/thread_siblings_list").write_text(text, encoding="utf-8")
    monkeypatch.setattr(cores, "TOPOLOGY", tmp_path)
    assert find_first_threads([0, 4, 6, 7, 9]) == {0: 0, 4: 0, 6: 6, 7: 6, 9: 9}
