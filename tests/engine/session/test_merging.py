"""Shards become one night, decided again: the verdicts of one process with the same samples; others are refused."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpugate.catalogue import Catalogue
from gpugate.errors import ReplayError
from gpugate.machine.environment import Environment
from gpugate.measurement.record import Counters
from gpugate.results.case import CaseResult
from gpugate.results.changes import Flip
from gpugate.results.fleet_plan import Shard, divide, group_name
from gpugate.results.run import Provenance, RunResult
from gpugate.results.verdict import Check, Outcome, Verdict
from gpugate.session.decide_again import decide_again, find_changes
from gpugate.session.merging import NOTHING_MEASURED, ShardRun, check_shard, merge, run_problems
from gpugate.session.selection import FIXTURE, SWEEP_FIXTURE, case_needs_host, cases_of, select_shard
from gpugate.store import run_file
from gpugate.store.baseline import Record
from gpugate.workload import Case, Optimization, Point, Size, SweepCases, Workload
from tests.support.stored_runs import MACHINE, NO_TENSORRT, RECORDED, case, every_outcome, measured, stored, timed_build

ORIGIN = Provenance("https://git.example/a.git", "1a2b3c", None, "main", None, "host", "GPU-1", "sha256:1")


def swept(count: int) -> list[CaseResult]:
    points = [Point("batch", 2**power) for power in range(count)]
    found = [case(f"batch-{one.value}", point=one, remembered=None) for one in points]
    for one in found:
        one.measurement = measured(one.case_id, 3.0)
    return found


def whole_night(path: Path, *cases: CaseResult, **changed: Any) -> RunResult:
    """The night as one process measures it; the exit status is that of its verdicts."""
    given = {"gate": True, "exit_status": 1, "provenance": ORIGIN, **changed}
    return stored(path, *(cases or (*every_outcome(), *swept(4))), **given)


def split(night: RunResult, count: int, seed: int = 0) -> list[ShardRun]:
    """The shards of a night, with its samples, as `--perf-shard` divides its cases for made-up durations."""
    draw = random.Random(seed)  # noqa: S311  # the same shards in every run of the tests
    together: dict[str, list[str]] = {}
    for case_id, one in night.cases.items():
        together.setdefault(group_name(case_id, one.point), []).append(case_id)
    shares = divide({name: draw.uniform(1, 9) for name in together}, count)
    found = []
    for number, share in enumerate(shares, 1):
        own = [case_id for name in share for case_id in together[name]]
        run = replace(
            night,
            cases={case_id: night.cases[case_id] for case_id in own},
            yardsticks=night.yardsticks if number == 1 else [],
            shard=Shard(number, count, tuple(night.cases)),
        )
        found.append(check_shard(Path(f"{number}/run.json"), run))
    return found


def changed(one: ShardRun, **fields: Any) -> ShardRun:
    run = replace(one.run, **fields)
    assert run.shard is not None
    return ShardRun(one.path, run, run.shard)


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_merged_shards_are_the_night_of_one_process_digit_for_digit(tmp_path: Path, count: int) -> None:
    night = whole_night(tmp_path / "whole.json")
    assert {verdict.outcome for one in night.cases.values() for verdict in one.verdicts} == {*Outcome}
    for seed in range(3):
        shards = split(night, count, seed)
        random.Random(seed).shuffle(shards)  # noqa: S311
        # Through their files, which have the digits that verdicts rest on.
        for one in shards:
            run_file.write(tmp_path / f"{one.shard.number}.json", one.run)
        again = [check_shard(one.path, run_file.read(tmp_path / f"{one.shard.number}.json")) for one in shards]
        run_file.write(tmp_path / "merged.json", merge(again))
        assert (tmp_path / "merged.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_verdicts_are_decided_again_over_the_whole_night(tmp_path: Path) -> None:
    night = whole_night(tmp_path / "whole.json", case("a"), case("b"), exit_status=0)
    first, second = split(night, 2)
    (forged,) = first.run.cases.values()
    forged = replace(forged, measurement=measured(forged.case_id, 2.5))
    found = merge([changed(first, cases={forged.case_id: forged}), second])
    assert found.exit_status == 1
    assert found.problems == [f"the whole night judges {forged.case_id} otherwise"]
    assert {one.outcome.value for one in found.cases[forged.case_id].verdicts} >= {"REGRESSED"}


@pytest.mark.parametrize(("statuses", "status"), [((0, 0), 0), ((0, 1), 1), ((1, 0), 1), ((0, 2), 2)])
def test_the_exit_status_is_the_worst_of_the_shards(tmp_path: Path, statuses: tuple[int, int], status: int) -> None:
    shards = split(whole_night(tmp_path / "whole.json", case("a"), case("b"), exit_status=0), 2)
    assert (
        merge([changed(one, exit_status=each) for one, each in zip(shards, statuses, strict=True)]).exit_status
        == status
    )


def test_a_night_of_absent_cases_alone_measured_nothing_and_one_such_shard_is_no_problem(tmp_path: Path) -> None:
    skipped = [case(name, None, skipped=NO_TENSORRT, lacking=("tensorrt",)) for name in ("a", "b")]
    absent = whole_night(tmp_path / "absent.json", *skipped, exit_status=0)
    assert merge(split(absent, 2)).problems == [NOTHING_MEASURED]
    assert merge(split(absent, 2)).exit_status == 1
    night = whole_night(tmp_path / "whole.json", *skipped, case("c"), exit_status=0)
    assert [list(run_problems(one.run)) for one in split(night, 3)] == [[]] * 3
    assert (merge(split(night, 3)).problems, merge(split(night, 3)).exit_status) == ([], 0)


def test_missing_shards_are_named_with_their_cases_and_leave_the_night_without_a_verdict(tmp_path: Path) -> None:
    shards = split(whole_night(tmp_path / "whole.json", *[case(name) for name in "abcd"], exit_status=0), 4)
    found = merge(shards[1:3])
    missing = [next(iter(one.run.cases)) for one in (shards[0], shards[3])]
    assert found.problems == [
        "shard 1 of 4 is missing: measure it with --perf-shard 1/4, and merge again",
        "shard 4 of 4 is missing: measure it with --perf-shard 4/4, and merge again",
        f"no shard measured {', '.join(sorted(missing))}",
    ]
    assert (found.interrupted, found.exit_status, len(found.cases)) == (True, 1, 2)


def test_a_missing_shard_that_would_have_no_case_is_no_problem(tmp_path: Path) -> None:
    night = whole_night(tmp_path / "whole.json", case("a"), case("b"), exit_status=0)
    empty, *others = sorted(split(night, 3), key=lambda one: len(one.run.cases))
    assert empty.run.cases == {}
    found = merge(others)
    assert (found.problems, found.interrupted, found.exit_status) == ([], False, 0)


def test_a_shard_that_was_cut_off_leaves_the_night_without_a_verdict(tmp_path: Path) -> None:
    first, second = split(whole_night(tmp_path / "whole.json", case("a"), case("b"), exit_status=0), 2)
    killed = changed(second, cases={}, interrupted=True, exit_status=None)
    found = merge([first, killed])
    (absent,) = second.run.cases
    assert found.problems == [
        "shard 2 of 2 in 2/run.json was cut off: measure it again, and merge again",
        f"no shard measured {absent}",
    ]
    assert (found.interrupted, found.exit_status) == (True, 1)


def test_a_fault_that_several_shards_missed_is_one_problem_of_the_night(tmp_path: Path) -> None:
    night = whole_night(tmp_path / "whole.json", case("a"), case("b"), mutated="sync")
    shards = [changed(one, problems=list(run_problems(one.run))) for one in split(night, 2)]
    assert all(one.run.problems for one in shards)
    assert merge(shards).problems == list(run_problems(night))


@pytest.mark.parametrize(
    ("check", "fault", "caught"),
    [
        ("equivalence", "slow:5", False),
        ("equivalence", "stale", True),
        ("throughput", "slow:5", True),
        ("counters", "slow:5", False),
        ("counters", "stale", False),
    ],
)
def test_only_the_checks_of_its_kind_catch_a_fault(tmp_path: Path, check: Check, fault: str, caught: bool) -> None:
    night = whole_night(tmp_path / "whole.json", case("a"), mutated=fault)
    (only,) = night.cases.values()
    only.verdicts = [Verdict(check, only.case_id, Outcome.WRONG if check == "equivalence" else Outcome.REGRESSED)]
    assert (not [*run_problems(night)]) == caught


def test_a_night_of_several_hosts_has_no_host_and_began_with_its_first_shard(tmp_path: Path) -> None:
    first, second = split(whole_night(tmp_path / "whole.json", case("a"), case("b")), 2)
    elsewhere = replace(ORIGIN, host="another", gpu_uuid="GPU-2")
    earlier = changed(second, provenance=elsewhere, started_at="2030-01-02T01:04:05-01:00", wall_s=99.0)
    found = merge([first, earlier])
    assert found.provenance == replace(ORIGIN, host=None, gpu_uuid=None)
    assert (found.started_at, found.wall_s, found.shard) == ("2030-01-02T01:04:05-01:00", 99.0, None)


def other_machine(**fields: Any) -> dict[str, Any]:
    return {"environment": replace(MACHINE, **fields)}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "commit": ({"provenance": replace(ORIGIN, commit="4d5e6f")}, "2/run.json has the commit 4d5e6f, and 1/run.json"),
    "changes": (
        {"provenance": replace(ORIGIN, changes="0123")},
        "the hash of uncommitted changes 0123, and 1/run.json",
    ),
    "image": ({"provenance": replace(ORIGIN, container=None)}, "the image none, and 1/run.json has sha256:1"),
    "machine": (other_machine(device_name="NVIDIA H100"), "the machine nvidia-h100, and 1/run.json has nvidia-h200"),
    "memory": ({"memory_bytes": 2**37}, "the machine nvidia-h200-128-gib, and 1/run.json has nvidia-h200:"),
    "driver": (other_machine(driver="590.1"), "of 2/run.json and 1/run.json differs (driver 580.65.06 -> 590.1)"),
    "gate": ({"gate": False}, "the option --gate False, and 1/run.json has True: merge the shards of one night"),
    "fault": ({"mutated": "sync"}, "the fault sync, and 1/run.json has none"),
    "absence": ({"accepted": ("cuda",)}, "the option --allow-missing cuda, and 1/run.json has none"),
    "command": ({"command": "pytest mine"}, "the command pytest mine, and 1/run.json has pytest perf_tests"),
    "count": ({"shard": Shard(2, 3, ("a",))}, "the number of shards 3, and 1/run.json has 2"),
    "selection": ({"shard": Shard(2, 2, ("a",))}, "2/run.json divides other cases than 1/run.json: give every shard"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_shards_of_different_nights_are_refused(tmp_path: Path, kind: str) -> None:
    first, second = split(whole_night(tmp_path / "whole.json", case("a"), case("b")), 2)
    fields, said = REFUSED[kind]
    check_refused([first, changed(second, **fields)], said)


def check_refused(shards: Sequence[ShardRun], said: str) -> None:
    with pytest.raises(ReplayError) as refused:
        merge(shards)
    assert said in str(refused.value)


def test_a_shard_or_a_case_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    first, second = split(whole_night(tmp_path / "whole.json", case("a"), case("b")), 2)
    (name,) = first.run.cases
    check_refused([first, second, replace(first, path=Path("again"))], f"both measured {name}: leave one out")
    twice = changed(second, cases={**first.run.cases, **second.run.cases})
    check_refused([first, twice], f"2/run.json and 1/run.json both measured {name}: ")


def test_shards_that_were_judged_with_other_baselines_are_refused(tmp_path: Path) -> None:
    night = whole_night(tmp_path / "whole.json", case("a"), case("b", remembered=replace(RECORDED, checks=8)))
    check_refused(split(night, 2), "/run.json has the number of recorded checks ")


def test_a_whole_night_is_no_shard(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match=r"whole\.json is a whole night, measured without --perf-shard: give the"):
        check_shard(tmp_path / "whole.json", whole_night(tmp_path / "whole.json", case("a")))


def test_a_recording_is_decided_again_as_one(tmp_path: Path) -> None:
    run = stored(tmp_path / "run.json", case("no-baseline", remembered=None), recording=True)
    assert find_changes(run, decide_again(run)) == ()
    assert Outcome.NO_BASELINE not in {one.outcome for one in run.cases["tiny/no-baseline/cuda"].verdicts}


def test_a_case_that_cannot_be_decided_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("kernel_launches")

    run = stored(tmp_path / "run.json", case("odd"))
    monkeypatch.setattr("gpugate.session.decide_again.decide", fail)
    with pytest.raises(
        ReplayError, match=r"^tiny/odd/cuda of 2030-.* cannot be decided \(KeyError: 'kernel_launches'\)"
    ):
        decide_again(run)


def test_a_verdict_that_was_not_stored_is_a_change(tmp_path: Path) -> None:
    run = stored(tmp_path / "run.json", case("pass"))
    del run.cases["tiny/pass/cuda"].verdicts[1:]
    (first, *_) = find_changes(run, decide_again(run))
    assert first == Flip("tiny/pass/cuda", "speedup", None, Outcome.PASS)


# --- the cases of a shard ---------------------------------------------------------------------------------------------


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
    """Of more shards than there are cases and sweeps, the last ones have none."""
    for seed in range(60):
        draw = random.Random(seed)  # noqa: S311  # the same tests in every run
        items = seeded_items(draw)
        of_cases = [item for item in items if item.parameter is not None]
        ids = {case.id for item in of_cases for case in cases_of(item)}
        groups = set(map(group_of, of_cases))
        count = draw.randint(1, len(groups) + 3)
        found = dict[str, int]()
        for number in range(1, count + 1):
            shard, others = select_shard(items, Shard(number, count))
            assert (shard.number, shard.count, set(shard.cases)) == (number, count, ids)
            assert others <= set(of_cases)
            for item in set(of_cases) - others:
                assert found.setdefault(group_of(item), number) == number
        assert found.keys() == groups
        assert set(found.values()) == set(range(1, min(count, len(groups)) + 1))


def group_of(item: Any) -> str:
    """The sweep of a point and of a test of a sweep, else the case."""
    case = item.parameter
    point = case.optimization.point if isinstance(case, Case) else None
    return str(case.id if point is None else f"{case.workload.name}/{point.sweep}/cpu")


def test_a_case_needs_the_host_by_its_copies_and_its_cores() -> None:
    sides: Any = (lambda context: None, lambda context, index: None)
    both = {"cpu": Size(1, 1, 1), "cuda": Size(1, 1, 1)}
    one = Optimization("one", sides[0], {"cpu": 1.0, "cuda": 1.0}, point=Point("batch", 8))
    catalogue = Catalogue()
    catalogue.register(Workload("net", *sides, both, (one,)))
    catalogue.register(Workload("fed", *sides, both, (replace(one, point=None),), timing="pipeline"))
    catalogue.load()
    assert {case.id: case_needs_host(case, None, 16) for case in catalogue.cases()} == {
        "net/one/cuda": False,
        "net/one/cpu": True,
        "fed/one/cuda": True,
        "fed/one/cpu": True,
    }

    (fed,) = (case for case in catalogue.cases() if case.id == "fed/one/cuda")
    for both, needs_host in (((0.24, 0.0), False), ((0.25, 0.0), True), ((0.0, 0.25), True), ((0.0, None), True)):
        record = recorded(*({} if share is None else {"copy_fraction": share} for share in both), cores=16)
        assert case_needs_host(fed, record, 16) is needs_host
        assert case_needs_host(fed, record, 15), "its record had more cores"


def recorded(*sides: Counters, cores: int) -> Record:
    """A record of one process with the counters of both sides."""
    environment, builds = Environment("cuda", "NVIDIA H200", "Xeon", cores, "3.12.3"), ((timed_build(3.0, 1.0),),)
    counters = dict(zip(("reference_counters", "optimized_counters"), sides, strict=True))
    return Record("2030-01-01T00:00:00+00:00", "first", "0123456789abcdef", environment, builds, **counters)
