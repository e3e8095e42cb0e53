"""Each rung averages the gradients of two processes by exactly its collectives, and the faults between ranks show."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import nn

from gpugate.faults.fault import Fault
from gpugate.faults.mutate import apply, mutate
from gpugate.judging.bill import broken_limit
from gpugate.measurement import collectives
from gpugate.measurement.collectives import count_collectives
from gpugate.measurement.difference import differences
from gpugate.measurement.ranks import RankedSide, RankJob
from gpugate.measurement.sides import build_side
from gpugate.workload import BASELINE, DEVICE_KINDS, RANKS, Case, Context, DeviceKind, Side
from gpugate.workload.parts import Parts
from tests.workloads.test_contract import exceeds
from workloads.ddp_scaling import COMPUTE_BOUND, EVEN_RANKS, WIRE_BOUND, WORKLOADS, Training, rungs
from workloads.ddp_scaling.rungs import draw, make

CPU = torch.device("cpu")
INPUTS = [torch.tensor([7]), torch.tensor([8])]
TRANSFORMER = WORKLOADS[0]
SIZES = [COMPUTE_BOUND, WIRE_BOUND]
CASES = [Case(workload, each, "cpu") for workload in WORKLOADS for each in workload.optimizations]
# Both ends of the sweep of buckets; the second size has the rungs of the first.
TRIED = [
    case
    for case in CASES
    if (case.workload is TRANSFORMER and case.optimization.name not in ("bucket-5", "bucket-25"))
    or case.optimization.name == "overlap"
]


@pytest.fixture(scope="module")
def job() -> Iterator[RankJob]:
    with RankJob(2, CPU) as started:
        yield started


def context(case: Case, job: RankJob | None) -> Context:
    return Context(CPU, case.size.items, 0, Path(), ranks=job)


@pytest.fixture(scope="module")
def gradients(job: RankJob) -> Mapping[str, tuple[Parts, Parts]]:
    """By workload: the gradients of the baseline, whose rank keeps its own, and those of the whole batch."""
    found = {}
    for workload in WORKLOADS:
        first = Case(workload, workload.optimizations[0], "cpu")
        with closing(build_side(BASELINE, workload.baseline, context(first, job), INPUTS[0])) as side:
            found[workload.name] = side.output_for(INPUTS[0]), side.output_for(INPUTS[0], expected=True)
    return found


@pytest.fixture(scope="module")
def expected(gradients: Mapping[str, tuple[Parts, Parts]]) -> Mapping[str, Parts]:
    return {name: whole for name, (_, whole) in gradients.items()}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "COUNTED_STEPS", 2)
    monkeypatch.setattr(collectives, "FLUSH_STEPS", 1)


def problems(case: Case, job: RankJob, expected: Mapping[str, Parts]) -> set[str]:
    """The counters of the contract that the optimized side breaks, and its output where that is off."""
    side = build_side(case.optimization.name, case.optimization.build, context(case, job), INPUTS[0])
    off = differences(side.output_for(INPUTS[0]), expected[case.workload.name], "fresh inputs")
    found = {"output"} if any(exceeds(each, case.optimization.tolerated) for each in off) else set()
    assert isinstance(side.side, RankedSide)
    counted = count_collectives(side, side.side.job, INPUTS)
    side.close()
    contract = case.optimization.contract["cpu"]
    limits = (*contract.engaged, *contract.limits)
    return found | {limit.counter for limit in limits if broken_limit(limit, counted, {}) is not None}


@pytest.mark.parametrize("case", TRIED, ids=lambda case: case.id)
def test_a_rung_gives_the_gradient_of_the_whole_batch_by_its_collectives(
    case: Case, job: RankJob, expected: Mapping[str, Parts]
) -> None:
    assert problems(case, job, expected) == set()


def test_a_rank_that_keeps_its_own_gradient_is_wrong_in_every_weight(
    gradients: Mapping[str, tuple[Parts, Parts]],
) -> None:
    own = differences(*gradients[TRANSFORMER.name], "fresh inputs")
    assert len(own) == len(list(make(COMPUTE_BOUND.model, CPU).parameters()))
    assert min(weight.relative_l2 for weight in own) > 0.5


@pytest.mark.parametrize(
    ("kind", "name", "found"),
    [
        ("one-bucket", "overlap", {"collectives", "early_collectives"}),
        ("no-overlap", "overlap", {"early_collectives"}),
        ("no-average", "overlap", {"output"}),
        ("skip-rank", "bf16-gradients", {"output"}),
    ],
)
def test_a_fault_between_ranks_shows(
    kind: str, name: str, found: set[str], job: RankJob, expected: Mapping[str, Parts]
) -> None:
    case = mutate(Case(TRANSFORMER, TRANSFORMER.optimization(name), "cpu"), Fault(kind), CPU)
    assert problems(case, job, expected) == found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_rank_that_is_twice_as_slow_breaks_a_limit_of_each_rung(case: Case) -> None:
    gathers_ahead = case.optimization.name == "fsdp2"
    slow, even = (
        {"rank_lag": 0.74, "exposed_communication": 0.456},
        {"rank_lag": 0.09, "exposed_communication": 0.003},
    )
    if gathers_ahead:  # a rank that is ahead waits in its gathers, beside its own compute
        even["rank_lag"] = 0.32
    limits = [one for one in case.optimization.contract["cuda"].limits if one.counter in slow]
    assert [broken_limit(one, slow, {}) for one in limits] != [None] * len(limits)
    assert [broken_limit(one, even, {}) for one in limits] == [None] * len(limits)
    assert (EVEN_RANKS in limits) is not gathers_ahead


def test_a_side_without_replicas_cannot_have_a_fault_of_them() -> None:
    build = apply(Fault("one-bucket"), lambda context: Side(lambda inputs: inputs))
    with pytest.raises(ValueError, match="one-bucket needs a side that uses DistributedDataParallel"):
        build(context(CASES[0], None))


def test_a_side_without_ranks_says_where_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match="needs a job of ranks, which pytest perf_tests alone starts"):
        rungs.ddp(context(CASES[0], None), COMPUTE_BOUND.model)


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_has_the_same_weights_and_its_own_part_of_the_batch(size: Training) -> None:
    model, again = make(size.model, CPU), make(size.model, CPU)
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    assert not list(model.buffers())
    parts = [draw(2, number, rank, CPU)[0] for number, rank in ((0, 0), (0, 1), (1, 0))]
    assert not any(parts[0].equal(other) for other in parts[1:])
    assert parts[0].equal(draw(2, 0, 0, CPU)[0])


@pytest.mark.parametrize("kind", DEVICE_KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_the_model_has_the_gradients_that_the_tables_count(
    size: Training, kind: DeviceKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Module, "to", lambda model, device: model)
    with torch.device("meta"):
        model = make(size.model, torch.device(kind))
    weights = list(model.parameters())
    in_blocks = [weight for block in model.blocks for weight in block.parameters()]
    found = [4 * sum(weight.numel() for weight in some) for some in (weights, in_blocks)]
    assert found == [size.gradient_bytes[kind], size.block_bytes[kind]]
    assert {len(weight) % RANKS[0] for weight in weights} == {0}  # FSDP2 would fill up other shares
