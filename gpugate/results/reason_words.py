"""The reasons of a verdict in words: the only place that words them. Pure.

The template of a code names its facts and the numbers of the verdict. The reasons that name a bound share one part of
the sentence, which begins with what was measured: `2.50x (2.49..2.51) is below the promised 3.00x`.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

from gpugate import units
from gpugate.results.moved_side import Times, in_words
from gpugate.results.reason import Reason, ReasonCode

Facts = Mapping[str, Any]
_IN_TURNS = (
    "in turns with the recorded code ({commit:.12}), a step takes {change:change} ({change_low:change}.."
    "{change_high:change})"
)
_WORDS: Mapping[ReasonCode, str] = {
    ReasonCode.NOTHING_MEASURED: "nothing was measured yet",
    # Outputs.
    ReasonCode.NO_OUTPUT_COMPARED: "no output was compared",
    ReasonCode.OUTPUTS_AGREE: (
        "relative L2 error {relative_l2:.1e} of at most {allowed:.1e} over {compared_outputs:.0f} outputs"
    ),
    ReasonCode.VALUES_EQUAL: "{unequal:,.0f} of {values:,.0f} integers did not match",
    ReasonCode.SAME_NOT_FINITE: "{values:,.0f} values are infinite or NaN, at the same places in both outputs",
    ReasonCode.STEPS_AGREE: "the sums of {steps:.0f} further steps agree",
    ReasonCode.PROVEN: "{proof}: {words}",
    ReasonCode.PROVEN_BEFORE: "{proof}: {words} (proved on {proved_on})",
    ReasonCode.OUTPUT_NOT_COMPARABLE: "on {when}, {problem}",
    ReasonCode.RELATIVE_ERROR_TOO_LARGE: "on {when}, the relative L2 error {found:.2e} exceeds {allowed:.1e}",
    ReasonCode.LARGEST_ERROR_TOO_LARGE: "on {when}, the largest error {found:.2e} exceeds {allowed:.1e}",
    ReasonCode.TOP1_AGREEMENT_TOO_LOW: "on {when}, the top-1 agreement {found:.3f} is below {allowed}",
    ReasonCode.VALUES_UNEQUAL: "on {when}, {unequal:,.0f} of {values:,.0f} integers did not match",
    ReasonCode.STEPS_LEFT_OUT: (
        "a step in a block does {share:percent} of the work of a step by itself: the side leaves steps out"
    ),
    ReasonCode.OUTPUTS_REMEMBERED: (
        "a step takes {times:.3g} times as long on a new input as on a timed one: the side has the outputs of known "
        "inputs in store"
    ),
    ReasonCode.DISPROVED: "{proof}: {problem}",
    # Times.
    ReasonCode.REFERENCE_SLOWED: (
        "no result: the reference takes {times:.3g} times as long beside the optimized side as before that was built"
    ),
    ReasonCode.NO_RECORD: "nothing is recorded for this machine yet",
    ReasonCode.NOT_RECORDED_YET: "not recorded yet",
    ReasonCode.INTERVAL_TOO_WIDE: (
        "the interval of the speedup, +-{half_width:tenths}, is wider than +-{widest:percent}"
    ),
    ReasonCode.TOO_FEW_PROCESSES: "a baseline of {processes:.0f} processes, where a gate needs {needed:.0f}",
    ReasonCode.BOUNDS_NOTHING: "a tolerance as large as this bounds nothing",
    ReasonCode.MACHINE_CHANGED: "both sides are slower alike: the machine changed, or what both sides share",
    ReasonCode.CODE_SLOWER: f"the code is slower: {_IN_TURNS}",
    ReasonCode.CODE_NOT_SLOWER: (
        f"the code is not slower: {_IN_TURNS}; the machine or its software changed: {{changed}}"
    ),
    ReasonCode.CODE_UNCHANGED: (
        "the code is that of the record ({commit:.12}): the machine or its software changed: {changed}"
    ),
    ReasonCode.CODE_AS_FAST: f"the code is not slower: {_IN_TURNS}",
    ReasonCode.CODE_AS_RECORDED: "the code is that of the record ({commit:.12})",
    ReasonCode.CODE_UNDECIDED: f"{_IN_TURNS}, which decides nothing",
    ReasonCode.OTHER_CONDITIONS: "only the record shows slower code, and the conditions are not as recorded ({change})",
    ReasonCode.NO_DUET: "not compared with the recorded code: {problem}",
    ReasonCode.OTHER_CORES: (
        "the record was measured on {recorded_cores:g} of the CPU's cores and this run on {cores:g}: their times "
        "cannot be compared"
    ),
    ReasonCode.RANKS_SHARE_CORES: "the ranks share the cores of one CPU: their times are no evidence about GPUs",
    ReasonCode.NO_PAIRS: "no pair of blocks was measured",
    ReasonCode.NOT_TIMED: "not timed: {problem}",
    ReasonCode.IMPOSSIBLE_BUS_RATE: (
        "no result: the optimized side would carry {times_ceiling:percent} of what page-locked copies carry over the "
        "bus"
    ),
    ReasonCode.REFERENCE_TIME: "the reference took {then:ms} and takes {now:ms}",
    ReasonCode.RECORD_DIFFERS: "since the record: {differences}",
    ReasonCode.TOLERANCE_WIDENED: "the tolerance is wider, since the record: {differences}",
    # Counters.
    ReasonCode.COUNTED: "{kernel_launches:g} launches, {graph_launches:g} graph launches, {kernels:g} kernels",
    ReasonCode.COUNTED_IN_PART: "engaged by its own account; not measured: {problem}",
    ReasonCode.NOT_ENGAGED: "{problem}",
    ReasonCode.NO_KERNEL_SEEN: "the side runs no kernel, the reference does, and nothing declares why",
    ReasonCode.FEW_OPERATORS_SEEN: (
        "PyTorch's operators take {share:percent} of the optimized step and {reference_share:percent} of the "
        "reference's, and nothing declares why"
    ),
    ReasonCode.CONTRACT_NOT_CHECKED: "the contract was not checked: {problem}",
    ReasonCode.NOT_COUNTED: "not counted: {problem}",
    ReasonCode.COUNTER_NOT_MEASURED: "{counter} was not measured",
    ReasonCode.COUNTER_BELOW_LIMIT: "{counter} {value:g} is below {limit:g}",
    ReasonCode.COUNTER_ABOVE_LIMIT: "{counter} {value:g} is above {limit:g}",
    ReasonCode.COUNTER_BELOW_SHARE_OF_REFERENCE: (
        "{counter} {value:g} is below {limit:g}, {share:g} of the reference's"
    ),
    ReasonCode.COUNTER_ABOVE_SHARE_OF_REFERENCE: (
        "{counter} {value:g} is above {limit:g}, {share:g} of the reference's"
    ),
    ReasonCode.COUNTER_ABOVE_RECORD: "{counter} {recorded:g} -> {value:g} per step, more than recorded",
    ReasonCode.MEMORY_GROWS: "every step leaves {bytes:,.0f} bytes more device memory allocated",
    ReasonCode.IN_SOME_PROCESSES: "found in {found:.0f} of {processes:.0f} processes",
    # Sweeps.
    ReasonCode.TOO_FEW_POINTS: "too few points: {problem}",
    ReasonCode.KNEE_NOT_RECORDED: "the knee is at {knee:.0f}; nothing is recorded to compare it with",
    ReasonCode.KNEE_AS_RECORDED: "the knee is at {knee:.0f}, as recorded",
    ReasonCode.KNEE_MOVED: "the knee is at {knee:.0f}, recorded at {recorded_knee:.0f}",
    # Every check.
    ReasonCode.MACHINE_UNFIT: "no evidence on this machine state: {problem}",
    ReasonCode.DEVICE_LOST: "{problem}",
    ReasonCode.OTHER_WORK: "other processes kept {cores:.1f} CPU cores busy meanwhile",
    ReasonCode.NOT_CONFIRMED: "a fresh process could not confirm it ({problem})",
    ReasonCode.DISTURBED: (
        "{disturbed:.0f} of {processes:.0f} processes were disturbed: their interval is much wider, or their reference "
        "much slower, than recorded"
    ),
    ReasonCode.ALL_DISTURBED: (
        "no evidence: every process was disturbed, and the optimized side takes {optimized_now:ms} instead of "
        "{optimized_then:ms}, which the reference, at {reference_now:ms} instead of {reference_then:ms}, may hide"
    ),
    ReasonCode.BEING_RECORDED: "measured for the baseline that is recorded",
    # Of the rules that stand beside today's: the facts of several kinds get their sentences with them.
    ReasonCode.EARLIER_RULE: "an earlier gpugate decided it by other rules: gpugate replay decides it again",
    ReasonCode.OUTPUTS_DIFFER: "on {when}, the outputs differ",
    ReasonCode.PROMISE_KEPT: "the promise is kept",
    ReasonCode.PROMISE_OPEN: "the interval of the speedup crosses its promise",
    ReasonCode.SLOW_HOST: (
        "slow host: launches take {times:.2g} times the recorded time, so its wall times are no evidence"
    ),
    ReasonCode.WALL_AS_RECORDED: "wall {change:change} against the record",
    ReasonCode.WALL_OPEN: "wall {change:change} against the record, with an interval that crosses the tolerance",
    ReasonCode.THE_MACHINE: "wall {change:change}, bill {bill}: the machine",
    ReasonCode.WORK_NOT_SEEN: "the reference's work was not seen of the side, and nothing declares why",
    ReasonCode.LIMIT_BROKEN: "{counter} breaks its limit",
    ReasonCode.ITEM_GREW: "{item} {then:g} -> {now:g} per step",
    ReasonCode.BOTH_SIDES_GREW: "{item} {then:g} -> {now:g} per step, and the reference's alike",
    ReasonCode.NO_BILL: "the record has no bill",
    ReasonCode.KNEE: "the knee is at {knee:.0f}",
}
# Of one process, and of several that agree.
_VERBS: Mapping[ReasonCode, tuple[str, str]] = {
    ReasonCode.BOUND_HELD: ("holds", "hold"),
    ReasonCode.FASTER_THAN_RECORD: ("beats", "beat"),
    ReasonCode.SPEEDUP_BELOW_PROMISE: ("is below", "are below"),
    ReasonCode.SPEEDUP_BELOW_RECORD: ("is below", "are below"),
    ReasonCode.SPEEDUP_BELOW_ANCHOR: ("is below", "are below"),
    ReasonCode.SLOWER_THAN_RECORD: ("exceeds", "exceed"),
    ReasonCode.UNDECIDED: ("is not clearly on either side of", "are not clearly on either side of"),
    ReasonCode.GAIN_OF_A_SLOWER_REFERENCE: (
        "is only by a slower reference above",
        "are only by a slower reference above",
    ),
}
# Of all processes together.
_OF_ALL: Mapping[ReasonCode, str] = {
    ReasonCode.PROCESSES_DISAGREE: "they disagree about",
    ReasonCode.DID_NOTHING: "with the same kernels and bitwise the same outputs as the reference: it did nothing",
}
_GAINS = (ReasonCode.FASTER_THAN_RECORD, ReasonCode.GAIN_OF_A_SLOWER_REFERENCE)
_OPEN = (ReasonCode.UNDECIDED, ReasonCode.PROCESSES_DISAGREE, ReasonCode.GAIN_OF_A_SLOWER_REFERENCE)
_RESEMBLES: Mapping[str, str] = {
    "": "",
    "zeros": "zeros",
    "not finite": "NaN or infinity",
    "step before": "the output of the step before",
    "other input": "the output of another input: the side has outputs in store, and the contents changed places",
    "unreadable": "no output that can be compared",
    "unknown": "another output than the baseline's",
}
_STOPPED: Mapping[str, str] = {
    "narrow": "until the interval was narrow",
    "noise": "until the noise stopped changing",
    "budget": "until the budget was spent",
}


def describe(check: str, reasons: Sequence[Reason], numbers: Mapping[str, Any]) -> str:
    """The reasons in one sentence, whose parts are in the order of the reasons."""
    others = [reason.facts for reason in reasons if reason.code is ReasonCode.FRESH_PROCESS]
    # Where a bound is undecided, the intervals of all processes are why.
    is_open = any(reason.code in _OPEN for reason in reasons)
    unbounded = any(reason.code is ReasonCode.BOUNDS_NOTHING for reason in reasons)
    measured, parts = "", list[str]()
    for predicate, members in groupby(reasons, key=lambda reason: _predicate(reason.code, 1 + len(others), unbounded)):
        if predicate:
            bounds = " and ".join(_bound(check, reason) for reason in members)
            begin = "" if measured else f"{_write_measured(check, numbers, others, is_open)} "
            measured = measured or begin
            parts.append(f"{begin}{predicate} {bounds}".rstrip())
        else:
            parts += [_part(reason, numbers) for reason in members]
    return "; ".join(part for part in parts if part)


def _write_measured(check: str, numbers: Facts, others: Sequence[Facts], is_open: bool) -> str:
    """`2.50x (2.49..2.51)`, or `2.50x (2.49..2.51), in fresh processes 2.81x and 2.80x:`."""
    if check == "throughput":
        here = f"{units.milliseconds(numbers['optimized_ms'])} per step"
        elsewhere = [units.milliseconds(one["optimized_ms"]) for one in others]
    else:
        here = _with_interval(numbers)
        elsewhere = [_with_interval(one) if is_open else units.ratio(one["speedup"]) for one in others]
    if not elsewhere:
        return here
    return f"{here}, in {'a fresh process' if len(elsewhere) == 1 else 'fresh processes'} {' and '.join(elsewhere)}:"


def _with_interval(found: Facts) -> str:
    return f"{units.ratio(found['speedup'])} ({units.interval(found['speedup_low'], found['speedup_high'])})"


def _predicate(code: ReasonCode, processes: int, unbounded: bool) -> str:
    """`holds` of one process, `the middle one of 3 holds`, `both hold` or `they disagree about` of several.

    Empty for a code that is not about a measured time.
    """
    if code in _OF_ALL:
        return _OF_ALL[code]
    is_empty_bound = unbounded and code is ReasonCode.BOUND_HELD
    one, several = ("is not bounded by", "are not bounded by") if is_empty_bound else _VERBS.get(code, ("", ""))
    if processes == 1 or not one:
        return one
    if processes == 2:
        return f"both {several}"
    return f"the middle one of {processes} {one}" if processes % 2 else f"the middle two of {processes} {several}"


def _bound(check: str, reason: Reason) -> str:
    """`the promised 2.00x` or `the recorded 3.00x -1 %`: the edge of the tolerated band that decides."""
    facts: Facts = reason.facts
    if "bound" not in facts:
        return ""
    is_speedup = check == "speedup"
    value = units.ratio(facts["value"]) if is_speedup else units.milliseconds(facts["value"])
    sign = "+" if is_speedup is (reason.code in _GAINS) else "-"
    return f"the {facts['bound']} {value}" + (f" {sign}{units.percent(facts['allowed'])}" if "allowed" in facts else "")


def _part(reason: Reason, numbers: Facts) -> str:
    """One reason in words; empty for a fresh process, whose value is among what was measured."""
    if reason.code in _OF_SEVERAL_FACTS:
        return _OF_SEVERAL_FACTS[reason.code](reason.facts)
    return _Formatter().vformat(_WORDS.get(reason.code, ""), (), {**numbers, **reason.facts})


class _Formatter(string.Formatter):
    """Formats `{share:percent}` and `{then:ms}` as tables do."""

    def format_field(self, value: Any, spec: str) -> str:
        formats = {
            "percent": units.percent,
            "tenths": units.percent_in_tenths,
            "ms": units.milliseconds,
            "change": units.signed_percent,
        }
        return formats[spec](value) if spec in formats else str(super().format_field(value, spec))


def _steps_wrong(facts: Facts) -> str:
    found = facts.get("problem") or f"it returned {_RESEMBLES[facts['resembles']]}"
    count = f"{facts['wrong']:.0f} of {facts['steps']:.0f} steps are wrong"
    return f"{count}, the first is step {facts['first_wrong']:.0f}: {found}"


def _impossible_rate(facts: Facts) -> str:
    name, ceiling = facts["yardstick"], facts["ceiling"]
    rate = units.yardstick_value(name, ceiling * facts["times_ceiling"])
    return (
        f"no result: {facts['side']} would reach {rate}, {units.percent(facts['times_ceiling'])} of "
        f"{units.yardstick_label(name)} {units.yardstick_value(name, ceiling)}, the most that this machine reached"
    )


def _record_varies(cv_by_bound: Facts) -> str:
    bounds = " and ".join(f"the {bound}" for bound in cv_by_bound)
    advice = "record more, or on a quieter machine"
    varied = " and ".join(dict.fromkeys(f"{100 * cv:.0f}" for cv in cv_by_bound.values()))
    return f"the processes of {bounds} speedup vary by {varied} %, too much to bound anything: {advice}"


def _sides_moved(facts: Facts) -> str:
    then, now = (Times(facts[f"reference_{when}_ms"], facts[f"optimized_{when}_ms"]) for when in ("then", "now"))
    return f"{'in the process that decided, ' if facts['processes'] > 1 else ''}{in_words(then, now)}"


def _pairs(facts: Facts) -> str:
    """`12 pairs over 3 fresh builds of this process, extended once, until the interval was narrow`."""
    builds = units.number_of(int(facts["builds"]), "fresh build")
    times = int(facts["attempts"]) - 1
    often = {1: "once", 2: "twice"}.get(times, f"{times} times")
    extended = f", extended {often}" if times else ""
    discarded = f", {facts['discarded']:.0f} discarded as throttled" if facts["discarded"] else ""
    stopped = _STOPPED.get(facts["stopped"], facts["stopped"])
    return f"{facts['pairs']:.0f} pairs over {builds} of this process{extended}{discarded}, {stopped}"


def _throughput_curve(share_by_value: Facts) -> str:
    shares = (
        f"{one} at {value}" if isinstance(one, str) else f"{100 * one:.0f} % at {value}"
        for value, one in share_by_value.items()
    )
    return f"of the best throughput, {', '.join(shares)}"


_OF_SEVERAL_FACTS: Mapping[ReasonCode, Callable[[Facts], str]] = {
    ReasonCode.STEPS_WRONG: _steps_wrong,
    ReasonCode.IMPOSSIBLE_RATE: _impossible_rate,
    ReasonCode.RECORD_VARIES: _record_varies,
    ReasonCode.SIDES_MOVED: _sides_moved,
    ReasonCode.PAIRS: _pairs,
    ReasonCode.THROUGHPUT_CURVE: _throughput_curve,
}
