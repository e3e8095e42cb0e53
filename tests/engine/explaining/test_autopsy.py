"""Autopsies: terms that add up, the likely cause of every kind, and what is said of it."""

from dataclasses import replace

import pytest

from gpugate.explaining.autopsy import IN_TURNS, RECORDED, autopsy, explain, optimized_side, recorded_side
from gpugate.explaining.cause import likely_cause
from gpugate.explaining.state import State, account
from gpugate.judging.rules import decide
from gpugate.measurement.record import OTHERS, Difference, Pair, ProofResult, StepChecks, StepProfile, TimedBuild
from gpugate.results.case import Confirmation
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.summary import history
from gpugate.results.verdict import Outcome, Verdict
from gpugate.units import shorten_names
from tests.support import stored_runs
from tests.support.judged_cases import CASE_ID, code

COUNTED = {
    "kernel_launches": 2.0,
    "graph_launches": 1.0,
    "kernels": 10.0,
    "host_to_device_copies": 1.0,
    "device_to_host_copies": 1.0,
    "device_to_device_copies": 0.0,
    "pageable_copies": 0.0,
    "synchronizing_calls": 0.0,
    "grown_bytes": 0.0,
    "enqueue_ms": 0.5,
}
PROFILE = StepProfile(
    kernels={"conv": (4.0, 6.0), "relu": (6.0, 2.0)},
    copies={"Memcpy HtoD": (1.0, 1.5)},
    kernel_ms=8.0,
    copy_ms=0.5,
)
THEN = State(10.0, COUNTED, PROFILE, sm_clock_mhz=1980.0, steps_per_block=2.0, reference_ms=30.0)
ON_A_CPU = replace(THEN, counters={}, sm_clock_mhz=None)


def now(
    step_ms: float = 10.0, profile: StepProfile = PROFILE, counters: dict[str, float] | None = None, **more
) -> State:
    return replace(THEN, step_ms=step_ms, profile=profile, counters={**COUNTED, **(counters or {})}, **more)


def kernels(**ms: float) -> StepProfile:
    parts = {name: (PROFILE.kernels.get(name, (1.0, 0.0))[0], time) for name, time in ms.items()}
    return replace(PROFILE, kernels=parts, kernel_ms=sum(ms.values()))


SLOWER = kernels(conv=9.0, relu=2.0)
SPUN = replace(PROFILE, after={"spin_kernel": (1.0, 4.0)})
WAITED = replace(PROFILE, waits={"cudaDeviceSynchronize": (1.0, 5.0)})
WRONG = {"wrong": "relative L2 0.8, 0.001 is allowed"}


@pytest.mark.parametrize(
    ("state", "terms"),
    [
        (now(13.0, SLOWER), {"kernels": 3.0}),
        (now(9.0, kernels(conv=5.0, relu=2.0)), {"kernels": -1.0}),
        (now(12.0, SPUN), {"kernels": 2.0}),  # shared by the two steps of a block
        (now(11.0, replace(PROFILE, copy_ms=1.5)), {"copies": 1.0}),
        (now(15.0, counters={"synchronizing_calls": 1.0}), {"syncs": 5.0}),
        (now(15.0, counters={"enqueue_ms": 3.5}), {"launch gaps": 3.0, "host": 2.0}),
        (now(12.0, counters={"enqueue_ms": 9.5}), {"launch gaps": 2.0}),  # no more than there is
        (now(12.0), {"host": 2.0}),
        (now(18.0, kernels(conv=12.0, relu=4.0), sm_clock_mhz=990.0), {"clocks": 8.0}),
        (now(18.0, kernels(conv=12.0, relu=4.0), sm_clock_mhz=1760.0), {"clocks": 1.0, "kernels": 7.0}),
        (now(10.0, sm_clock_mhz=990.0), {}),  # of a lower clock that made nothing longer nothing is said
    ],
)
def test_the_terms_of_a_difference_add_up_to_it(state: State, terms: dict[str, float]) -> None:
    found = account(THEN, state)
    assert {name: round(ms, 6) for name, ms in found.items() if abs(ms) > 1e-9} == terms
    assert sum(found.values()) == pytest.approx(state.step_ms - THEN.step_ms)


@pytest.mark.parametrize(("before", "after"), [(None, PROFILE), (PROFILE, None), (None, None)])
def test_without_a_profile_of_both_nothing_is_told_apart(before: StepProfile | None, after: StepProfile | None) -> None:
    then, later = replace(THEN, profile=before), now(12.0, profile=after)
    assert account(then, later) is None
    unknown = "the parts of the difference are unknown: both states need a step profile"
    assert autopsy(then, later, "then").lines[-1] == unknown


CAUSES = [
    (now(resembles="step before", **WRONG), "stale output", "returns the output of the step before"),
    (now(resembles="some rows", **WRONG), "work left out", "only some rows of an output are right"),
    (now(**WRONG), "wrong output", "relative L2 0.8"),
    (now(counters={"grown_bytes": 2e6, "synchronizing_calls": 1.0}), "leak", "keeps 2 MB more"),
    (
        now(counters={"graph_launches": 0.0, "kernel_launches": 12.0}),
        "no graph",
        "1 -> 0 graph launches and 2 -> 12 kernel launches",
    ),
    (
        now(counters={"device_to_host_copies": 2.0, "pageable_copies": 1.0, "synchronizing_calls": 1.0}),
        "copies",
        "more copies: 1 -> 2 device to host copies per step",
    ),
    (now(counters={"pageable_copies": 1.0}, not_engaged="a buffer is pageable"), "pageable copies", "0 -> 1 per step"),
    (now(not_engaged="2 graphs were compiled, not 1"), "not engaged", "did not happen: 2 graphs were compiled, not 1"),
    (
        now(12.0, WAITED, counters={"synchronizing_calls": 1.0}),
        "synchronization",
        "0 -> 1 calls per step, more of them in cudaDeviceSynchronize",
    ),
    (
        now(10.1, kernels(conv=6.0, relu=2.0, mul=0.1), {"kernels": 11.0}),
        "more kernels",
        "10 -> 11 per step, among them mul",
    ),
    (now(12.0, SPUN), "more work after the steps", "after the last step: spin_kernel, +4.00 ms"),
    (now(13.0, SLOWER), "slower kernels", "take longer, most of all conv (+3.00 ms under the profiler): +3.00 ms of"),
    (now(11.0, SLOWER), "slower kernels", "(+3.00 ms under the profiler): +3.00 ms per step, and other parts -2.00 ms"),
    (now(7.0, kernels(conv=3.0, relu=2.0)), "slower kernels", "take less time, most of all conv (-3.00 ms under"),
    (now(18.0, kernels(conv=12.0, relu=4.0), sm_clock_mhz=990.0), "clocks", "1980 -> 990 MHz"),
    (now(12.0, replace(PROFILE, copy_ms=2.5)), "slower copies", "the same copies take longer"),
    (now(12.0, counters={"enqueue_ms": 2.5}), "launch gaps", "0.500 ms -> 2.50 ms"),
    (
        now(13.0, kernels(conv=9.0, relu=2.0, tiny=0.002), {"kernels": 11.0}),
        "slower kernels",
        "; besides, more kernels run: 10 -> 11 per step, among them tiny",
    ),
    (now(13.0, kernels(conv=6.5, relu=2.0), {"synchronizing_calls": 1.0}), "synchronization", "0 -> 1 calls"),
    (now(13.0, profile=None), "not profiled", "(+30 %); the cause is unknown without a step profile of both states"),
    (now(12.0), "host", "takes longer while the device waits"),
    (now(12.0, counters={"kernel_launches": 8.0}), "host", "while the device waits (+2.00 ms of +2.00 ms per step)"),
    (now(reference_ms=20.0), "another reference", "30.00 ms -> 20.00 ms (-33 %)"),
    (now(10.01, counters={"kernels": 8.0, "kernel_launches": 0.0}), "nothing", "a step takes as long as before"),
]


@pytest.mark.parametrize(
    ("state", "kind", "words"), CAUSES, ids=[f"{number} {kind}" for number, (_, kind, _) in enumerate(CAUSES)]
)
def test_the_likely_cause(state: State, kind: str, words: str) -> None:
    found = likely_cause(THEN, state)
    assert (found.kind, words in found.words) == (kind, True), found.words
    assert "\n" not in found.words


def test_new_work_after_the_steps_is_named_also_where_the_host_was_slower_by_as_much() -> None:
    """The differences are those of `slow:20` on an H200, in two-layer-net/pinned-async."""
    then = State(0.15, {**COUNTED, "enqueue_ms": 0.120}, PROFILE, steps_per_block=100.0)
    slowed = replace(then, step_ms=0.2193, counters={**COUNTED, "enqueue_ms": 0.167})
    spun = replace(PROFILE, after={"spin_kernel": (1.0, 3.46)})
    found = likely_cause(then, replace(slowed, profile=spun))
    assert found.kind == "more work after the steps"
    assert found.words.endswith("spin_kernel, +3.46 ms (+0.0346 ms of +0.0693 ms per step)")
    little = replace(PROFILE, after={"spin_kernel": (1.0, 1.6)})
    assert likely_cause(then, replace(slowed, profile=little)).kind == "launch gaps"
    joined = replace(then, profile=replace(PROFILE, after={"spin_kernel": (1.0, 0.5)}))
    longer = replace(PROFILE, after={"spin_kernel": (1.0, 3.9)})
    assert likely_cause(joined, replace(slowed, profile=longer)).kind == "launch gaps"  # of what was there before


def test_the_call_that_waits_more_often_is_named_not_the_one_that_waits_longest() -> None:
    """The counts are those of `sync` on an H200, in resnet18-training/pinned."""
    waits = {"cudaStreamSynchronize": (32.0, 46.0)}
    then = replace(THEN, counters={**COUNTED, "synchronizing_calls": 32.0}, profile=replace(PROFILE, waits=waits))
    synced = replace(PROFILE, waits={**waits, "cudaDeviceSynchronize": (1.0, 2.0)})
    found = likely_cause(then, now(10.0, synced, {"synchronizing_calls": 33.0}))
    assert found.words.endswith("32 -> 33 calls per step, more of them in cudaDeviceSynchronize")


@pytest.mark.parametrize(("added", "named"), [("fill", "fill"), (OTHERS, "short ones")])
def test_the_kernel_that_comes_more_often_is_named_not_one_that_another_was_taken_for(added: str, named: str) -> None:
    """As of `launch` on an H200, in resnet18-training/amp-fp16, where cuDNN took other kernels in another process."""
    parts = {"gemm_a": (16.0, 6.0), "gemm_b": (4.0, 2.0), added: (100.0, 0.4)}
    then = replace(THEN, profile=replace(PROFILE, kernels=parts))
    other = {"gemm_b": (20.0, 8.1), added: (101.0, 0.401)}
    found = likely_cause(
        then, now(10.0, replace(PROFILE, kernels=other, copies={"Memset": (9.0, 1.0)}), {"kernels": 11.0})
    )
    assert found.words == f"more kernels run: 10 -> 11 per step, among them {named}"


def test_on_a_cpu_the_pace_of_the_machine_is_taken_out() -> None:
    slower_machine = ON_A_CPU.in_the_pace_of(replace(ON_A_CPU, step_ms=20.0, reference_ms=60.0))
    assert (slower_machine.step_ms, slower_machine.profile.kernel_ms) == (20.0, 16.0)
    found = autopsy(ON_A_CPU, slower_machine, "then")
    assert found.kind == "nothing"
    assert found.lines[0] == (
        "the machine's pace changed, by the time of the reference: the earlier 10.00 ms are scaled to 20.00 ms"
    )
    assert autopsy(ON_A_CPU, replace(slower_machine, step_ms=24.0), "then").kind == "host"
    assert THEN.in_the_pace_of(now(reference_ms=60.0)) is THEN


@pytest.mark.parametrize("then", [THEN, ON_A_CPU], ids=["GPU", "CPU"])
@pytest.mark.parametrize(
    ("reference_ms", "step_ms", "words"),
    [
        (43.5, 10.0, "one of the reference 30.00 ms -> 43.50 ms (+45 %)"),
        (27.0, 9.8, "-10 %); besides, the host takes less time"),
    ],
)
def test_a_reference_that_moved_alone_is_the_cause_and_no_pace_of_the_machine(
    then: State, reference_ms: float, step_ms: float, words: str
) -> None:
    found = autopsy(then, replace(then, step_ms=step_ms, reference_ms=reference_ms), "then")
    assert (found.kind, words in found.cause) == ("another reference", True), found.cause
    assert "pace" not in " ".join(found.lines)
    assert found.lines[0].startswith(f"a step: 10.00 ms -> {step_ms:.2f} ms")


FAULTS = {"minor_faults": 820.0, "involuntary_switches": 0.2, "other_cores": 1.5}
QUIET = {"minor_faults": 0.5, "involuntary_switches": 0.1, "other_cores": 0.0}


def test_page_faults_and_other_work_stand_beside_a_move_of_their_side() -> None:
    then = replace(ON_A_CPU, counters=QUIET, reference_counters=QUIET)
    assert not then.on_gpu
    slower = autopsy(then, replace(then, step_ms=12.0, counters=FAULTS), "then")
    assert slower.kind == "host"
    assert "per step: minor faults 0.5 -> 820, other cores 0 -> 1.5" in slower.lines
    moved = autopsy(then, replace(then, reference_ms=40.0, reference_counters=FAULTS), "then")
    assert moved.kind == "another reference"
    assert "per step of the reference: minor faults 0.5 -> 820, other cores 0 -> 1.5" in moved.lines
    unknown = autopsy(
        replace(then, reference_counters={}), replace(then, reference_ms=40.0, reference_counters=FAULTS), ""
    )
    assert "per step of the reference: minor faults 820, other cores 1.5" in unknown.lines
    compiled = replace(then, step_ms=12.0, counters={**QUIET, "compiled_graphs": 3.0, "graph_breaks": 2.0})
    assert autopsy(then, compiled, "then").lines[-1] == "torch.compile: compiled graphs 3, graph breaks 2"
    as_before = autopsy(then, replace(then, counters=FAULTS, reference_counters=FAULTS), "then")
    assert not any("faults" in line for line in as_before.lines)


def test_operators_of_a_cpu_take_no_longer_than_its_step() -> None:
    """The profiler makes them longer, and threads that run at once add up."""
    of_a_cpu = replace(ON_A_CPU, profile=replace(PROFILE, copies={}, copy_ms=0.0), reference_ms=None)
    left = replace(of_a_cpu, step_ms=4.0)
    found = autopsy(of_a_cpu, replace(left, reference_ms=10.0), "its reference")
    assert found.cause == "a step takes 60 % less than the reference's; 4.00 ms remain"
    assert "where it went: operators -4.00 ms, host -2.00 ms" in found.lines
    assert replace(left, counters=COUNTED).within_its_step().profile is left.profile


CALLED = StepProfile(kernels={"aten::mm": (2.0, 6.0), "aten::add": (17.0, 2.0)}, kernel_ms=8.0)
STEPS_ON_A_CPU = State(10.0, {"operators": 19.0}, CALLED, reference_ms=30.0)


def called(step_ms: float, operators: float, parts: dict[str, tuple[float, float]]) -> State:
    profile = replace(CALLED, kernels=parts, kernel_ms=sum(ms for _, ms in parts.values()))
    return replace(STEPS_ON_A_CPU, step_ms=step_ms, counters={"operators": operators}, profile=profile)


ADD = {"aten::add": (17.0, 2.0)}
OPERATORS = [
    (
        called(13.8, 22.0, {"aten::mm": (3.0, 7.0), "aten::slice": (1.0, 0.02), "aten::to": (1.0, 0.01), **ADD}),
        "more operators run: 19 -> 22 per step, among them aten::mm (+1), aten::slice (+1), aten::to (+1)",
    ),
    (
        called(13.8, 19.0, {"aten::bmm": (2.0, 9.8), **ADD}),
        "other operators run: 19 per step as before, among them aten::bmm (+2), aten::mm (-2)",
    ),
    (
        called(8.0, 18.0, {"aten::mm": (1.0, 4.0), **ADD}),
        "fewer operators run: 19 -> 18 per step, among them aten::mm (-1)",
    ),
    (
        called(13.8, 18.0, {"aten::mm": (1.0, 9.8), **ADD}),
        "other operators run: 19 -> 18 per step, among them aten::mm (-1)",
    ),
    (  # an operator that is as good as free, beside one whose call takes longer
        called(13.8, 20.0, {"aten::mm": (2.0, 9.7), "aten::view": (1.0, 0.01), **ADD}),
        "more operators run: 19 -> 20 per step, among them aten::view (+1); besides, operators take longer, most of "
        "all aten::mm (+3.70 ms under the profiler): +3.71 ms of +3.80 ms per step",
    ),
]


@pytest.mark.parametrize(("state", "words"), OPERATORS)
def test_operators_whose_number_changed_come_before_all_times(state: State, words: str) -> None:
    found = likely_cause(STEPS_ON_A_CPU, state)
    assert (found.kind, found.words) == ("other operators", words)


@pytest.mark.parametrize(
    ("then", "known"),
    [
        ({"operators": 19.0}, {"operators": 19.0}),
        ({"operators": 3474.25}, {"operators": 3475.5}),  # of a pipeline's own threads
        ({}, {"operators": 19.0}),
    ],
)
def test_the_same_calls_are_said_where_no_call_changed(then: dict[str, float], known: dict[str, float]) -> None:
    before, after = (replace(STEPS_ON_A_CPU, counters=counters) for counters in (then, known))
    found = likely_cause(before, replace(after, step_ms=12.0))
    assert (found.kind, "with the same calls" in found.words) == ("host", then == known)


def test_an_autopsy_says_where_it_went_what_moved_and_what_is_new() -> None:
    long_name = "void at::native::(anonymous namespace)::vectorized_" + "x" * 80
    later = now(13.0, kernels(conv=6.5, **{long_name: 4.5}))
    found = autopsy(THEN, later, "its baseline")
    assert found.sentences == (
        "likely cause, against its baseline: kernels take longer, most of all "
        f"vectorized_{'x' * 46}... (+4.50 ms under the profiler): +3.00 ms of +3.00 ms per step",
        "a step: 10.00 ms -> 13.00 ms (+30 %)",
        "where it went: kernels +3.00 ms",
        "moved most: conv +0.500 ms",
        f"new: vectorized_{'x' * 46}... 4.50 ms",
        "gone: relu 2.00 ms",
    )


def test_the_first_stage_that_takes_longer_is_named_in_the_order_of_the_step() -> None:
    then = replace(THEN, profile=replace(PROFILE, stages={"decode": (1.0, 2.0), "segment": (1.0, 6.0)}))
    stages = {"decode": (1.0, 2.05), "segment": (1.0, 6.5), "encode": (1.0, 3.0)}
    later = autopsy(then, now(13.0, replace(SLOWER, stages=stages)), "then")
    assert "first stage that takes longer: segment +0.500 ms" in later.lines
    assert not any("stage" in line for line in autopsy(THEN, now(13.0, SLOWER), "then").lines)


def test_a_case_is_explained_against_its_baseline_or_else_its_reference() -> None:
    case = stored_runs.case("fast", 2.8)
    against_baseline = explain(case, None)
    assert against_baseline is not None
    assert against_baseline.against == RECORDED
    found = explain(replace(case, remembered=None), None)
    assert found is not None
    assert (found.against, found.lines[0]) == (
        "baseline, which it is compared with",
        "a step: 30.00 ms -> 10.71 ms (-64 %)",
    )
    assert explain(stored_runs.case("skipped", None), None) is None
    slowed, decider = (stored_runs.measured(case.case_id, 3.0, optimized_ms=ms) for ms in (20.0, 10.0))
    several = replace(case, measurement=replace(slowed, reference_slowdown=3.0), attempts=[Confirmation(decider)])
    assert explain(replace(several, remembered=None), None).lines[0] == "a step: 30.00 ms -> 10.00 ms (-67 %)"


def test_a_duet_that_decided_is_explained_in_place_of_the_record() -> None:
    """The first of its processes found +68 %, and all of them +38 %, which the verdict names."""
    case = stored_runs.case("fast", 2.8)
    slower = Reason(ReasonCode.CODE_SLOWER, {"change": 0.38})
    verdict = Verdict("throughput", case.case_id, Outcome.REGRESSED, (slower,))
    duet = code(16.8)
    processes = tuple(replace(one, measured={case.case_id: one.measured[CASE_ID]}) for one in duet.processes)
    found = explain(replace(case, verdicts=[verdict], recorded_code=replace(duet, processes=processes)), None)
    assert found is not None
    assert (found.against, found.lines[0]) == (IN_TURNS, "a step: 12.17 ms -> 16.80 ms (+38 %)")


def test_on_a_cpu_the_change_of_a_step_is_that_of_the_verdict() -> None:
    """The reference, which the verdict weighs by the record's variation, took a fifth less."""
    case, took = stored_runs.case("fast", 2.0), replace(stored_runs.RECORDED, optimized_counters={})
    wall = Verdict("throughput", case.case_id, Outcome.REGRESSED, numbers={"wall_change": 0.38})
    on_a_cpu = replace(case.measurement, optimized_counters={"operators": 19.0})
    slower = replace(case, measurement=on_a_cpu, remembered=took, verdicts=[wall])
    assert explain(slower, None).lines[:2] == (
        "the machine's pace changed, by the time of the reference: the earlier 10.00 ms are scaled to 10.87 ms",
        "a step: 10.87 ms -> 15.00 ms (+38 %)",
    )


def test_the_state_of_a_side_tells_how_its_outputs_are_wrong() -> None:
    def told(**changed: object) -> State | None:
        """The state of a side whose second process, which decides about the time, is right."""
        case = stored_runs.case("fast")
        first = replace(case.measurement, reference_slowdown=3.0, **changed)
        changed_case = replace(case, measurement=first, attempts=[Confirmation(case.measurement)])
        return optimized_side(replace(changed_case, verdicts=decide(changed_case, mode=Mode.GATE)))

    off = Difference(0.25, 0.3, None, "fresh inputs")
    assert told().wrong is None
    assert told(differences=(off,)).wrong == "on fresh inputs, the relative L2 error 2.50e-01 exceeds 1.0e-03"
    other = told(differences=(off,), step_checks=StepChecks(100, 3, 5, "other input"))
    assert other.resembles == "other input"
    assert told(not_engaged="it fell back").not_engaged == "it fell back"
    assert told(differences=()).wrong is None
    proofs = ProofResult("it learns", "98 %"), ProofResult("it keeps up", problem="12 %")
    assert told(proofs=proofs).wrong == "it keeps up: 12 %"


def test_a_recorded_state_has_the_clock_and_the_blocks_of_its_processes() -> None:
    pairs = tuple(Pair(30.0, 10.0, True, clock) for clock in (1900, 1980, None))
    then = history([[TimedBuild(pairs, optimized_steps_per_block=steps) for steps in (3, 5, 5)]] * 5)
    case = stored_runs.case("fast", remembered=replace(stored_runs.RECORDED, current=then))
    found = recorded_side(case, PROFILE)
    assert found is not None
    assert (found.sm_clock_mhz, found.steps_per_block, found.step_ms) == (1940.0, 5.0, 10.0)
    assert recorded_side(replace(case, remembered=None), PROFILE) is None


def test_what_a_faster_side_does_more_often_than_its_reference_is_no_cause() -> None:
    reference = replace(THEN, step_ms=50.0, reference_ms=None)
    more = {"device_to_device_copies": 64.0, "kernels": 20.0, "synchronizing_calls": 3.0}
    found = likely_cause(reference, now(30.0, counters=more))
    assert found.kind == "left to gain"
    assert found.words == "a step takes 40 % less than the reference's; 30.00 ms remain"
    assert likely_cause(reference, now(30.0, counters=more, not_engaged="no graph")).kind != "left to gain"
    assert likely_cause(reference, now(60.0, counters=more)).kind == "copies"
    assert likely_cause(replace(reference, reference_ms=50.0), now(30.0, counters=more)).kind == "copies"


def test_names_that_are_cut_still_differ_where_the_whole_ones_do() -> None:
    tiles = [
        f"sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize{size}_stage3_cudnn"
        for size in (64, 128)
    ]
    first, second, add, again = shorten_names([*tiles, "void at::native::add<(int)4>", tiles[0]])
    assert (first, second) == (
        "sm80_xmma_fprop_impl...nchwkcrs_nchw_tilesize64_stage3_cudnn",
        "sm80_xmma_fprop_impl...chwkcrs_nchw_tilesize128_stage3_cudnn",
    )
    assert add == "add<4>"
    assert again == first


def test_a_layer_that_is_fused_no_more_is_named() -> None:
    """The engine's layers are compared by name; the kernels of both are as many as launches that vary."""
    fused, apart = (replace(PROFILE, layers=layers) for layers in (("conv + relu", "fc"), ("conv", "relu", "fc")))
    then = replace(THEN, profile=fused, counters={**COUNTED, "engine_layers": 2.0})
    found = autopsy(then, now(11.0, apart, {"engine_layers": 3.0, "kernels": 11.0}), "the record")
    assert found.kind == "unfused layers"
    assert found.cause == "the engine has more layers, 2 -> 3: first of all, conv + relu became conv and relu"
    assert "new layers: conv; relu" in found.lines
    assert "layers gone: conv + relu" in found.lines
