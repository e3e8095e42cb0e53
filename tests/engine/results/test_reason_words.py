"""The words of every reason code, and the sentence that several of them make."""

from typing import get_args

import pytest

from gpugate.measurement.record import Resemblance
from gpugate.results.reason import Fact, Reason, ReasonCode
from gpugate.results.reason_words import describe
from gpugate.results.verdict import NextStep

SPEEDUP = {"speedup": 2.8, "speedup_low": 2.79, "speedup_high": 2.81}
TIME = {"optimized_ms": 10.9}
NUMBERS = {**SPEEDUP, **TIME, "relative_l2": 2e-6, "compared_outputs": 5.0}
ERROR: dict[str, Fact] = {"when": "fresh inputs", "found": 1.1e-3, "limit": 1e-3}
PROBLEM: dict[str, Fact] = {"problem": "the copy ran at 60 %"}
PAIRS: dict[str, Fact] = {"pairs": 12, "builds": 3, "attempts": 1, "discarded": 0, "stopped": "narrow"}
STEPS: dict[str, Fact] = {"wrong": 2, "steps": 33, "first_wrong": 5}
WALL: dict[str, Fact] = {"change": 0.118, "allowed": 0.021, "processes": 1}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
DUET: dict[str, Fact] = {"commit": COMMIT, "change": 0.052, "change_low": 0.046, "change_high": 0.059, "processes": 2}
IN_TURNS = "in turns with the recorded code (0123456789ab), a step takes +5.2 % (+4.6 %..+5.9 %)"
BEYOND = "10.90 ms per step, wall +11.8 % against the record, +2.1 % tolerated"
GREW: dict[str, Fact] = {"item": "kernel_ms", "then": 1.0, "now": 1.052}
SENTENCES: list[tuple[ReasonCode, dict[str, Fact], str]] = [
    (
        ReasonCode.EARLIER_RULE,
        {},
        "an earlier gpugate decided this by other rules: gpugate replay decides it again",
    ),
    (ReasonCode.NOTHING_MEASURED, {}, "nothing was compared"),
    (ReasonCode.NOTHING_MEASURED, {"problem": "no pairs"}, "not measured: no pairs"),
    (ReasonCode.MACHINE_UNFIT, PROBLEM, "no evidence on this machine state: the copy ran at 60 %"),
    (ReasonCode.OTHER_WORK, {"cores": 1.42}, "other processes kept 1.4 CPU cores busy meanwhile"),
    (ReasonCode.NOT_CONFIRMED, PROBLEM, "a fresh process could not confirm it (the copy ran at 60 %)"),
    (ReasonCode.IN_SOME_PROCESSES, {"found": 2, "processes": 3}, "found in 2 of 3 processes"),
    (ReasonCode.OUTPUTS_AGREE, {"allowed": 1e-3}, "relative L2 error 2.0e-06 of at most 1.0e-03 over 5 outputs"),
    (ReasonCode.OUTPUTS_AGREE, {"unequal": 0, "values": 4096}, "0 of 4,096 integers did not match"),
    (
        ReasonCode.OUTPUTS_AGREE,
        {"not_finite": 37504},
        "37,504 values are infinite or NaN, at the same places in both outputs",
    ),
    (ReasonCode.OUTPUTS_AGREE, {"steps": 33}, "the sums of 33 further steps agree"),
    (ReasonCode.PROVEN, {"proof": "it learns", "words": "98 % right"}, "it learns: 98 % right"),
    (
        ReasonCode.PROVEN,
        {"proof": "it learns", "words": "98 % right", "proved_on": "2026-11-23"},
        "it learns: 98 % right (proved on 2026-11-23)",
    ),
    (
        ReasonCode.OUTPUTS_DIFFER,
        {"when": "fresh inputs", "problem": "it returned NaN"},
        "on fresh inputs, it returned NaN",
    ),
    (
        ReasonCode.OUTPUTS_DIFFER,
        {"when": "hidden[1] of fresh inputs", "unequal": 1, "values": 64},
        "on hidden[1] of fresh inputs, 1 of 64 integers did not match",
    ),
    (
        ReasonCode.OUTPUTS_DIFFER,
        {**ERROR, "measure": "relative_l2"},
        "on fresh inputs, the relative L2 error 1.10e-03 exceeds 1.0e-03",
    ),
    (
        ReasonCode.OUTPUTS_DIFFER,
        {**ERROR, "measure": "max_error"},
        "on fresh inputs, the largest error 1.10e-03 exceeds 1.0e-03",
    ),
    (
        ReasonCode.OUTPUTS_DIFFER,
        {"when": "fresh inputs", "measure": "top1_agreement", "found": 0.98, "limit": 0.99},
        "on fresh inputs, the top-1 agreement 0.980 is below 0.99",
    ),
    (
        ReasonCode.STEPS_WRONG,
        {**STEPS, "problem": "it returned a list"},
        "2 of 33 steps are wrong, the first is step 5: it returned a list",
    ),
    (
        ReasonCode.STEPS_LEFT_OUT,
        {"share": 0.12},
        "a step in a block does 12 % of the work of a step by itself: the side leaves steps out",
    ),
    (
        ReasonCode.OUTPUTS_REMEMBERED,
        {"times": 5.21},
        "a step takes 5.21 times as long on a new input: the side has the outputs of known inputs in store",
    ),
    (ReasonCode.DISPROVED, {"proof": "it learns", "problem": "12 % right"}, "it learns: 12 % right"),
    (
        ReasonCode.RANKS_SHARE_CORES,
        {},
        "the ranks share the cores of one CPU: their times are no evidence about GPUs",
    ),
    (
        ReasonCode.IMPOSSIBLE_RATE,
        {"side": "the reference", "yardstick": "matmul_bf16_tflops", "ceiling": 400.0, "times_ceiling": 2.0},
        "no result: the reference would reach 800 TFLOP/s, 200 % of matmul bf16 400 TFLOP/s",
    ),
    (
        ReasonCode.IMPOSSIBLE_RATE,
        {"times_ceiling": 1.3},
        "no result: the optimized side would carry 130 % of what page-locked copies carry over the bus",
    ),
    (
        ReasonCode.REFERENCE_SLOWED,
        {"times": 3.25},
        "no result: the reference takes 3.25 times as long beside the optimized side as before that was built",
    ),
    (ReasonCode.PROMISE_KEPT, {"value": 2.0, "processes": 1}, "2.80x (2.79..2.81) holds the promised 2.00x"),
    (ReasonCode.PROMISE_KEPT, {}, "2.80x (2.79..2.81); nothing is promised for this kind of device"),
    (
        ReasonCode.SPEEDUP_BELOW_PROMISE,
        {"value": 3.0, "allowed": 0.01},
        "2.80x (2.79..2.81) is below the promised 3.00x -1 %",
    ),
    (ReasonCode.PROMISE_OPEN, {"value": 2.8}, "2.80x (2.79..2.81) is not clearly on either side of the promised 2.80x"),
    (
        ReasonCode.INTERVAL_TOO_WIDE,
        {"half_width": 0.1523, "widest": 0.15},
        "the interval of the speedup, +-15.2 %, is wider than +-15 %",
    ),
    (
        ReasonCode.DID_NOTHING,
        {},
        "the side did nothing: it has the reference's kernels, its outputs to the bit, and its speed",
    ),
    (ReasonCode.FRESH_PROCESS, SPEEDUP, ""),
    (
        ReasonCode.PAIRS,
        PAIRS,
        "12 pairs over 3 fresh builds of this process, until the interval was narrow",
    ),
    (
        ReasonCode.PAIRS,
        {**PAIRS, "builds": 1, "attempts": 2, "discarded": 4, "stopped": "budget"},
        "12 pairs over 1 fresh build of this process, extended once, 4 discarded as throttled, until the budget was "
        "spent",
    ),
    (
        ReasonCode.COUNTED,
        {"kernel_launches": 1, "graph_launches": 0, "kernels": 57},
        "1 launches, 0 graph launches, 57 kernels",
    ),
    (ReasonCode.COUNTED, PROBLEM, "engaged by its own account; not measured: the copy ran at 60 %"),
    (ReasonCode.NOT_ENGAGED, PROBLEM, "the copy ran at 60 %"),
    (ReasonCode.WORK_NOT_SEEN, {}, "the side runs no kernel, the reference does, and nothing declares why"),
    (
        ReasonCode.WORK_NOT_SEEN,
        {"share": 0.012, "reference_share": 0.83},
        "PyTorch's operators take 1.2 % of the optimized step and 83 % of the reference's, and nothing declares why",
    ),
    (ReasonCode.LIMIT_BROKEN, {"counter": "kernels"}, "kernels was not measured"),
    (
        ReasonCode.LIMIT_BROKEN,
        {"counter": "kernels", "value": 62.0, "side": "above", "limit": 60.0},
        "kernels 62 is above 60",
    ),
    (
        ReasonCode.LIMIT_BROKEN,
        {"counter": "kernels", "value": 20.0, "side": "below", "limit": 30.0, "share": 0.5},
        "kernels 20 is below 30, 0.5 of the reference's",
    ),
    (
        ReasonCode.ITEM_GREW,
        {**GREW, "kernel": "sm90_xmma_fprop", "kernel_then": 0.41, "kernel_now": 0.46},
        "GPU work +5.2 %: `sm90_xmma_fprop` 0.410 ms -> 0.460 ms per step",
    ),
    (
        ReasonCode.ITEM_GREW,
        {**GREW, "kernel": "x" * 160, "kernel_then": 0.0, "kernel_now": 0.46},
        f"GPU work +5.2 %: the record lacks `{'x' * 37}...` of 0.460 ms per step",
    ),
    (
        ReasonCode.ITEM_GREW,
        {"item": "kernel_ms", "then": 1.0, "now": 1.1},
        "GPU work +10.0 %: 1.00 ms -> 1.10 ms per step",
    ),
    (
        ReasonCode.ITEM_GREW,
        {"item": "elementwise", "then": 1.0, "now": 1.1, "kernel": "elementwise"},
        "kernel `elementwise` +10.0 %: 1.00 ms -> 1.10 ms per step",
    ),
    (
        ReasonCode.ITEM_GREW,
        {"item": "cpu_ms", "then": 4.0, "now": 4.4},
        "CPU time +10.0 %: 4.00 ms -> 4.40 ms per step",
    ),
    (ReasonCode.ITEM_GREW, {"item": "peak_bytes", "then": 4e9, "now": 5e9}, "peak memory +25.0 %: 4000 MB -> 5000 MB"),
    (
        ReasonCode.ITEM_GREW,
        {"item": "graph_launches", "then": 1, "now": 2},
        "graph_launches 1 -> 2 per step, more than recorded",
    ),
    (
        ReasonCode.ITEM_GREW,
        {"item": "grown_bytes", "then": 0, "now": 2**20},
        "every step leaves 1,048,576 bytes more device memory allocated",
    ),
    (
        ReasonCode.BOTH_SIDES_GREW,
        {"item": "kernel_ms", "then": 1.0, "now": 1.04},
        "GPU work +4.0 %, and the reference's alike: the card, its clock, or what both sides share",
    ),
    (ReasonCode.NO_BILL, {}, "the record has no bill"),
    (ReasonCode.NO_RECORD, {"purpose": "gate"}, "nothing is recorded for this machine yet"),
    (ReasonCode.NO_RECORD, {"purpose": "developer"}, "not recorded yet"),
    (ReasonCode.NO_RECORD, {"purpose": "recording"}, "measured for the baseline that is recorded"),
    (ReasonCode.TOO_FEW_PROCESSES, {"processes": 3, "needed": 5}, "the record is of 3 processes, and a gate needs 5"),
    (
        ReasonCode.OTHER_CORES,
        {"recorded_cores": 8, "cores": 4},
        "the record is of 8 cores of this CPU and this run of 4, so no times are compared",
    ),
    (
        ReasonCode.SLOW_HOST,
        {"times": 1.49},
        "slow host: launches take 1.5 times the recorded time, so that a longer wall time proves nothing",
    ),
    (ReasonCode.WALL_AS_RECORDED, {**WALL, "change": 0.012}, BEYOND.replace("+11.8", "+1.2")),
    (
        ReasonCode.FASTER_THAN_RECORD,
        {**WALL, "change": -0.118},
        f"faster than recorded: {BEYOND.replace('+11', '-11')}",
    ),
    (ReasonCode.SLOWER_THAN_RECORD, WALL, f"slower than recorded: {BEYOND}"),
    (
        ReasonCode.SLOWER_THAN_RECORD,
        {**WALL, "processes": 3},
        f"slower than recorded: {BEYOND}, in the middle one of 3 processes",
    ),
    (
        ReasonCode.WALL_OPEN,
        {**WALL, "processes": 2},
        f"perhaps slower than recorded: {BEYOND}, in the slower one of 2 processes",
    ),
    (
        ReasonCode.THE_MACHINE,
        {**WALL, "change": 0.38, "bill": "unchanged", "code": "not slower"},
        "wall +38.0 %, bill unchanged, not slower than the recorded code: the machine",
    ),
    (
        ReasonCode.THE_MACHINE,
        {**WALL, "change": 0.38, "bill": "not recorded", "code": "unchanged"},
        "wall +38.0 %, no bill recorded, the recorded code itself: the machine",
    ),
    (
        ReasonCode.THE_MACHINE,
        {**WALL, "change": -0.1, "bill": "unchanged"},
        "wall -10.0 %, bill unchanged: the machine",
    ),
    (ReasonCode.CODE_SLOWER, DUET, f"the code is slower: {IN_TURNS}"),
    (ReasonCode.CODE_NOT_SLOWER, DUET, f"the code is not slower: {IN_TURNS}"),
    (ReasonCode.CODE_NOT_SLOWER, {"commit": COMMIT}, "the code is that of the record (0123456789ab)"),
    (ReasonCode.CODE_UNDECIDED, DUET, f"{IN_TURNS}, which decides nothing"),
    (ReasonCode.CODE_UNDECIDED, PROBLEM, "not compared with the recorded code: the copy ran at 60 %"),
    (ReasonCode.RECORD_DIFFERS, {"differences": "driver 1 -> 2"}, "since the record: driver 1 -> 2"),
    (ReasonCode.KNEE, {"knee": 8.0}, "the knee is at 8; nothing is recorded to compare it with"),
    (ReasonCode.KNEE, {"knee": 8.0, "recorded_knee": 8.0}, "the knee is at 8, as recorded"),
    (ReasonCode.KNEE, {"knee": 8.0, "recorded_knee": 32.0}, "the knee is at 8, recorded at 32"),
    (ReasonCode.THROUGHPUT_CURVE, {"8": 0.99, "16": "none"}, "of the best throughput, 99 % at 8, none at 16"),
]


def test_every_code_has_words() -> None:
    assert {code for code, _, _ in SENTENCES} == set(ReasonCode)


@pytest.mark.parametrize(("code", "facts", "words"), SENTENCES)
def test_a_code_and_its_facts_make_a_sentence(code: ReasonCode, facts: dict[str, Fact], words: str) -> None:
    stored = {name: fact if isinstance(fact, str) else float(fact) for name, fact in facts.items()}
    numbers = {} if code is ReasonCode.THROUGHPUT_CURVE else NUMBERS
    assert describe("counters", (Reason(code, stored),), numbers) == words
    assert len(words.split()) <= 25


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ((3.0,), "2.80x (2.79..2.81), in fresh processes 3.00x: both hold the promised 2.00x"),
        (
            (3.0, 3.1),
            "2.80x (2.79..2.81), in fresh processes 3.00x and 3.10x: the middle one of 3 holds the promised 2.00x",
        ),
    ],
)
def test_a_promise_names_the_values_of_all_processes(others: tuple[float, ...], words: str) -> None:
    fresh = [Reason(ReasonCode.FRESH_PROCESS, {"speedup": one}) for one in others]
    assert describe("speedup", (Reason(ReasonCode.PROMISE_KEPT, {"value": 2.0}), *fresh), NUMBERS) == words


@pytest.mark.parametrize("resembles", [one for one in get_args(Resemblance) if one])
def test_every_kind_of_wrong_output_has_words(resembles: str) -> None:
    found = describe("equivalence", (Reason(ReasonCode.STEPS_WRONG, {**STEPS, "resembles": resembles}),), {})
    assert found.startswith("2 of 33 steps are wrong, the first is step 5: it returned ")
    assert not found.endswith("returned ")


def test_the_parts_of_a_sentence_are_in_the_order_of_the_reasons() -> None:
    reasons = (Reason(ReasonCode.SLOWER_THAN_RECORD, WALL), Reason(ReasonCode.NO_BILL))
    assert describe("throughput", reasons, TIME) == f"slower than recorded: {BEYOND}; the record has no bill"


def test_a_code_of_an_older_run_is_read_and_one_that_is_no_code_is_refused() -> None:
    assert ReasonCode("speedup_below_anchor") is ReasonCode.EARLIER_RULE
    assert NextStep("record-new-anchor") is NextStep.REPEAT
    for noun, text in ((ReasonCode, "no code"), (NextStep, "dance")):
        with pytest.raises(ValueError, match="is not a valid"):
            noun(text)
    older = Reason(ReasonCode.SLOWER_THAN_RECORD, {"bound": "recorded", "value": 10.0, "allowed": 0.05})
    assert describe("throughput", (older,), TIME).startswith("an earlier gpugate decided this by other rules")
