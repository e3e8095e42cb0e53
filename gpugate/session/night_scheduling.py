"""The order in which workers of pytest-xdist get the groups of the plan: xdist's protocol of a scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

import pytest

from gpugate.results.fleet_plan import Group, longest_first

# A worker of xdist begins a test once it knows the next one, or that there is none.
FEWEST_WAITING = 2


class Workers(Protocol):
    """The workers of one host. `starting` and `dead` are nodes: a worker as xdist has it."""

    gpus: tuple[str, ...]
    starting: set[Any]
    dead: set[Any]

    def place(self, node: Any) -> int: ...

    def is_host(self, node: Any) -> bool: ...

    def plan(self) -> tuple[list[Group], dict[str, str]]: ...


class NightScheduling:
    """The longest group goes first, to the worker that is free first. Groups that run alone come after the others: the
    worker of the host gets them once each worker of a GPU has ended, and has left its memory and its cores.

    The tests of a node are numbered as it collected them.
    """

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self._collected: dict[Any, list[str]] = {}
        self._waiting: dict[Any, list[str]] = {}  # tests that a node has, and has not ended
        self._side_by_side: deque[list[str]] = deque()
        self._alone: deque[list[str]] = deque()
        self._left: dict[int, list[str]] = {}  # by the place of a worker that died
        self._tests: list[str] = []  # which every node collects
        self._planned = False

    @property
    def nodes(self) -> list[Any]:
        return list(self._waiting)

    @property
    def collection_is_completed(self) -> bool:
        return len(self._collected) > len(self.workers.gpus)  # each worker of a GPU, and that of the host

    @property
    def tests_finished(self) -> bool:
        """True where no node needs another test, though some may wait for the word that there is none."""
        if not self._planned or self._side_by_side or self._alone or self._left:
            return False
        return all(len(tests) < FEWEST_WAITING for tests in self._waiting.values())

    @property
    def has_pending(self) -> bool:
        return bool(self._side_by_side or self._alone or self._left or any(self._waiting.values()))

    def add_node(self, node: Any) -> None:
        self._waiting[node] = []

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        self._collected[node] = list(collection)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        self._waiting[node].remove(self._collected[node][item_index])
        self._feed(node)

    # xdist calls the next two for none of our orders: no hook repeats a crashed test, and no worker steals tests.
    def mark_test_pending(self, item: str) -> NoReturn:
        raise NotImplementedError

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> NoReturn:
        raise NotImplementedError

    def remove_node(self, node: Any) -> str | None:
        """Takes out a node that has ended. Of one that died, its first waiting test failed.

        Its other tests wait for the worker that replaces it, which knows the finished cases: no other one does.
        """
        waiting = self._waiting.pop(node)
        if not waiting:
            if self._planned and node not in self.workers.dead:  # another one replaces a dead one, and is fed then
                self._feed_all()
            return None
        if waiting[1:]:
            self._left[self.workers.place(node)] = waiting[1:]
        return waiting[0]

    def schedule(self) -> None:
        """Begins once all nodes have collected; later on, a node that replaces a dead one begins."""
        if not self._planned:
            self._planned = True
            self._plan()
        self._feed_all()

    def _plan(self) -> None:
        first, *others = self._collected.values()
        self._tests = first
        if any(other != first for other in others):
            for node in self._waiting:
                node.shutdown()
            message = "the workers collected different tests, so that none was run: repeat the run"
            report = pytest.CollectReport("workers", "failed", message, [])
            next(iter(self._waiting)).config.hook.pytest_collectreport(report=report)
            return
        groups, group_of = self.workers.plan()
        tests: dict[str, list[str]] = {}
        for test in first:
            tests.setdefault(group_of.get(test, test), []).append(test)
        for group in longest_first(groups):
            (self._alone if group.alone else self._side_by_side).append(tests.pop(group.name))
        self._side_by_side.extend(tests.values())  # tests of no case

    def _feed_all(self) -> None:
        for node in self.nodes:
            if node in self._collected:
                self._feed(node)

    def _feed(self, node: Any) -> None:
        """Gives the node the next groups, or the word that no further one comes."""
        if node.shutting_down:
            return
        if self._collected[node] != self._tests:
            self._give_up(node)
            return
        place, is_host = self.workers.place(node), self.workers.is_host(node)
        if is_host and self._alone and self._is_shared():
            return
        queue, waiting = self._alone if is_host else self._side_by_side, self._waiting[node]
        while (queue or self._left.get(place)) and len(waiting) < FEWEST_WAITING:
            tests = self._left.pop(place, None) or queue.popleft()
            waiting.extend(tests)
            node.send_runtest_some([self._collected[node].index(test) for test in tests])
        if not queue:
            node.shutdown()

    def _give_up(self, node: Any) -> None:
        """Ends a node that replaces a dead one and refuses: it collected no tests, and its controller has the reason.

        What it had to go on with is not measured, and neither is what no other node may measure.
        """
        node.shutdown()
        self._left.pop(self.workers.place(node), None)
        is_host = self.workers.is_host(node)
        others = [one for one in {*self._waiting, *self.workers.starting} if not one.shutting_down]
        if is_host:
            self._alone.clear()
        elif all(map(self.workers.is_host, others)):
            self._side_by_side.clear()

    def _is_shared(self) -> bool:
        """True while a worker of a GPU measures, or is to replace one that died."""
        others = {*self._waiting, *self.workers.starting}
        left = self._left.keys() - {len(self.workers.gpus)}
        return bool(self._side_by_side or left) or not all(map(self.workers.is_host, others))
