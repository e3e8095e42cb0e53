"""Workers get the groups of the plan, on made-up nodes that run tests as those of pytest-xdist do."""

import random
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from gpugate.results.fleet_plan import Group
from gpugate.session.night_scheduling import NightScheduling

TESTS_OF_A_CASE = 4


@dataclass(eq=False)
class Node:
    """A worker: it begins a test once it knows the next one, or that there is none."""

    spec: Any
    known: deque[int] = field(default_factory=deque)
    shutting_down: bool = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.known.extend(indices)

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_run(self) -> bool:
        return len(self.known) > 1 or (bool(self.known) and self.shutting_down)

    @property
    def can_end(self) -> bool:
        return not self.known and self.shutting_down


class Host:
    """The controller of xdist with its nodes. `ran` has the tests in the order of their ends, each with its spec."""

    def __init__(self, gpus: int, groups: list[Group], plain: int = 0) -> None:
        self.specs = [*(f"gpu {number}" for number in range(gpus)), "host"]
        self.groups = groups
        group_of = {f"{case}[{test}]": one.name for one in groups for case in one.cases for test in range(4)}
        self.tests = [*group_of, *(f"plain {number}" for number in range(plain))]
        self.starting: set[Node] = set()
        self.dead: set[Node] = set()
        workers: Any = SimpleNamespace(
            gpus=self.specs[:-1],
            starting=self.starting,
            dead=self.dead,
            is_host=lambda node: node.spec == "host",
            place=lambda node: self.specs.index(node.spec),
            plan=lambda: (groups, group_of),
        )
        self.scheduling = NightScheduling(workers)
        self.ran: list[tuple[str, str]] = []
        self.knows: dict[Node, set[str]] = {}  # the cases that were finished before a node began
        self.crashed: list[str] = []
        self.tests_of_replacing = self.tests  # none where a worker that replaces a dead one refuses
        self.ran_on: dict[Node, list[str]] = {}
        for spec in self.specs:
            self.start(spec)

    def start(self, spec: str) -> None:
        node = Node(spec)
        self.knows[node] = {test.partition("[")[0] for test, _ in self.ran}
        self.starting.add(node)
        self.scheduling.add_node(node)

    def collect(self, node: Node) -> None:
        self.starting.discard(node)
        replaces = any(node.spec == dead.spec for dead in self.dead)
        self.scheduling.add_node_collection(node, self.tests_of_replacing if replaces else self.tests)
        if self.scheduling.collection_is_completed:
            self.scheduling.schedule()

    def run_one(self, node: Node) -> None:
        index = node.known.popleft()
        case = self.tests[index].partition("[")[0]
        own = {test.partition("[")[0] for test in self.ran_on.setdefault(node, [])}
        assert case in own | self.knows[node] or case not in {test.partition("[")[0] for test, _ in self.ran}, "twice"
        self.ran_on[node].append(self.tests[index])
        self.ran.append((self.tests[index], node.spec))
        if node.spec == "host" and self.tests[index].partition("[")[0] in self.alone:
            assert all(other.spec == "host" for other in self.scheduling.nodes), "another worker measures beside it"
        self.scheduling.mark_test_complete(node, index)

    def kill(self, node: Node) -> None:
        self.starting.discard(node)
        self.dead.add(node)
        crashed = self.scheduling.remove_node(node)
        self.crashed += [] if crashed is None else [crashed]
        self.start(node.spec)

    @property
    def alone(self) -> set[str]:
        return {case for group in self.groups if group.alone for case in group.cases}

    def finish(self, draw: random.Random, kills: int = 0) -> None:
        """Lets the nodes act in a drawn order until all have ended; each of the kills meets any node at any moment."""
        while self.scheduling.nodes:
            nodes = self.scheduling.nodes
            if kills and draw.random() < 0.05:
                kills -= 1
                self.kill(draw.choice(nodes))
                continue
            ready = [node for node in nodes if node in self.starting or node.can_run or node.can_end]
            assert ready, "no worker can go on"
            node = draw.choice(ready)
            if node in self.starting:
                self.collect(node)
            elif node.can_run:
                self.run_one(node)
            else:
                assert self.scheduling.remove_node(node) is None
        assert self.scheduling.tests_finished
        assert not self.scheduling.has_pending


def seeded_groups(draw: random.Random) -> list[Group]:
    """Cases and sweeps, some of which run alone."""
    return [
        Group(
            f"{number}",
            tuple(f"{number}-{point}" for point in range(draw.choice([1, 1, 3]))),
            draw.uniform(1, 9),
            alone=draw.random() < 0.3,
        )
        for number in range(draw.randint(0, 12))
    ]


def test_each_test_runs_once_and_a_group_on_one_worker_with_what_is_alone_on_the_host() -> None:
    for seed in range(300):
        draw = random.Random(seed)  # noqa: S311  # the same night in every run
        host = Host(draw.randint(2, 4), seeded_groups(draw), plain=draw.randint(0, 3))
        host.finish(draw)
        assert sorted(test for test, _ in host.ran) == sorted(host.tests)
        where = dict(host.ran)
        for group in host.groups:
            specs = {where[f"{case}[{test}]"] for case in group.cases for test in range(TESTS_OF_A_CASE)}
            assert len(specs) == 1
            assert ("host" in specs) == group.alone


def test_the_longest_goes_first_to_the_worker_that_is_free_first() -> None:
    groups = [Group(name, (name,), seconds) for name, seconds in zip("abcd", (1.0, 5.0, 4.0, 3.0), strict=True)]
    host = Host(2, [*groups, Group("e", ("e",), 9.0, alone=True), Group("f", ("f",), 10.0, alone=True)])
    for node in host.scheduling.nodes:
        host.collect(node)
    first, second, of_host = host.scheduling.nodes
    for node in (first, second):
        host.run_one(node)
    assert [test for test, _ in host.ran] == ["b[0]", "c[0]"]
    while first.can_run:
        host.run_one(first)
    assert [test for test, spec in host.ran if spec == "gpu 0"][4:8] == [f"d[{number}]" for number in range(4)]
    assert not of_host.known
    while second.can_run:
        host.run_one(second)
    for node in (first, second):
        host.run_one(node) if node.can_run else None
        assert node.can_end
        host.scheduling.remove_node(node)
    host.run_one(of_host)
    assert host.ran[-1] == ("f[0]", "host")


def test_a_killed_worker_loses_one_test_and_its_group_goes_on_in_the_one_that_replaces_it() -> None:
    killed = 0
    for seed in range(300):
        draw = random.Random(seed)  # noqa: S311  # the same night in every run
        host = Host(draw.randint(2, 4), seeded_groups(draw), plain=draw.randint(0, 3))
        kills = draw.randint(1, 6)
        host.finish(draw, kills)
        killed += len(host.crashed)
        assert sorted([*(test for test, _ in host.ran), *host.crashed]) == sorted(host.tests)
        assert len(host.crashed) <= kills
    assert killed > 100


def test_a_worker_that_replaces_a_dead_one_and_refuses_ends_and_the_others_go_on() -> None:
    refused = 0
    for seed in range(200):
        draw = random.Random(seed)  # noqa: S311  # the same night in every run
        host = Host(draw.randint(2, 4), seeded_groups(draw), plain=draw.randint(0, 3))
        for node in host.scheduling.nodes:
            host.collect(node)
        tests, host.tests_of_replacing = host.tests, []
        host.finish(draw, kills=draw.randint(1, 6))
        gone = {node.spec for node in host.dead}
        refused += len(gone)
        missing = {*tests} - {test for test, _ in host.ran}
        assert len(host.ran) == len({test for test, _ in host.ran})
        assert gone or not missing
        if "host" not in gone:
            assert not {test for test in missing if test.partition("[")[0] in host.alone}
    assert refused > 100


def test_workers_that_collected_different_tests_run_none() -> None:
    host = Host(2, [])
    reports: list[Any] = []
    hook = SimpleNamespace(pytest_collectreport=lambda report: reports.append(report))
    for number, node in enumerate(host.scheduling.nodes):
        node.config = SimpleNamespace(hook=hook)
        host.tests = [f"plain {number // 2}"]
        host.collect(node)
    assert [report.outcome for report in reports] == ["failed"]
    assert "the workers collected different tests" in reports[0].longrepr
    assert all(node.shutting_down and not node.known for node in host.scheduling.nodes)
    assert host.scheduling.tests_finished
