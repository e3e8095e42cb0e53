"""The reason of a verdict: codes, each with the facts that its words name, and the only place that words them. Pure.

A template names facts of its code and numbers of the verdict.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any

from gpugate import units
from gpugate.units import NotFinite

Facts = Mapping[str, Any]
Words = str | Callable[[Facts], str]
BILL_WORDS: Mapping[str, str] = {  # items that a verdict names, and of which a report has the change
    "kernel_ms": "GPU work",
    "host_to_device_ms": "copy time to the device",
    "device_to_host_ms": "copy time to the host",
    "device_to_device_ms": "copy time within the device",
    "cpu_ms": "CPU time",
    "peak_bytes": "peak memory",
}
_NAMES: Mapping[str, Mapping[str, str]] = {  # of facts whose values are codes
    "resembles": {
        "": "",
        "zeros": "zeros",
        "not finite": "NaN or infinity",
        "step before": "the output of the step before",
        "other input": "the stored output of another input, whose contents changed places",
        "some rows": "only some of the right rows",
        "unreadable": "no output that can be compared",
        "unknown": "another output than the baseline's",
    },
    "error": {
        "relative_l2": "the relative L2 error {found:.2e} exceeds {limit:.1e}",
        "max_error": "the largest error {found:.2e} exceeds {limit:.1e}",
        "top1_agreement": "the top-1 agreement {found:.3f} is below {limit}",
    },
    "stopped": {
        "narrow": "until the interval was narrow",
        "noise": "until the noise stopped changing",
        "budget": "until the budget was spent",
    },
    "bill": {
        "unchanged": "bill unchanged",
        "grown": "bill grown",
        "not compared": "bill not compared",
    },
    "code": {"not slower": "not slower than the recorded code", "unchanged": "the recorded code itself"},
}
_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "percent": units.percent,
    "ms": units.milliseconds,
    "change": units.signed_percent,
    "ratio": units.ratio,
    **{name: words.__getitem__ for name, words in _NAMES.items()},
}


class _Formatter(string.Formatter):
    """Formats `{share:percent}` and `{then:ms}` as tables do, and `{bill:bill}` by the words of the code."""

    def format_field(self, value: Any, spec: str) -> str:
        return _FORMATS[spec](value) if spec in _FORMATS else str(super().format_field(value, spec))


def _format(template: str, facts: Facts) -> str:
    return _Formatter().vformat(template, (), facts)


def _impossible_rate(facts: Facts) -> str:
    """`no result: the optimized side would reach 1600 TFLOP/s, 200 % of the fastest matmul of this machine`."""
    name, ceiling, times = facts["yardstick"], facts["ceiling"], facts["times_ceiling"]
    rate, most = (units.yardstick_value(name, value) for value in (ceiling * times, ceiling))
    share = units.percent(times)
    return f"no result: {facts['side']} would reach {rate}, {share} of {units.yardstick_label(name)} {most}"


def _which(facts: Facts) -> str:
    """The process whose times a reason has: empty for a single one."""
    count = int(facts["processes"])
    return {1: "", 2: "in the slower one of 2 processes"}.get(count, f"in the middle one of {count} processes")


def _promise(one: str, both: str) -> Words:
    """Words such as `2.50x (2.49..2.51) is below the promised 3.00x`, or `2.50x and 2.60x in 2 processes are below it`.

    `one` and `both` are the verbs for one process and for two. The interval of a single process decides, and of several
    the medians do.
    """

    def words(facts: Facts) -> str:
        speedup, verb = _format("{speedup:ratio}", facts), one
        if facts["processes"] == 1:
            speedup += f" ({units.interval(facts['speedup_low'], facts['speedup_high'])})"
        elif "faster" in facts:
            speedup, verb = f"{speedup} and {units.ratio(facts['faster'])} in 2 processes", both
        else:
            speedup += f" {_which(facts)}"
        if "min_speedup" not in facts:
            return f"{speedup}; nothing is promised for this kind of device"
        allowed = f" -{units.percent(facts['allowed'])}" if "allowed" in facts else ""
        known = facts.get("usual_low", 0.0) >= facts["min_speedup"] > facts["speedup_low"]
        usual = f", by its record at least {units.ratio(facts['usual_low'])}," if known else ""
        return f"{speedup}{usual} {verb} the promised {units.ratio(facts['min_speedup'])}{allowed}"

    return words


def _pairs(facts: Facts) -> str:
    """`12 pairs over 3 fresh builds of this process, extended once, until the interval was narrow`."""
    builds = units.number_of(int(facts["builds"]), "fresh build")
    times = int(facts["attempts"]) - 1
    often = {1: "once", 2: "twice"}.get(times, f"{times} times")
    extended = f", extended {often}" if times else ""
    discarded = f", {facts['discarded']:.0f} discarded as throttled" if facts["discarded"] else ""
    stopped = _NAMES["stopped"].get(facts["stopped"], facts["stopped"])
    return f"{facts['pairs']:.0f} pairs over {builds} of this process{extended}{discarded}, {stopped}"


def _item_grew(facts: Facts) -> str:
    """`GPU work +5.2 %: sm90_xmma_fprop 0.41 ms -> 0.46 ms`."""
    item, then, now = facts["item"], facts["then"], facts["now"]
    if item == "grown_bytes":
        return f"every step leaves {now:,.0f} bytes more device memory allocated"
    values = f"{units.item(item, then)} -> {units.item(item, now)}"
    if item not in BILL_WORDS:
        return f"{item.replace('_', ' ')} {values} per step, more than recorded"
    change = f"{BILL_WORDS[item]} {units.signed_percent(now / then - 1)}"
    if "kernel" not in facts:
        return f"{change}: {values}"
    kernel, then, now = units.shorten_name(facts["kernel"]), facts["kernel_then"], facts["kernel_now"]
    if not then:
        return f"{change}: the record lacks `{kernel}` of {units.milliseconds(now)}"
    return f"{change}: `{kernel}` {units.milliseconds(then)} -> {units.milliseconds(now)}"


def _wall(before: str = "", change: str = "{wall_change:change}") -> Words:
    """Words such as `10.00 ms per step, wall +1.2 % against the record, +2.1 % tolerated, in the middle one of 3
    processes`."""

    def words(facts: Facts) -> str:
        wall = f"{{optimized_ms:ms}} per step, wall {change} against the record, +{{time_tolerance:percent}} tolerated"
        return ", ".join(filter(None, (before + _format(wall, facts), _which(facts))))

    return words


_EARLIER = "an earlier gpugate decided this by other rules: gpugate replay decides it again"
_STEPS_WRONG = "{wrong:.0f} of {steps:.0f} steps are wrong, the first is step {first_wrong:.0f}: "
_LIMIT = "{counter} {value:g} is {side} {limit:g}"
_IN_TURNS = (
    "in turns with the recorded code ({commit:.12}), a step takes {change:change} ({change_low:change}.."
    "{change_high:change})"
)


class ReasonCode(str, Enum):
    """The finding of a check, with its words: the first of them whose facts are all there are those of a reason.

    A code of an older run that no rule has any more is read as EARLIER_RULE.
    """

    _value_: str
    words: tuple[Words, ...]

    def __new__(cls, code: str, *words: Words) -> ReasonCode:
        one = str.__new__(cls, code)
        one._value_, one.words = code, words
        return one

    EARLIER_RULE = ("earlier_rule", _EARLIER)
    # Every check.
    NOTHING_MEASURED = ("nothing_measured", "not measured: {problem}", "nothing was compared")
    MACHINE_UNFIT = ("machine_unfit", "times are no evidence now: {problem}")
    OTHER_WORK = ("other_work", "other processes kept {cores:.1f} CPU cores busy meanwhile")
    NOT_CONFIRMED = ("not_confirmed", "no fresh process could confirm this alarm ({problem})")
    IN_SOME_PROCESSES = ("in_some_processes", "found in {found:.0f} of {processes:.0f} processes")
    # Outputs.
    OUTPUTS_AGREE = (
        "outputs_agree",
        "the sums of {steps:.0f} further steps agree",
        "{not_finite:,.0f} values are infinite or NaN, at the same places in both outputs",
        "{unequal:,.0f} of {values:,.0f} integers did not match",
        "relative L2 error {relative_l2:.1e} of at most {allowed:.1e} over {compared_outputs:.0f} outputs",
    )
    OUTPUTS_DIFFER = (
        "outputs_differ",
        "on {when}, {problem}",
        "on {when}, {unequal:,.0f} of {values:,.0f} integers did not match",
        lambda facts: _format("on {when}, " + _NAMES["error"][facts["measure"]], facts),
    )
    PROVEN = ("proven", "{proof}: {words} (proved on {proved_on})", "{proof}: {words}")
    STEPS_WRONG = ("steps_wrong", _STEPS_WRONG + "{problem}", _STEPS_WRONG + "it returned {resembles:resembles}")
    STEPS_LEFT_OUT = (
        "steps_left_out",
        "a step in a block does {share:percent} of the work of a step by itself: the side leaves steps out",
    )
    OUTPUTS_REMEMBERED = (
        "outputs_remembered",
        "a step takes {times:.3g} times as long on a new input: the side has the outputs of known inputs in store",
    )
    DISPROVED = ("disproved", "{proof}: {problem}")
    # Times that are no result.
    IMPOSSIBLE_RATE = (
        "impossible_rate",
        _impossible_rate,
        "no result: the optimized side would carry {times_ceiling:percent} of what page-locked copies carry over the "
        "bus",
    )
    REFERENCE_SLOWED = (
        "reference_slowed",
        "no result: the reference takes {times:.3g} times as long beside the optimized side as before that was built",
    )
    # The speedup against its promise.
    PROMISE_KEPT = ("promise_kept", _promise("holds", "hold"))
    SPEEDUP_BELOW_PROMISE = ("speedup_below_promise", _promise("is below", "are below"))
    PROMISE_OPEN = ("promise_open", _promise("is not clearly on either side of", "disagree about"))
    DID_NOTHING = (
        "did_nothing",
        "the side did nothing: it has the reference's kernels, its outputs to the bit, and its speed",
    )
    PAIRS = ("pairs", _pairs)
    # The bill and the contract.
    COUNTED = (
        "counted",
        "engaged by its own account; not measured: {problem}",
        "{kernel_launches:g} launches, {graph_launches:g} graph launches, {kernels:g} kernels",
        "no launch was counted",
    )
    NOT_ENGAGED = ("not_engaged", "{problem}")
    WORK_NOT_SEEN = (
        "work_not_seen",
        "PyTorch's operators take {share:percent} of the optimized step and {reference_share:percent} of the "
        "reference's, and nothing declares why",
        "the side runs no kernel, the reference does, and nothing declares why",
    )
    LIMIT_BROKEN = ("limit_broken", _LIMIT + ", {share:g} of the reference's", _LIMIT, "{counter} was not measured")
    ITEM_GREW = ("item_grew", _item_grew)
    NO_BILL = ("no_bill", "no time of the bill is compared with the record")
    # The wall time against the record, and the recorded code.
    NO_RECORD = (
        "no_record",
        "the record is of {processes:.0f} processes, and a gate needs {needed:.0f}",
        "there is no record to compare with",
    )
    SLOW_HOST = (
        "slow_host",
        "slow host: launches take {times:.2g} times the recorded time, so that a longer wall time proves nothing",
    )
    WALL_AS_RECORDED = ("wall_as_recorded", _wall())
    FASTER_THAN_RECORD = ("faster_than_record", _wall("faster than recorded: "))
    SLOWER_THAN_RECORD = ("slower_than_record", _wall("slower than recorded: "))
    WALL_OPEN = ("wall_open", _wall("perhaps slower than recorded: ", "{change_low:change}..{change_high:change}"))
    THE_MACHINE = (
        "the_machine",
        "wall {wall_change:change}, {bill:bill}, {code:code}: the machine",
        "wall {wall_change:change}, {bill:bill}: the machine",
    )
    CODE_SLOWER = ("code_slower", f"the code is slower: {_IN_TURNS}")
    CODE_NOT_SLOWER = (
        "code_not_slower",
        f"the code is not slower: {_IN_TURNS}",
        "the code is that of the record ({commit:.12})",
    )
    CODE_SEEMS_SLOWER = ("code_seems_slower", f"the code seems slower, by too few processes to decide: {_IN_TURNS}")
    CODE_UNDECIDED = (
        "code_undecided",
        "not compared with the recorded code: {problem}",
        f"{_IN_TURNS}, which decides nothing",
        "no duet was measured",
    )
    RECORD_DIFFERS = ("record_differs", "since the record: {differences}")
    # Sweeps.
    KNEE = (
        "knee",
        "the knee is at {knee:.0f}, recorded at {recorded_knee:.0f}",
        "the knee is at {knee:.0f}; nothing is recorded to compare it with",
    )

    @classmethod
    def _missing_(cls, value: object) -> ReasonCode | None:
        return cls.EARLIER_RULE if isinstance(value, str) and value.isidentifier() else None


Fact = Annotated[float | str, NotFinite()]


@dataclass(frozen=True)
class Reason:
    """One part of a reason. The unit of a fact is in its name, or that of the check: a ratio, or milliseconds."""

    code: ReasonCode
    facts: Mapping[str, Fact] = field(default_factory=dict)


def describe(reasons: Sequence[Reason], numbers: Mapping[str, Any]) -> list[str]:
    """A sentence for each of the reasons, in their order; the first one has at most 25 words."""
    known = {name: value for name, value in numbers.items() if value is not None}
    return [_describe_one(reason, {**known, **reason.facts}) for reason in reasons]


def _describe_one(reason: Reason, facts: Facts) -> str:
    """The words of a reason; an older run has other facts for a code of that name."""
    for one in reason.code.words:
        with suppress(KeyError):
            return one(facts) if callable(one) else _format(one, facts)
    return _EARLIER
