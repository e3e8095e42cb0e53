"""`--perf-shard`: the shard that a value names, and a session that measures only its cases."""

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gpugate.catalogue import Catalogue
from gpugate.machine.environment import Environment
from gpugate.measurement.record import Counters
from gpugate.results.fleet_plan import PlannedCase, Shard
from gpugate.session.selection import FIXTURE, SWEEP_FIXTURE, cases_of, plan_case, select_shard
from gpugate.store.baseline import Record
from gpugate.workload import Case, Needs, Optimization, Point, Size, SweepCases, Workload


class Item:
    """A test as pytest has it; `parameter` is its case or its sweep, None of a test of no case."""

    def __init__(self, parameter: Case | SweepCases | None = None) -> None:
        name = FIXTURE if isinstance(parameter, Case) else SWEEP_FIXTURE
        self.parameter = parameter
        self.callspec = None if parameter is None else SimpleNamespace(params={name: parameter})


def seeded_items(draw: random.Random) -> list[Any]:
    """Four tests of each case, one of each sweep, and one of no case."""
    catalogue = Catalogue()
    sides: Any = (lambda context: None, lambda context, index: None)
    for number in range(draw.randint(1, 4)):
        points = [Point("batch", 2**power) for power in range(draw.randint(0, 5))]
        swept = [Optimization(f"batch-{one.value}", sides[0], {"cpu": 1.0}, point=one) for one in points]
        single = [Optimization(f"one-{index}", sides[0], {"cpu": 1.0}) for index in range(draw.randint(1, 9))]
        catalogue.register(Workload(f"net-{number}", *sides, {"cpu": Size(1, 1, 1)}, (*single, *swept)))
    catalogue.load()
    return [*map(Item, [*catalogue.cases() * 4, *catalogue.sweeps()]), Item()]


def test_each_case_is_in_exactly_one_shard_with_all_of_its_tests_and_its_sweep() -> None:
    for seed in range(60):
        draw = random.Random(seed)  # noqa: S311  # the same tests in every run
        items = seeded_items(draw)
        of_cases = [item for item in items if item.parameter is not None]
        ids = {case.id for item in of_cases for case in cases_of(item)}
        count = draw.randint(1, len(set(map(group_of, of_cases))))
        found = dict[str, int]()
        for number in range(1, count + 1):
            shard, others = select_shard(items, Shard(number, count))
            assert (shard.number, shard.count, set(shard.cases)) == (number, count, ids)
            assert others <= set(of_cases)
            for item in set(of_cases) - others:
                assert found.setdefault(group_of(item), number) == number
        assert found.keys() == set(map(group_of, of_cases))
        assert set(found.values()) == set(range(1, count + 1))


def group_of(item: Any) -> str:
    """The sweep of a point and of a test of a sweep, else the case."""
    case = item.parameter
    point = case.optimization.point if isinstance(case, Case) else None
    return str(case.id if point is None else f"{case.workload.name}/{point.sweep}/cpu")


def test_a_case_is_planned_by_its_copies_its_cores_and_its_gpus() -> None:
    sides: Any = (lambda context: None, lambda context, index: None)
    both = {"cpu": Size(1, 1, 1), "cuda": Size(1, 1, 1)}
    one = Optimization("one", sides[0], {"cpu": 1.0, "cuda": 1.0}, point=Point("batch", 8))
    spans = Optimization("spans", sides[0], {"cuda": 1.0}, needs=Needs(gpus=2))
    catalogue = Catalogue()
    catalogue.register(Workload("net", *sides, both, (one, spans)))
    catalogue.register(Workload("fed", *sides, both, (replace(one, point=None),), timing="pipeline"))
    catalogue.load()
    assert {plan_case(case) for case in catalogue.cases()} == {
        PlannedCase("net/one/cuda", "net/batch/cuda"),
        PlannedCase("net/one/cpu", "net/batch/cpu", needs_host=True),
        PlannedCase("net/spans/cuda", "net/spans/cuda", gpus=2),
        PlannedCase("fed/one/cuda", "fed/one/cuda", needs_host=True),
        PlannedCase("fed/one/cpu", "fed/one/cpu", needs_host=True),
    }

    (fed,) = (case for case in catalogue.cases() if case.id == "fed/one/cuda")
    for both, needs_host in (((0.24, 0.0), False), ((0.25, 0.0), True), ((0.0, 0.25), True), ((0.0, None), True)):
        record = recorded(*({} if share is None else {"copy_fraction": share} for share in both), cores=16)
        assert plan_case(fed, record, 16).needs_host is needs_host
        assert plan_case(fed, record, 15).needs_host, "its record had more cores"


def recorded(*sides: Counters, cores: int) -> Record:
    """A record of no processes with the counters of both sides."""
    environment = Environment("cuda", "NVIDIA H200", "Xeon", cores, "3.12.3")
    counters = dict(zip(("reference_counters", "optimized_counters"), sides, strict=True))
    return Record("2030-01-01T00:00:00+00:00", "ada", "first", "0123456789abcdef", environment, (), **counters)


def test_of_more_shards_than_cases_the_last_ones_have_none() -> None:
    items = seeded_items(random.Random(3))  # noqa: S311
    for number, cases in ((1, 1), (999, 0)):
        _, others = select_shard(items, Shard(number, 999))
        assert len({group_of(item) for item in items if item.parameter and item not in others}) == cases
