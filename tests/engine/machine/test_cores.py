"""Cores shared out to processes that measure side by side, on made-up hosts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpugate.machine import cores
from gpugate.machine.cores import count_periods, find_first_threads, find_quota, share_cores

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


V1, V2 = "3:cpu,cpuacct:/job/step\n2:memory:/job\n0::/job/step\n", "0::/job/step\n"
HALF_V1 = {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}
NONE_V1 = {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}
MakeGroups = Callable[[str, dict[str, dict[str, str]]], None]


@pytest.fixture
def make_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeGroups:
    """Writes the control groups of this process, and the files of each group."""

    def write(own: str, groups: dict[str, dict[str, str]]) -> None:
        (tmp_path / "own").write_text(own)
        for group, files in groups.items():
            (tmp_path / "cgroup" / group).mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (tmp_path / "cgroup" / group / name).write_text(f"{text}\n")

    monkeypatch.setattr(cores, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "OWN_CGROUPS", tmp_path / "own")
    return write


@pytest.mark.parametrize(
    ("own", "groups", "quota"),
    [
        (V1, {"cpu,cpuacct/job/step": HALF_V1}, 0.5),
        (V1, {"cpu/job/step": NONE_V1, "cpu/job": HALF_V1}, 0.5),
        (V1, {"cpu": HALF_V1}, 0.5),  # of a container, which sees its own group as the root
        (V1, {"memory/job": HALF_V1, "cpu/job/other": HALF_V1}, None),  # of others
        (V2, {"job/step": {"cpu.max": "max 100000"}, "job": {"cpu.max": "150000 100000"}}, 1.5),
        (V2, {"job/step": {"cpu.max": "50000 100000"}, "job": {"cpu.max": "150000 100000"}}, 0.5),
        (V2, {"": {"cpu.max": "33333 100000"}}, 0.333),
        (V1, {"unified/job": {"cpu.max": "100000 100000"}}, 1.0),
        ("0::/../elsewhere\n", {"": {"cpu.max": "50000 100000"}}, 0.5),
        (V2, {"job": {"cpu.max": "200000 100000"}}, None),  # as many as there are
        (V2, {}, None),
        ("", {"": {"cpu.max": "50000 100000"}}, None),
    ],
)
def test_the_smallest_quota_of_the_own_control_group_and_those_above_counts(
    make_groups: MakeGroups, own: str, groups: dict[str, dict[str, str]], quota: float | None
) -> None:
    make_groups(own, groups)
    assert find_quota(2) == quota


def test_the_periods_of_each_group_with_a_quota_are_counted(make_groups: MakeGroups, tmp_path: Path) -> None:
    stat = {"cpu.stat": "usage_usec 9\nnr_periods 274\nnr_throttled 210"}
    make_groups(V2, {"job/step": {"cpu.max": "max 100000", **stat}, "job": {"cpu.max": "50000 100000", **stat}})
    group, counts = tmp_path / "cgroup/job", count_periods()
    assert (counts[group, "nr_periods"], counts[group, "nr_throttled"]) == (274, 210)
    assert {found for found, _ in counts} == {group}


def test_a_system_without_control_groups_has_no_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "OWN_CGROUPS", Path("/nowhere"))
    assert (find_quota(2), count_periods()) == (None, {})
