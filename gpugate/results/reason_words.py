"""The reasons of a verdict in words: the only place that words them. Pure.

The template of a code names its facts and the numbers of the verdict.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpugate import units
from gpugate.results.reason import Reason, ReasonCode

Facts = Mapping[str, Any]
LONGEST_NAME = 40  # characters of a kernel's name, whose templates go on for hundreds
_IN_TURNS = (
    "in turns with the recorded code ({commit:.12}), a step takes {change:change} ({change_low:change}.."
    "{change_high:change})"
)
_WORDS: Mapping[ReasonCode, str] = {
    ReasonCode.EARLIER_RULE: "an earlier gpugate decided this by other rules: gpugate replay decides it again",
    # Every check.
    ReasonCode.MACHINE_UNFIT: "no evidence on this machine state: {problem}",
    ReasonCode.OTHER_WORK: "other processes kept {cores:.1f} CPU cores busy meanwhile",
    ReasonCode.NOT_CONFIRMED: "a fresh process could not confirm it ({problem})",
    ReasonCode.IN_SOME_PROCESSES: "found in {found:.0f} of {processes:.0f} processes",
    # Outputs.
    ReasonCode.STEPS_LEFT_OUT: (
        "a step in a block does {share:percent} of the work of a step by itself: the side leaves steps out"
    ),
    ReasonCode.OUTPUTS_REMEMBERED: (
        "a step takes {times:.3g} times as long on a new input: the side has the outputs of known inputs in store"
    ),
    ReasonCode.DISPROVED: "{proof}: {problem}",
    # Times that are no result.
    ReasonCode.RANKS_SHARE_CORES: "the ranks share the cores of one CPU: their times are no evidence about GPUs",
    ReasonCode.REFERENCE_SLOWED: (
        "no result: the reference takes {times:.3g} times as long beside the optimized side as before that was built"
    ),
    # The speedup against its promise.
    ReasonCode.INTERVAL_TOO_WIDE: (
        "the interval of the speedup, +-{half_width:tenths}, is wider than +-{widest:percent}"
    ),
    ReasonCode.DID_NOTHING: (
        "the side did nothing: it has the reference's kernels, its outputs to the bit, and its speed"
    ),
    ReasonCode.FRESH_PROCESS: "",  # its value stands in the sentence about the promise
    # The bill and the contract.
    ReasonCode.NOT_ENGAGED: "{problem}",
    ReasonCode.NO_BILL: "the record has no bill",
    # The wall time against the record, and the recorded code.
    ReasonCode.TOO_FEW_PROCESSES: "the record is of {processes:.0f} processes, and a gate needs {needed:.0f}",
    ReasonCode.OTHER_CORES: (
        "the record is of {recorded_cores:g} cores of this CPU and this run of {cores:g}, so no times are compared"
    ),
    ReasonCode.SLOW_HOST: (
        "slow host: launches take {times:.2g} times the recorded time, so that a longer wall time proves nothing"
    ),
    ReasonCode.CODE_SLOWER: f"the code is slower: {_IN_TURNS}",
    ReasonCode.RECORD_DIFFERS: "since the record: {differences}",
}
_WALL: Mapping[ReasonCode, str] = {
    ReasonCode.WALL_AS_RECORDED: "",
    ReasonCode.FASTER_THAN_RECORD: "faster than recorded: ",
    ReasonCode.SLOWER_THAN_RECORD: "slower than recorded: ",
    ReasonCode.WALL_OPEN: "perhaps slower than recorded: ",
}
_PROMISE: Mapping[ReasonCode, tuple[str, str]] = {  # of one process, and of several
    ReasonCode.PROMISE_KEPT: ("holds", "hold"),
    ReasonCode.SPEEDUP_BELOW_PROMISE: ("is below", "are below"),
    ReasonCode.PROMISE_OPEN: ("is not clearly on either side of", "disagree about"),
}
_NO_RECORD: Mapping[str, str] = {
    "gate": "nothing is recorded for this machine yet",
    "developer": "not recorded yet",
    "recording": "measured for the baseline that is recorded",
}
_ITEMS: Mapping[str, str] = {
    "kernel_ms": "GPU work",
    "host_to_device_ms": "copy time to the device",
    "device_to_host_ms": "copy time to the host",
    "device_to_device_ms": "copy time within the device",
    "cpu_ms": "CPU time",
    "peak_bytes": "peak memory",
}
_RESEMBLES: Mapping[str, str] = {
    "": "",
    "zeros": "zeros",
    "not finite": "NaN or infinity",
    "step before": "the output of the step before",
    "other input": "the output of another input: the side has outputs in store, and the contents changed places",
    "unreadable": "no output that can be compared",
    "unknown": "another output than the baseline's",
}
_ERRORS: Mapping[str, str] = {
    "relative_l2": "the relative L2 error {found:.2e} exceeds {limit:.1e}",
    "max_error": "the largest error {found:.2e} exceeds {limit:.1e}",
    "top1_agreement": "the top-1 agreement {found:.3f} is below {limit}",
}
_STOPPED: Mapping[str, str] = {
    "narrow": "until the interval was narrow",
    "noise": "until the noise stopped changing",
    "budget": "until the budget was spent",
}


def describe(check: str, reasons: Sequence[Reason], numbers: Mapping[str, Any]) -> str:
    """The reasons in one sentence, whose parts are in the order of the reasons."""
    others = [reason.facts for reason in reasons if reason.code is ReasonCode.FRESH_PROCESS]
    parts = [_describe_one(reason, {**numbers, **reason.facts, "others": others}) for reason in reasons]
    return "; ".join(part for part in parts if part)


def _describe_one(reason: Reason, facts: Facts) -> str:
    try:
        if reason.code in _PROMISE:
            return _promise(reason.code, facts)
        if reason.code in _WALL:
            return _WALL[reason.code] + _wall(facts)
        if reason.code in _OF_SEVERAL_FACTS:
            return _OF_SEVERAL_FACTS[reason.code](facts)
        return _format(_WORDS[reason.code], facts)
    except KeyError:  # an older run has other facts for a code of the same name
        return _WORDS[ReasonCode.EARLIER_RULE]


class _Formatter(string.Formatter):
    """Formats `{share:percent}` and `{then:ms}` as tables do."""

    def format_field(self, value: Any, spec: str) -> str:
        formats = {
            "percent": units.percent,
            "tenths": units.percent_in_tenths,
            "ms": units.milliseconds,
            "change": units.signed_percent,
            "ratio": units.ratio,
        }
        return formats[spec](value) if spec in formats else str(super().format_field(value, spec))


def _format(template: str, facts: Facts) -> str:
    return _Formatter().vformat(template, (), facts)


def _nothing_measured(facts: Facts) -> str:
    return f"not measured: {facts['problem']}" if "problem" in facts else "nothing was compared"


def _outputs_agree(facts: Facts) -> str:
    if "steps" in facts:
        return _format("the sums of {steps:.0f} further steps agree", facts)
    if "not_finite" in facts:
        return _format("{not_finite:,.0f} values are infinite or NaN, at the same places in both outputs", facts)
    if "unequal" in facts:
        return _format("{unequal:,.0f} of {values:,.0f} integers did not match", facts)
    words = "relative L2 error {relative_l2:.1e} of at most {allowed:.1e} over {compared_outputs:.0f} outputs"
    return _format(words, facts)


def _outputs_differ(facts: Facts) -> str:
    if "problem" in facts:
        return _format("on {when}, {problem}", facts)
    if "unequal" in facts:
        return _format("on {when}, {unequal:,.0f} of {values:,.0f} integers did not match", facts)
    return _format("on {when}, " + _ERRORS[facts["measure"]], facts)


def _proven(facts: Facts) -> str:
    before = f" (proved on {facts['proved_on']})" if "proved_on" in facts else ""
    return f"{facts['proof']}: {facts['words']}{before}"


def _steps_wrong(facts: Facts) -> str:
    found = facts.get("problem") or f"it returned {_RESEMBLES[facts['resembles']]}"
    count = f"{facts['wrong']:.0f} of {facts['steps']:.0f} steps are wrong"
    return f"{count}, the first is step {facts['first_wrong']:.0f}: {found}"


def _impossible_rate(facts: Facts) -> str:
    """`no result: the optimized side would reach 1600 TFLOP/s, 200 % of the fastest matmul of this machine`."""
    share = units.percent(facts["times_ceiling"])
    if "yardstick" not in facts:
        return f"no result: the optimized side would carry {share} of what page-locked copies carry over the bus"
    name, ceiling = facts["yardstick"], facts["ceiling"]
    rate, most = (units.yardstick_value(name, value) for value in (ceiling * facts["times_ceiling"], ceiling))
    return f"no result: {facts['side']} would reach {rate}, {share} of {units.yardstick_label(name)} {most}"


def _promise(code: ReasonCode, facts: Facts) -> str:
    """`2.50x (2.49..2.51) is below the promised 3.00x`, or with the values of fresh processes."""
    others, (one, several) = facts["others"], _PROMISE[code]
    here = _format("{speedup:ratio}", facts) + f" ({units.interval(facts['speedup_low'], facts['speedup_high'])})"
    if "value" not in facts:
        return f"{here}; nothing is promised for this kind of device"
    allowed = f" -{units.percent(facts['allowed'])}" if "allowed" in facts else ""
    bound = f"the promised {units.ratio(facts['value'])}{allowed}"
    if not others:
        return f"{here} {one} {bound}"
    elsewhere = " and ".join(units.ratio(each["speedup"]) for each in others)
    count = 1 + len(others)
    subject = f"the middle one of {count} {one}" if count % 2 else f"the middle two of {count} {several}"
    return f"{here}, in fresh processes {elsewhere}: {'both ' + several if count == 2 else subject} {bound}"


def _pairs(facts: Facts) -> str:
    """`12 pairs over 3 fresh builds of this process, extended once, until the interval was narrow`."""
    builds = units.number_of(int(facts["builds"]), "fresh build")
    times = int(facts["attempts"]) - 1
    often = {1: "once", 2: "twice"}.get(times, f"{times} times")
    extended = f", extended {often}" if times else ""
    discarded = f", {facts['discarded']:.0f} discarded as throttled" if facts["discarded"] else ""
    stopped = _STOPPED.get(facts["stopped"], facts["stopped"])
    return f"{facts['pairs']:.0f} pairs over {builds} of this process{extended}{discarded}, {stopped}"


def _counted(facts: Facts) -> str:
    if "problem" in facts:
        return f"engaged by its own account; not measured: {facts['problem']}"
    names = {"kernel_launches": "launches", "graph_launches": "graph launches", "kernels": "kernels"}
    counts = [f"{facts[name]:g} {word}" for name, word in names.items() if name in facts]
    return ", ".join(counts) or "no launch was counted"


def _work_not_seen(facts: Facts) -> str:
    if "share" not in facts:
        return "the side runs no kernel, the reference does, and nothing declares why"
    return _format(
        "PyTorch's operators take {share:percent} of the optimized step and {reference_share:percent} of the "
        "reference's, and nothing declares why",
        facts,
    )


def _limit_broken(facts: Facts) -> str:
    if "value" not in facts:
        return f"{facts['counter']} was not measured"
    share = f", {facts['share']:g} of the reference's" if "share" in facts else ""
    return _format("{counter} {value:g} is {side} {limit:g}", facts) + share


def _item_grew(facts: Facts) -> str:
    """`GPU work +5.2 %: sm90_xmma_fprop 0.41 ms -> 0.46 ms`."""
    item, then, now = facts["item"], facts["then"], facts["now"]
    if item == "grown_bytes":
        return f"every step leaves {now:,.0f} bytes more device memory allocated"
    if item not in _ITEMS and "kernel" not in facts:
        return f"{item} {then:g} -> {now:g} per step, more than recorded"
    change = f"{_ITEMS.get(item, 'kernel ' + _shorten(item))} {units.signed_percent(now / then - 1)}"
    if item == "peak_bytes":
        return f"{change}: {then / 1e6:.4g} MB -> {now / 1e6:.4g} MB"
    kernel = f"{_shorten(facts['kernel'])} " if facts.get("kernel", item) != item else ""
    if kernel and not facts["kernel_then"]:
        return f"{change}: the record lacks {kernel}of {units.milliseconds(facts['kernel_now'])} per step"
    then, now = facts.get("kernel_then", then), facts.get("kernel_now", now)
    return f"{change}: {kernel}{units.milliseconds(then)} -> {units.milliseconds(now)} per step"


def _shorten(name: str) -> str:
    return f"`{name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + '...'}`"


def _both_sides_grew(facts: Facts) -> str:
    change = units.signed_percent(facts["now"] / facts["then"] - 1)
    return f"{_ITEMS[facts['item']]} {change}, and the reference's alike: the card, its clock, or what both sides share"


def _wall(facts: Facts) -> str:
    """`10.00 ms per step, wall +1.2 % against the record, of +2.1 % tolerated, in the middle one of 3 processes`."""
    count = int(facts["processes"])
    which = {1: "", 2: ", in the slower one of 2 processes"}.get(count, f", in the middle one of {count} processes")
    words = "{optimized_ms:ms} per step, wall {change:change} against the record, +{allowed:percent} tolerated"
    return _format(words, facts) + which


def _the_machine(facts: Facts) -> str:
    """`wall +38 %, bill unchanged, not slower than the recorded code: the machine`."""
    bill = "no bill recorded" if facts["bill"] == "not recorded" else f"bill {facts['bill']}"
    code = {"not slower": ", not slower than the recorded code", "unchanged": ", the recorded code itself"}
    return f"wall {units.signed_percent(facts['change'])}, {bill}{code.get(facts.get('code', ''), '')}: the machine"


def _no_record(facts: Facts) -> str:
    return _NO_RECORD[facts["purpose"]]


def _code_not_slower(facts: Facts) -> str:
    if "change" not in facts:
        return _format("the code is that of the record ({commit:.12})", facts)
    return _format(f"the code is not slower: {_IN_TURNS}", facts)


def _code_undecided(facts: Facts) -> str:
    if "problem" in facts:
        return f"not compared with the recorded code: {facts['problem']}"
    return _format(f"{_IN_TURNS}, which decides nothing", facts) if "change" in facts else "no duet was measured"


def _knee(facts: Facts) -> str:
    now, then = facts["knee"], facts.get("recorded_knee")
    if then is None:
        return f"the knee is at {now:.0f}; nothing is recorded to compare it with"
    return f"the knee is at {now:.0f}, " + ("as recorded" if now == then else f"recorded at {then:.0f}")


def _throughput_curve(facts: Facts) -> str:
    numbers = ("knee", "recorded_knee", "others")
    shares = (
        f"{one} at {value}" if isinstance(one, str) else f"{100 * one:.0f} % at {value}"
        for value, one in facts.items()
        if value not in numbers
    )
    return f"of the best throughput, {', '.join(shares)}"


_OF_SEVERAL_FACTS: Mapping[ReasonCode, Callable[[Facts], str]] = {
    ReasonCode.NOTHING_MEASURED: _nothing_measured,
    ReasonCode.OUTPUTS_AGREE: _outputs_agree,
    ReasonCode.OUTPUTS_DIFFER: _outputs_differ,
    ReasonCode.PROVEN: _proven,
    ReasonCode.STEPS_WRONG: _steps_wrong,
    ReasonCode.IMPOSSIBLE_RATE: _impossible_rate,
    ReasonCode.PAIRS: _pairs,
    ReasonCode.COUNTED: _counted,
    ReasonCode.WORK_NOT_SEEN: _work_not_seen,
    ReasonCode.LIMIT_BROKEN: _limit_broken,
    ReasonCode.ITEM_GREW: _item_grew,
    ReasonCode.BOTH_SIDES_GREW: _both_sides_grew,
    ReasonCode.THE_MACHINE: _the_machine,
    ReasonCode.NO_RECORD: _no_record,
    ReasonCode.CODE_NOT_SLOWER: _code_not_slower,
    ReasonCode.CODE_UNDECIDED: _code_undecided,
    ReasonCode.KNEE: _knee,
    ReasonCode.THROUGHPUT_CURVE: _throughput_curve,
}
