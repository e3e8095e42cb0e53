"""The words of every reason code, and the sentence that several of them make."""

import pytest

from gpugate.measurement.record import Resemblance
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.reason_words import describe

SPEEDUP = {"speedup": 2.8, "speedup_low": 2.79, "speedup_high": 2.81}
TIME = {"optimized_ms": 10.9}
ERROR: dict[str, Fact] = {"when": "fresh inputs", "found": 1.1e-3, "allowed": 1e-3}
LIMIT: dict[str, Fact] = {"counter": "kernels", "value": 62.0, "limit": 60.0}
PROBLEM = {"problem": "the copy ran at 60 %"}
PAIRS: dict[str, Fact] = {"pairs": 12, "builds": 3, "attempts": 1, "discarded": 0, "stopped": "narrow"}
PROMISED: dict[str, Fact] = {"bound": "promised", "value": 2.0}
RECORDED: dict[str, Fact] = {"bound": "recorded", "value": 3.0, "allowed": 0.01}
ANCHORED: dict[str, Fact] = {**RECORDED, "bound": "anchored"}
RECORDED_MS: dict[str, Fact] = {"bound": "recorded", "value": 10.0, "allowed": 0.05}
STEPS = {"wrong": 2, "steps": 33, "first_wrong": 5}
MOVED = {
    "reference_then_ms": 30.0,
    "reference_now_ms": 27.0,
    "optimized_then_ms": 10.0,
    "optimized_now_ms": 10.0,
    "processes": 1,
}
OTHER: dict[str, Fact] = {"speedup": 3.0, "speedup_low": 2.99, "speedup_high": 3.01}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
DUET: dict[str, Fact] = {"commit": COMMIT, "change": 0.052, "change_low": 0.046, "change_high": 0.059, "processes": 2}
IN_TURNS = "in turns with the recorded code (0123456789ab), a step takes +5.2 % (+4.6 %..+5.9 %)"
SENTENCES: dict[ReasonCode, tuple[dict[str, Fact], str]] = {
    ReasonCode.NOTHING_MEASURED: ({}, "nothing was measured yet"),
    ReasonCode.NO_OUTPUT_COMPARED: ({}, "no output was compared"),
    ReasonCode.OUTPUTS_AGREE: (
        {"allowed": 1e-3, "relative_l2": 2e-6, "compared_outputs": 5.0},
        "relative L2 error 2.0e-06 of at most 1.0e-03 over 5 outputs",
    ),
    ReasonCode.VALUES_EQUAL: ({"unequal": 0, "values": 4096}, "0 of 4,096 integers did not match"),
    ReasonCode.VALUES_UNEQUAL: (
        {"when": "hidden[1] of fresh inputs", "unequal": 1, "values": 64},
        "on hidden[1] of fresh inputs, 1 of 64 integers did not match",
    ),
    ReasonCode.SAME_NOT_FINITE: (
        {"values": 37504},
        "37,504 values are infinite or NaN, at the same places in both outputs",
    ),
    ReasonCode.STEPS_AGREE: ({"steps": 33}, "the sums of 33 further steps agree"),
    ReasonCode.PROVEN: ({"proof": "it learns", "words": "98 % right"}, "it learns: 98 % right"),
    ReasonCode.PROVEN_BEFORE: (
        {"proof": "it learns", "words": "98 % right", "proved_on": "2026-11-23"},
        "it learns: 98 % right (proved on 2026-11-23)",
    ),
    ReasonCode.OUTPUT_NOT_COMPARABLE: (
        {"when": "fresh inputs", "problem": "it returned NaN"},
        "on fresh inputs, it returned NaN",
    ),
    ReasonCode.RELATIVE_ERROR_TOO_LARGE: (ERROR, "on fresh inputs, the relative L2 error 1.10e-03 exceeds 1.0e-03"),
    ReasonCode.LARGEST_ERROR_TOO_LARGE: (ERROR, "on fresh inputs, the largest error 1.10e-03 exceeds 1.0e-03"),
    ReasonCode.TOP1_AGREEMENT_TOO_LOW: (
        {"when": "fresh inputs", "found": 0.98, "allowed": 0.99},
        "on fresh inputs, the top-1 agreement 0.980 is below 0.99",
    ),
    ReasonCode.STEPS_WRONG: (
        {**STEPS, "problem": "it returned a list"},
        "2 of 33 steps are wrong, the first is step 5: it returned a list",
    ),
    ReasonCode.STEPS_LEFT_OUT: (
        {"share": 0.12},
        "a step in a block does 12 % of the work of a step by itself: the side leaves steps out",
    ),
    ReasonCode.OUTPUTS_REMEMBERED: (
        {"times": 5.21},
        "a step takes 5.21 times as long on a new input as on a timed one: the side has the outputs of known inputs in "
        "store",
    ),
    ReasonCode.REFERENCE_SLOWED: (
        {"times": 3.25},
        "no result: the reference takes 3.25 times as long beside the optimized side as before that was built",
    ),
    ReasonCode.DISPROVED: ({"proof": "it learns", "problem": "12 % right"}, "it learns: 12 % right"),
    ReasonCode.DISTURBED: (
        {"disturbed": 1, "processes": 3},
        "1 of 3 processes were disturbed: their interval is much wider, or their reference much slower, than recorded",
    ),
    ReasonCode.ALL_DISTURBED: (
        {"optimized_then": 10.0, "optimized_now": 11.0, "reference_then": 30.0, "reference_now": 36.0},
        "no evidence: every process was disturbed, and the optimized side takes 11.00 ms instead of 10.00 ms, which "
        "the reference, at 36.00 ms instead of 30.00 ms, may hide",
    ),
    ReasonCode.OTHER_CONDITIONS: (
        {"change": "launch latency 6.5 us -> 10 us"},
        "only the record shows slower code, and the conditions are not as recorded (launch latency 6.5 us -> 10 us)",
    ),
    ReasonCode.NO_RECORD: ({}, "nothing is recorded for this machine yet"),
    ReasonCode.NOT_RECORDED_YET: ({}, "not recorded yet"),
    ReasonCode.INTERVAL_TOO_WIDE: (
        {"half_width": 0.1523, "widest": 0.15},
        "the interval of the speedup, +-15.2 %, is wider than +-15 %",
    ),
    ReasonCode.TOO_FEW_PROCESSES: (
        {"processes": 3, "needed": 5},
        "a baseline of 3 processes, where a gate needs 5",
    ),
    ReasonCode.RECORD_VARIES: (
        {"recorded": 0.13, "anchored": 0.17},
        "the processes of the recorded and the anchored speedup vary by 13 and 17 %, too much to bound anything: "
        "record more, or on a quieter machine",
    ),
    ReasonCode.BOUNDS_NOTHING: ({}, "a tolerance as large as this bounds nothing"),
    ReasonCode.MACHINE_CHANGED: ({}, "both sides are slower alike: the machine changed, or what both sides share"),
    ReasonCode.CODE_SLOWER: (DUET, f"the code is slower: {IN_TURNS}"),
    ReasonCode.CODE_NOT_SLOWER: (
        {**DUET, "changed": "driver 580.1 -> 590.2"},
        f"the code is not slower: {IN_TURNS}; the machine or its software changed: driver 580.1 -> 590.2",
    ),
    ReasonCode.CODE_UNCHANGED: (
        {"commit": COMMIT, "changed": "another host"},
        "the code is that of the record (0123456789ab): the machine or its software changed: another host",
    ),
    ReasonCode.CODE_AS_FAST: (DUET, f"the code is not slower: {IN_TURNS}"),
    ReasonCode.CODE_AS_RECORDED: ({"commit": COMMIT}, "the code is that of the record (0123456789ab)"),
    ReasonCode.CODE_UNDECIDED: (DUET, f"{IN_TURNS}, which decides nothing"),
    ReasonCode.NO_DUET: (PROBLEM, "not compared with the recorded code: the copy ran at 60 %"),
    ReasonCode.OTHER_CORES: (
        {"recorded_cores": 2, "cores": 1},
        "the record was measured on 2 of the CPU's cores and this run on 1: their times cannot be compared",
    ),
    ReasonCode.RANKS_SHARE_CORES: ({}, "the ranks share the cores of one CPU: their times are no evidence about GPUs"),
    ReasonCode.NO_PAIRS: ({}, "no pair of blocks was measured"),
    ReasonCode.NOT_TIMED: (PROBLEM, "not timed: the copy ran at 60 %"),
    ReasonCode.IMPOSSIBLE_RATE: (
        {"side": "the reference", "yardstick": "matmul_bf16_tflops", "ceiling": 800.0, "times_ceiling": 2.0},
        "no result: the reference would reach 1.6e+03 TFLOP/s, 200 % of matmul bf16 800 TFLOP/s, the most that this "
        "machine reached",
    ),
    ReasonCode.IMPOSSIBLE_BUS_RATE: (
        {"times_ceiling": 1.3},
        "no result: the optimized side would carry 130 % of what page-locked copies carry over the bus",
    ),
    ReasonCode.SIDES_MOVED: (
        {**MOVED},
        "optimized 10.00 ms -> 10.00 ms, reference 30.00 ms -> 27.00 ms: mostly the reference moved",
    ),
    ReasonCode.REFERENCE_TIME: ({"then": 30.0, "now": 32.0}, "the reference took 30.00 ms and takes 32.00 ms"),
    ReasonCode.RECORD_DIFFERS: (
        {"differences": "the workload's source changed"},
        "since the record: the workload's source changed",
    ),
    ReasonCode.TOLERANCE_WIDENED: (
        {"differences": "torch 2.10 -> 2.11"},
        "the tolerance is wider, since the record: torch 2.10 -> 2.11",
    ),
    ReasonCode.PAIRS: ({**PAIRS}, "12 pairs over 3 fresh builds of this process, until the interval was narrow"),
    ReasonCode.COUNTED: (
        {"kernel_launches": 3.0, "graph_launches": 1.0, "kernels": 62.0},
        "3 launches, 1 graph launches, 62 kernels",
    ),
    ReasonCode.COUNTED_IN_PART: (
        {"problem": "counted on CUDA only"},
        "engaged by its own account; not measured: counted on CUDA only",
    ),
    ReasonCode.NOT_ENGAGED: ({"problem": "2 graph breaks"}, "2 graph breaks"),
    ReasonCode.NO_KERNEL_SEEN: ({}, "the side runs no kernel, the reference does, and nothing declares why"),
    ReasonCode.FEW_OPERATORS_SEEN: (
        {"share": 0.02, "reference_share": 0.9},
        "PyTorch's operators take 2 % of the optimized step and 90 % of the reference's, and nothing declares why",
    ),
    ReasonCode.CONTRACT_NOT_CHECKED: (
        {"problem": "counted on CUDA only"},
        "the contract was not checked: counted on CUDA only",
    ),
    ReasonCode.NOT_COUNTED: ({"problem": "it returned NaN"}, "not counted: it returned NaN"),
    ReasonCode.COUNTER_NOT_MEASURED: ({"counter": "memsets"}, "memsets was not measured"),
    ReasonCode.COUNTER_BELOW_LIMIT: (LIMIT, "kernels 62 is below 60"),
    ReasonCode.COUNTER_ABOVE_LIMIT: (LIMIT, "kernels 62 is above 60"),
    ReasonCode.COUNTER_BELOW_SHARE_OF_REFERENCE: (
        {**LIMIT, "share": 2.0},
        "kernels 62 is below 60, 2 of the reference's",
    ),
    ReasonCode.COUNTER_ABOVE_SHARE_OF_REFERENCE: (
        {**LIMIT, "share": 0.3},
        "kernels 62 is above 60, 0.3 of the reference's",
    ),
    ReasonCode.COUNTER_ABOVE_RECORD: (
        {"counter": "kernels", "value": 58.0, "recorded": 57.0},
        "kernels 57 -> 58 per step, more than recorded",
    ),
    ReasonCode.MEMORY_GROWS: ({"bytes": 2.0**20}, "every step leaves 1,048,576 bytes more device memory allocated"),
    ReasonCode.IN_SOME_PROCESSES: ({"found": 2, "processes": 3}, "found in 2 of 3 processes"),
    ReasonCode.TOO_FEW_POINTS: ({"problem": "needs a GPU"}, "too few points: needs a GPU"),
    ReasonCode.KNEE_NOT_RECORDED: ({"knee": 16.0}, "the knee is at 16; nothing is recorded to compare it with"),
    ReasonCode.KNEE_AS_RECORDED: ({"knee": 16.0}, "the knee is at 16, as recorded"),
    ReasonCode.KNEE_MOVED: ({"knee": 32.0, "recorded_knee": 16.0}, "the knee is at 32, recorded at 16"),
    ReasonCode.THROUGHPUT_CURVE: (
        {"8": 0.55, "16": 1.0, "32": "none"},
        "of the best throughput, 55 % at 8, 100 % at 16, none at 32",
    ),
    ReasonCode.MACHINE_UNFIT: (PROBLEM, "no evidence on this machine state: the copy ran at 60 %"),
    ReasonCode.DEVICE_LOST: ({"problem": "it stopped answering"}, "it stopped answering"),
    ReasonCode.OTHER_WORK: ({"cores": 1.42}, "other processes kept 1.4 CPU cores busy meanwhile"),
    ReasonCode.NOT_CONFIRMED: (PROBLEM, "a fresh process could not confirm it (the copy ran at 60 %)"),
    ReasonCode.BEING_RECORDED: ({}, "measured for the baseline that is recorded"),
}
BOUNDS: dict[ReasonCode, str] = {
    ReasonCode.BOUND_HELD: "2.80x (2.79..2.81) holds the recorded 3.00x -1 %",
    ReasonCode.FASTER_THAN_RECORD: "2.80x (2.79..2.81) beats the recorded 3.00x +1 %",
    ReasonCode.SPEEDUP_BELOW_PROMISE: "2.80x (2.79..2.81) is below the recorded 3.00x -1 %",
    ReasonCode.SPEEDUP_BELOW_RECORD: "2.80x (2.79..2.81) is below the recorded 3.00x -1 %",
    ReasonCode.SPEEDUP_BELOW_ANCHOR: "2.80x (2.79..2.81) is below the recorded 3.00x -1 %",
    ReasonCode.UNDECIDED: "2.80x (2.79..2.81) is not clearly on either side of the recorded 3.00x -1 %",
    ReasonCode.GAIN_OF_A_SLOWER_REFERENCE: (
        "2.80x (2.79..2.81) is only by a slower reference above the recorded 3.00x +1 %"
    ),
}
OF_SEVERAL = {
    ReasonCode.FRESH_PROCESS,
    ReasonCode.PROCESSES_DISAGREE,
    ReasonCode.SLOWER_THAN_RECORD,
    ReasonCode.DID_NOTHING,
}


# Of the rules beside today's, which get their sentences when they take over.
BESIDE = set(list(ReasonCode)[list(ReasonCode).index(ReasonCode.EARLIER_RULE) :])


def test_every_code_has_words() -> None:
    assert SENTENCES.keys() | BOUNDS.keys() | OF_SEVERAL | BESIDE == set(ReasonCode)


@pytest.mark.parametrize("code", SENTENCES)
def test_a_code_and_its_facts_make_a_sentence(code: ReasonCode) -> None:
    facts, words = SENTENCES[code]
    stored = {name: fact if isinstance(fact, str) else float(fact) for name, fact in facts.items()}
    assert describe("counters", (Reason(code, stored),), {}) == words


@pytest.mark.parametrize("code", BOUNDS)
def test_a_bound_is_named_after_the_speedup(code: ReasonCode) -> None:
    assert describe("speedup", (Reason(code, RECORDED),), SPEEDUP) == BOUNDS[code]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ReasonCode.BOUND_HELD, "10.90 ms per step holds the recorded 10.00 ms +5 %"),
        (ReasonCode.FASTER_THAN_RECORD, "10.90 ms per step beats the recorded 10.00 ms -5 %"),
        (ReasonCode.SLOWER_THAN_RECORD, "10.90 ms per step exceeds the recorded 10.00 ms +5 %"),
    ],
)
def test_a_bound_is_named_after_the_time(code: ReasonCode, words: str) -> None:
    assert describe("throughput", (Reason(code, RECORDED_MS),), TIME) == words


def test_a_record_that_bounds_nothing_is_not_said_to_be_held() -> None:
    wide = Reason(ReasonCode.BOUND_HELD, {**RECORDED_MS, "allowed": 1.03})
    assert describe("throughput", (wide, Reason(ReasonCode.BOUNDS_NOTHING)), TIME) == (
        "10.90 ms per step is not bounded by the recorded 10.00 ms +103 %; a tolerance as large as this bounds nothing"
    )


def test_bounds_that_the_speedup_is_below_share_one_part_and_circumstances_follow() -> None:
    below = (
        Reason(ReasonCode.SPEEDUP_BELOW_RECORD, RECORDED),
        Reason(ReasonCode.SPEEDUP_BELOW_ANCHOR, ANCHORED),
        Reason(ReasonCode.PAIRS, PAIRS),
    )
    assert describe("speedup", below, SPEEDUP) == (
        "2.80x (2.79..2.81) is below the recorded 3.00x -1 % and the anchored 3.00x -1 %; "
        "12 pairs over 3 fresh builds of this process, until the interval was narrow"
    )


@pytest.mark.parametrize(
    ("code", "others", "words"),
    [
        (ReasonCode.BOUND_HELD, 1, "2.80x (2.79..2.81), in a fresh process 3.00x: both hold the promised 2.00x"),
        (
            ReasonCode.BOUND_HELD,
            2,
            "2.80x (2.79..2.81), in fresh processes 3.00x and 3.00x: the middle one of 3 holds the promised 2.00x",
        ),
        (
            ReasonCode.BOUND_HELD,
            3,
            "2.80x (2.79..2.81), in fresh processes 3.00x and 3.00x and 3.00x: the middle two of 4 hold the promised "
            "2.00x",
        ),
        (
            ReasonCode.PROCESSES_DISAGREE,
            1,
            "2.80x (2.79..2.81), in a fresh process 3.00x (2.99..3.01): they disagree about the promised 2.00x",
        ),
    ],
)
def test_of_several_processes_the_one_that_decided_is_named(code: ReasonCode, others: int, words: str) -> None:
    fresh = Reason(ReasonCode.FRESH_PROCESS, OTHER)
    assert describe("speedup", (Reason(code, PROMISED), *[fresh] * others), SPEEDUP) == words


def test_times_of_several_processes_are_listed() -> None:
    reasons = (
        Reason(ReasonCode.PROCESSES_DISAGREE, RECORDED_MS),
        Reason(ReasonCode.FRESH_PROCESS, {"optimized_ms": 10.1}),
    )
    assert describe("throughput", reasons, TIME) == (
        "10.90 ms per step, in a fresh process 10.10 ms: they disagree about the recorded 10.00 ms +5 %"
    )


def test_the_sides_of_several_processes_are_those_of_the_one_that_decided() -> None:
    moved = Reason(ReasonCode.SIDES_MOVED, {**MOVED, "processes": 3})
    assert describe("speedup", (moved,), {}).startswith("in the process that decided, optimized 10.00 ms")


def test_a_side_that_did_nothing_is_named_after_its_speedup() -> None:
    assert describe("speedup", (Reason(ReasonCode.DID_NOTHING),), SPEEDUP) == (
        "2.80x (2.79..2.81) with the same kernels and bitwise the same outputs as the reference: it did nothing"
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"builds": 1, "stopped": "noise"},
            "12 pairs over 1 fresh build of this process, until the noise stopped changing",
        ),
        (
            {"attempts": 2, "discarded": 2, "stopped": "budget"},
            "12 pairs over 3 fresh builds of this process, extended once, 2 discarded as throttled, until the budget "
            "was spent",
        ),
        (
            {"attempts": 4},
            "12 pairs over 3 fresh builds of this process, extended 3 times, until the interval was narrow",
        ),
    ],
)
def test_the_pairs_that_a_speedup_rests_on(changed: dict[str, Fact], words: str) -> None:
    assert describe("speedup", (Reason(ReasonCode.PAIRS, {**PAIRS, **changed}),), {}) == words


@pytest.mark.parametrize("resembles", [one for one in Resemblance.__args__ if one])
def test_a_wrong_step_is_named_by_what_its_output_resembles(resembles: str) -> None:
    words = describe("equivalence", (Reason(ReasonCode.STEPS_WRONG, {**STEPS, "resembles": resembles}),), {})
    assert words.startswith("2 of 33 steps are wrong, the first is step 5: it returned ")
