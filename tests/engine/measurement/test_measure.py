"""Measuring a case from beginning to end on a CPU, with a clock that only the sides' steps move."""

import copy
import itertools
import math
import os
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import config as dynamo_config

from gpugate.errors import SideError
from gpugate.faults.fault import Fault
from gpugate.measurement import run
from gpugate.measurement.record import ClockReading, Measurement, ProofResult, SideCost
from gpugate.measurement.run import WorkloadCache, _fill_peak
from gpugate.results.verdict import Outcome
from gpugate.workload import (
    BASELINE,
    TOLERANCE_BY_DTYPE,
    Case,
    Context,
    DisprovedError,
    Optimization,
    Proof,
    Side,
    Size,
)
from gpugate.workload.counter_names import CPU_COUNTERS
from tests.support.bench import NEARLY_WEIGHT, Bench, Step, bench, other_kernels, product, quick_collections
from tests.support.judged_cases import judge_equivalence
from tests.support.stored_runs import measured

__all__ = ["bench", "quick_collections"]  # fixtures


def speedups(measurement: Measurement) -> list[float]:
    return [round(pair.reference_ms / pair.optimized_ms, 6) for pair in measurement.pairs]


def test_what_a_quiet_measurement_records(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = itertools.chain([ClockReading(1200, ("power brake",))] * 2, itertools.repeat(ClockReading(1980)))
    monkeypatch.setattr(run, "clock_reader", lambda device: lambda: next(readings))
    found = bench.measure(bench.case(bench.side("fast", 1.0, other_kernels, build_s=0.5)))
    assert [one.discarded for one in found.instances] == [1, 0, 0, 0]
    assert {pair.sm_clock_mhz for pair in found.pairs} == {1980}
    assert (found.case_id, found.stopped_because) == ("net/fast/cpu", "narrow")
    assert [len(one.pairs) for one in found.instances] == [4, 4, 4, 4]
    assert speedups(found) == [3.0] * 16
    built = [line for line in bench.log if line.startswith("build ")]
    assert built == ["build baseline", *["build baseline", "build fast", "build fast", "build baseline"] * 2]
    assert {(one.reference_steps_per_block, one.optimized_steps_per_block) for one in found.instances} == {(5, 11)}
    assert [one.when for one in found.differences] == ["fresh inputs"] * 3 + ["timed steps"] * 4
    assert all(one.relative_l2 < 1e-6 for one in found.differences)
    assert found.optimized_cost.build_s == pytest.approx(0.5)
    assert found.reference_cost.first_step_s == pytest.approx(0.003)
    assert (found.inert, found.not_engaged, found.timer) == (False, None, "host clock")
    assert found.counters_missing == "kernels and copies are counted on CUDA only"
    assert set(found.optimized_counters) == set(found.reference_counters) <= CPU_COUNTERS
    assert found.cpu_missing is None
    assert {"cpu_ms", "spinning"} <= found.optimized_counters.keys()
    assert found.optimized_counters["operators"] == sum(count for count, _ in found.optimized_profile.kernels.values())


def test_sides_are_fresh_in_every_instance_in_swapped_order_and_closed_before_the_next(bench: Bench) -> None:
    bench.measure(bench.case())
    alone = ["build baseline", "close baseline"]
    reference_first = ["build baseline", "build fast", "close fast", "close baseline"]
    fast_first = ["build fast", "build baseline", "close baseline", "close fast"]
    assert bench.log == [*alone, *(reference_first + fast_first) * 2]


@pytest.mark.parametrize(("build_s", "builds", "pairs"), [(0.0, 4, 16), (100.0, 1, 64)])
def test_a_planned_duet_has_its_pairs_also_where_a_further_build_is_too_dear(
    bench: Bench, build_s: float, builds: int, pairs: int
) -> None:
    """Pairs vary by 3 %, so that their interval is never as narrow as that of a measurement."""
    wobble = random.Random(1)  # noqa: S311  # for repeatability
    fast = bench.side("fast", lambda: 30.0 * wobble.uniform(0.985, 1.015), build_s=build_s)
    case = bench.case(fast, bench.side("baseline", lambda: 30.0 * wobble.uniform(0.985, 1.015)))
    settings = {"pairs_per_build": 16, "min_builds": 4, "duet": True, "planned": True}
    found = bench.measure(case, budget_s=20.0, **settings)
    assert [len(one.pairs) for one in found.instances] == [pairs] * builds
    assert [bench.log.count(f"build {side}") for side in ("baseline", "fast")] == [builds] * 2
    assert {one.when for one in found.differences} == {"fresh inputs"}
    assert "counting" in found.spent_s


def test_a_duet_that_counts_no_step_has_the_counters_of_its_timed_blocks(bench: Bench) -> None:
    found = bench.measure(bench.case(), duet=True, count=False)
    assert found.pairs
    assert "counting" not in found.spent_s
    assert "minor_faults" in found.optimized_counters


@pytest.mark.parametrize(("budget_s", "pairs"), [(0.001, [8]), (0.5, [4, 4]), (2.0, None)])
def test_a_spent_budget_stops_but_never_before_eight_pairs_of_two_builds_where_it_pays_for_one(
    bench: Bench, budget_s: float, pairs: list[int] | None
) -> None:
    drift = itertools.count(1)
    case = bench.case(bench.side("fast", lambda: 30.0 + 0.05 * next(drift)))
    found = bench.measure(case, half_width=1e-9, budget_s=budget_s)
    assert found.stopped_because == "budget"
    assert [len(one.pairs) for one in found.instances] == pairs if pairs else len(found.pairs) > 8
    if not pairs:
        began_s = next(told.seconds_left for told in bench.told if told.seconds_left is not None)
        assert 1.5 < began_s <= 2.0


def test_what_is_dear_to_build_gets_its_pairs_from_fewer_instances(bench: Bench) -> None:
    found = bench.measure(bench.case(bench.side("fast", 1.0, other_kernels, build_s=100.0)), budget_s=20.0)
    # The interval of a single build is never narrow: what another build would give is unknown.
    assert (len(found.instances), found.stopped_because) == (1, "noise")
    assert len(found.pairs) >= 32
    assert bench.log == [
        *("build baseline", "close baseline"),
        *("build baseline", "build fast", "close fast", "close baseline"),
        *("build baseline", "close baseline"),  # once more after the optimization, for its outputs
    ]


def test_an_output_that_is_stale_under_load_alone_is_caught_on_the_timed_steps(bench: Bench) -> None:
    """The side keeps two steps in flight: without a join after each step it returns the output of the step before."""
    before: list[torch.Tensor] = []

    def stale(inputs: torch.Tensor) -> torch.Tensor:
        before.append(product(inputs))
        return before.pop(0) if len(before) > 1 else before[0]

    found = bench.measure(bench.case(bench.side("fast", 1.0, stale, finish=before.clear)))
    fresh = [one.relative_l2 for one in found.differences if one.when == "fresh inputs"]
    timed = [one.relative_l2 for one in found.differences if one.when == "timed steps"]
    assert max(fresh) < 1e-6
    assert max(timed) > 0.1  # the compared step is drawn at random, and the first one of a block is right
    assert found.step_checks is not None
    assert found.step_checks.resembles == "step before"


@pytest.mark.parametrize(
    ("step", "inert"),
    [
        (product, True),
        (lambda inputs: product(inputs) * 1.0, False),  # the same bits by more operators
        (lambda inputs: inputs @ NEARLY_WEIGHT, False),
    ],
    ids=["the same", "other operators", "other bits"],
)
def test_the_same_bits_by_the_same_operators_are_inert(bench: Bench, step: Step, inert: bool) -> None:
    assert bench.measure(bench.case(bench.side("fast", 1.0, step))).inert is inert


@pytest.mark.parametrize("at_step", [1, 50])
def test_an_interrupt_passes_and_leaves_nothing_open(bench: Bench, at_step: int) -> None:
    calls = itertools.count(1)

    def step(inputs: torch.Tensor) -> torch.Tensor:
        if next(calls) == at_step:
            raise KeyboardInterrupt
        return product(inputs)

    with pytest.raises(KeyboardInterrupt):
        bench.measure(bench.case(bench.side("fast", 1.0, step)))
    assert sum(line.startswith("build") for line in bench.log) == sum(line.startswith("close") for line in bench.log)


def test_a_side_that_reaches_the_limit_of_recompilations_is_not_engaged(bench: Bench) -> None:
    turns = itertools.count()

    def turned(inputs: torch.Tensor, turn: int) -> torch.Tensor:
        return other_kernels(inputs) + 0 * turn

    def build(context: Context) -> Side:
        compiled = torch.compile(turned, backend="eager", dynamic=False)
        return bench.side("fast", 1.0, lambda inputs: compiled(inputs, next(turns) % 4))(context)

    with dynamo_config.patch(recompile_limit=2):
        found = bench.measure(bench.case(build))
    assert len(found.instances) > 1
    assert "limit of recompilations: " in str(found.not_engaged)
    names = ("compiled_graphs", "recompilations", "eager_frames")
    assert [found.optimized_counters[name] for name in names] == [2.0, 1.0, 1.0]
    assert {found.reference_counters[name] for name in names} == {0.0}


WROTE = "failed while running its steps: ValueError: it wrote to its inputs"


@pytest.mark.parametrize(("who", "at_call"), [(BASELINE, 1), ("first", 2), ("fast", 6)])
def test_a_write_to_the_inputs_is_blamed_on_who_wrote(bench: Bench, who: str, at_call: int) -> None:
    calls = itertools.count(1)

    def writing(inputs: torch.Tensor) -> torch.Tensor:
        output = product(inputs)
        if next(calls) == at_call:
            inputs.add_(1.0)
        return output

    with pytest.raises(SideError, match=f"^{who} {WROTE}"):
        bench.measure(rungs(bench, **{who: writing}))
    assert "measuring" not in {told.doing for told in bench.told}


@pytest.mark.parametrize("moment", [("measuring", 1), ("measuring", 4), ("counting", 5)])
def test_a_write_is_seen_whenever_it_happens(bench: Bench, moment: tuple[str, int]) -> None:
    def writing(inputs: torch.Tensor) -> torch.Tensor:
        if (bench.told[-1].doing, bench.told[-1].build) == moment:
            inputs.mul_(1.0)
        return product(inputs)

    with pytest.raises(SideError, match=f"^fast {WROTE}"):
        bench.measure(bench.case(bench.side("fast", 1.0, writing)))
    last = [(told.doing, told.build) for told in bench.told[-2:]]
    assert moment == (last[0] if last[0][0] == "counting" else last[1]), "what follows counting is checking"


@pytest.mark.parametrize("built", [True, False])
def test_an_optimization_that_changes_the_references_model_is_blamed(bench: Bench, built: bool) -> None:
    shared = nn.Linear(4, 3).requires_grad_(False)
    steps = itertools.count()

    def changing(inputs: torch.Tensor) -> torch.Tensor:
        return shared.weight.mul_(1.5)[:2] if next(steps) == 0 else product(inputs)

    def optimized(context: Context) -> Side:
        if built:
            changing(torch.ones(2, 4))
        return bench.side("fast", 1.0, changing)(context)

    words = "^fast failed while being built or run: ValueError: it changed the reference's model: copy"
    with pytest.raises(SideError, match=words):
        bench.measure(bench.case(optimized, bench.side(BASELINE, 3.0, shared.forward, model=shared)))


@pytest.mark.parametrize(
    ("dtype", "factor", "words"),
    [
        (torch.float32, 1.01, "are now .*e-02 off its first ones, and 1e-04 is allowed: build from a copy"),
        (torch.bfloat16, 1.5, "are now .*e-01 off its first ones, and 2e-02 is allowed: build from a copy"),
        (torch.bfloat16, 1.01, None),  # two algorithms of a product in bfloat16 differ by as much
    ],
)
def test_an_edit_of_a_model_that_no_side_shows_is_caught_by_the_baselines_outputs(
    bench: Bench, dtype: torch.dtype, factor: float, words: str | None
) -> None:
    shared = nn.Linear(4, 3, bias=False, dtype=dtype).requires_grad_(False)
    changed = shared.weight * factor

    def optimized(context: Context) -> Side:
        own = copy.deepcopy(shared)
        shared.weight.copy_(changed)
        return bench.side("fast", 1.0, lambda inputs: own(inputs.to(dtype)))(context)

    case = bench.case(optimized, bench.side(BASELINE, 3.0, lambda inputs: shared(inputs.to(dtype))))
    caught = pytest.raises(SideError, match=f"^fast failed while being measured: .* the baseline's outputs {words}")
    with caught if words else nullcontext():
        bench.measure(case)


def rungs(bench: Bench, **steps: Step) -> Case:
    """The second rung of a workload, compared with the first one: steps of 3, 2 and 1 ms."""
    built = {
        name: bench.side(name, step_ms, steps.get(name, product))
        for name, step_ms in ((BASELINE, 3.0), ("first", 2.0), ("fast", 1.0))
    }
    first = Optimization("first", built["first"], {"cpu": 1.0})
    case = bench.case(built["fast"], built[BASELINE])
    fast = replace(case.optimization, compared_with="first")
    return Case(replace(case.workload, optimizations=(first, fast)), fast, "cpu")


def test_a_reference_may_be_another_optimization_while_outputs_are_compared_with_the_baseline(bench: Bench) -> None:
    found = bench.measure(rungs(bench, first=lambda inputs: product(inputs) + 1.0))
    assert set(speedups(found)) == {2.0}
    assert max(one.relative_l2 for one in found.differences) == 0.0
    assert bench.log.count("build baseline") == 2, "for its outputs alone, before and after"


def test_what_a_process_knows_of_a_workload_is_not_found_out_again_and_is_forgotten_with_it(bench: Bench) -> None:
    cache, second = WorkloadCache(), rungs(bench)
    first = Case(second.workload, second.workload.optimizations[0], "cpu")
    apart = bench.measure(second)
    bench.measure(first, cache, fault=Fault.parse("slow:50"))
    assert set(cache.sides) == {BASELINE}, "counters of a side with a fault are not kept"
    bench.measure(first, cache)
    built = bench.log.count("build baseline")
    found = bench.measure(second, cache)
    assert bench.log.count("build baseline") == built + 1, "after"
    assert set(cache.sides) == {BASELINE, "first", "fast"}
    assert found.inert is apart.inert is True
    assert found.differences == apart.differences
    for seed, workload in ((1, second.workload), (1, replace(second.workload, name="other"))):
        built = bench.log.count("build baseline")
        bench.measure(replace(second, workload=workload), cache, seed=seed)
        assert bench.log.count("build baseline") == built + 2


def from_an_iterator() -> Step:
    """A step that takes its batch from an iterator of its own, whatever it is given."""
    batches = (torch.randn(2, 4, generator=torch.Generator().manual_seed(seed)) for seed in itertools.count(100))
    return lambda inputs: product(next(batches))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (lambda inputs: product(inputs) * math.nan, "it returned"),
        (from_an_iterator(), "it gives another output for the same input"),
    ],
)
def test_a_baseline_that_nothing_can_be_compared_with_is_blamed_itself(bench: Bench, output: Step, words: str) -> None:
    with pytest.raises(SideError, match=rf"^baseline failed while computing an output: ValueError: {words}"):
        bench.measure(bench.case(baseline=bench.side(BASELINE, 3.0, output)))
    assert bench.log == ["build baseline", "close baseline"]


def test_an_optimized_side_whose_output_depends_on_more_than_its_input_is_named_and_not_timed(bench: Bench) -> None:
    found = bench.measure(bench.case(bench.side("fast", 1.0, from_an_iterator())))
    verdict = judge_equivalence(found, TOLERANCE_BY_DTYPE["float32"])
    assert (verdict.outcome, found.pairs) == (Outcome.WRONG, ())
    assert "it gives another output for the same input" in verdict.reason


def test_a_side_that_shows_that_it_engaged_is_not_inert_and_its_reason_is_recorded(bench: Bench) -> None:
    found = bench.measure(bench.case(bench.side("fast", 1.0, product, engaged=lambda: "2 graph breaks")))
    assert (found.inert, found.not_engaged) == (False, "2 graph breaks")


def test_who_watches_is_told_what_happens_and_how_the_interval_narrows(bench: Bench) -> None:
    found = bench.measure(bench.case())
    doings = [doing for doing, _ in itertools.groupby(told.doing for told in bench.told)]
    assert doings[:5] == ["preparing", "building", "checking", "warming up", "measuring"]
    assert doings[-2:] == ["counting", "checking"]
    measuring = [told for told in bench.told if told.doing == "measuring"]
    assert [(told.pairs, told.build) for told in measuring] == [(pairs, 1 + pairs // 4) for pairs in range(16)]
    assert measuring[0].speedup is None
    assert measuring[-1].speedup.median == pytest.approx(3.0)
    left = [told.seconds_left for told in measuring]
    assert left == sorted(left, reverse=True)
    assert found.wall_s == pytest.approx(sum(found.spent_s.values()))
    assert found.spent_s.keys() >= {*doings}


def test_two_measurements_of_one_case_become_one() -> None:
    first, second = (measured("net/fast/cpu", speedup, wall_s=3.0) for speedup in (3.0, 2.0))
    both = first.with_more(replace(second, stopped_because="budget", not_engaged="fell back"))
    assert both.instances == first.instances + second.instances
    assert both.differences == first.differences + second.differences
    assert (both.stopped_because, both.attempts, both.wall_s) == ("budget", 2, 6.0)
    assert (both.optimized_cost, both.not_engaged) == (first.optimized_cost, "fell back")
    assert both.with_more(second).attempts == 3
    assert [replace(first, inert=one).with_more(replace(second, inert=True)).inert for one in (True, False)] == [
        True,
        False,
    ]
    blocking, quiet = ({"synchronizing_calls": calls, "graph_launches": calls} for calls in (1.0, 0.0))
    for pair in ((blocking, quiet), (quiet, blocking)):
        one, other = (replace(first, optimized_counters=counted) for counted in pair)
        assert one.with_more(other).optimized_counters == {"synchronizing_calls": 1.0, "graph_launches": 0.0}
    assert replace(first, not_engaged="first").with_more(second).not_engaged == "first"


@pytest.mark.parametrize(("own", "others", "expected"), [(3, (5,), 3), (None, (5, None, 4), 5), (None, (None,), None)])
def test_a_peak_that_a_build_does_not_know_is_the_largest_of_the_others(own, others, expected) -> None:
    side = SimpleNamespace(cost=SideCost(1.0, 1.0, own))
    _fill_peak(side, [SideCost(1.0, 1.0, peak) for peak in others])
    assert side.cost.peak_bytes == expected


def with_proofs(bench: Bench, show: Callable[[Context], str]) -> Case:
    case = bench.case()
    optimization = replace(case.optimization, proofs=(Proof("it learns", show),))
    return replace(case, workload=replace(case.workload, optimizations=(optimization,)), optimization=optimization)


def test_a_proof_is_shown_before_the_times_or_its_problem_is_kept(bench: Bench) -> None:
    answers: list[Any] = [None, ValueError("no digits here"), DisprovedError("below 97 %"), "accuracy 98 %"]

    def show(context: Context) -> str:
        assert bench.told[-1].doing == "proving"
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer and f"{answer} with {context.items} items"

    case = with_proofs(bench, show)
    assert bench.measure(case, prove=False).proofs == ()
    found = [proof for _ in range(2) for proof in bench.measure(case, budget_s=0.1).proofs]
    assert found == [ProofResult("it learns", "accuracy 98 % with 2 items"), ProofResult("it learns", "", "below 97 %")]
    with pytest.raises(SideError, match=r"^fast failed while showing it learns: ValueError: no digits here"):
        bench.measure(case)
    with pytest.raises(
        SideError, match=r"^fast failed while showing it learns: TypeError: show\(\) returned None: ret"
    ):
        bench.measure(case)


def test_rows_that_are_right_are_known_of_any_shape(bench: Bench) -> None:
    def rows(inputs: torch.Tensor) -> torch.Tensor:
        return (10 * product(inputs)).abs().round().to(torch.uint8).reshape(2, 3, 1) + 20

    def half(inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([rows(inputs)[:1], rows(inputs)[1:].neg()])

    found = bench.measure(bench.case(bench.side("fast", 1.0, half), bench.side(BASELINE, 3.0, rows)))
    assert found.step_checks is not None
    assert found.step_checks.resembles == "some rows"


@pytest.mark.parametrize(("whole_run_items", "build_s"), [(600, 0.5), (None, 9.0)])
@pytest.mark.parametrize("proved", [False, True])
def test_start_up_of_a_run_with_an_end_is_that_of_a_warm_process(
    bench: Bench, whole_run_items: int | None, build_s: float, proved: bool
) -> None:
    cold = [9.0]

    def build(context: Context) -> Side:
        bench.now_ms += 1e3 * (cold.pop() if cold else 0.5)
        return bench.side("fast", 1.0, other_kernels)(context)

    def show(context: Context) -> str:
        build(context)
        return "shown"

    case = with_proofs(bench, show)
    optimization = replace(case.optimization, build=build, proofs=case.optimization.proofs if proved else ())
    size = Size(2, 0, 0, whole_run_items=whole_run_items)
    workload = replace(case.workload, sizes={"cpu": size}, optimizations=(optimization,))
    found = bench.measure(Case(workload, optimization, "cpu"))
    assert found.optimized_cost.build_s == pytest.approx(0.5 if proved else build_s)
    assert bench.log.count("build fast") == bench.log.count("close fast") + proved


def test_variables_that_a_side_sets_reach_neither_a_later_case_nor_a_fresh_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUGATE_TEST_REMOVED", "1")
    monkeypatch.setenv("GPUGATE_TEST_CHANGED", "1")
    before = dict(os.environ)

    def setting(context: Context) -> Side:
        os.environ.update(GPUGATE_TEST_CHANGED="2", GPUGATE_TEST_ADDED="2")
        os.environ.pop("GPUGATE_TEST_REMOVED", None)
        raise ValueError("no weights")

    with pytest.raises(SideError, match="no weights"):
        bench.measure(bench.case(setting))
    assert dict(os.environ) == before
