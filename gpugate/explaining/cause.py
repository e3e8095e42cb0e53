"""The likely cause in one sentence: the first of a list of explanations that the evidence bears out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from gpugate import units
from gpugate.explaining.state import NOTHING, State, account, change, list_changed_parts, write_signed
from gpugate.measurement.record import OTHERS, StepProfile
from gpugate.units import shorten_name

ONE = 0.5  # of a count per step: less is not a call of every step
FEW = 0.005  # of a step: as good as the same
MOST = 0.5  # of what a step takes longer
SOME = 0.25  # of it: a count that bears less is not what made the step longer
LITTLE = 0.05  # of it: a part that is as much larger than the whole is as good as all of it
MOST_PIECES = 3  # of a layer that was split, which are named
MOST_OPERATORS = 5  # that come more or less often, which are named
OPERATORS = "other operators"
COUNTED = ("copies", "pageable copies", "synchronization", "more kernels", OPERATORS)
COPIES = ("host_to_device_copies", "device_to_host_copies", "device_to_device_copies")
CALLS = ("kernel_launches", "graph_launches", "synchronizing_calls", "memsets", "operators", *COPIES)


@dataclass(frozen=True)
class Cause:
    """A cause: its kind, and one sentence with the evidence."""

    kind: str
    words: str


def likely_cause(then: State, now: State) -> Cause:
    """The first cause that the evidence bears out. Outputs come first, since nothing else matters where they are wrong;
    then what is counted, which has no noise; then what took longer."""
    times = (explain(then, now) for explain in (_after, _reference, _times))
    cause = next(filter(None, chain(_explain_outputs(then, now), _explain_counts(then, now), times)), None)
    if cause is not None:
        return cause if cause.kind not in COUNTED else _weigh(cause, then, now)
    if abs(now.step_ms / then.step_ms - 1) >= FEW:
        changed = f"a step takes {change(then.step_ms, now.step_ms)}"
        return Cause(
            "not profiled", f"{changed}; the cause is unknown without a step profile of both states: record again"
        )
    return Cause("nothing", "a step takes as long as before")


def _weigh(counted: Cause, then: State, now: State) -> Cause:
    """Keeps a cause from counters, unless kernels with unchanged counts explain nearly all of the longer step: then the
    kernels come first. Operators are named behind their changed number: their times under the profiler are coarse."""
    longer_ms = now.step_ms - then.step_ms
    found = account(then, now)
    if found is None or longer_ms < FEW * then.step_ms:
        return counted
    as_often = [move for move in list_changed_parts(then, now) if abs(move.count) < ONE]
    same_kernels_ms = sum(move.ms for move in as_often if move.is_kernel)
    if longer_ms - same_kernels_ms >= SOME * longer_ms:
        return counted
    times = _times(then, now)
    if times is None:
        return counted
    first, second = (counted, times) if counted.kind == OPERATORS else (times, counted)
    return Cause(first.kind, f"{first.words}; besides, {second.words}")


def _explain_outputs(then: State, now: State) -> Iterator[Cause]:
    if now.wrong is not None and now.resembles == "step before":
        yield Cause("stale output", "it returns the output of the step before")
    elif now.wrong is not None and now.resembles == "some rows":
        yield Cause("work left out", "only some rows of an output are right: work was left out")
    elif now.wrong is not None:
        yield Cause("wrong output", now.wrong)
    if now.more(then, "grown_bytes") >= 1:
        kept = now.more(then, "grown_bytes") / 1e6
        yield Cause("leak", f"every step keeps {kept:.3g} MB more of device memory")


def _explain_counts(then: State, now: State) -> Iterator[Cause]:
    """Yields the causes by the counters, an engagement among them."""
    against_its_reference = then.reference_ms is None and now.reference_ms is not None
    if against_its_reference and not now.not_engaged and now.step_ms <= (1 - FEW) * then.step_ms:
        # A side that is faster than its reference may copy or launch more: that made nothing slower.
        words = f"a step takes {units.percent(1 - now.step_ms / then.step_ms)} less than the reference's"
        yield Cause("left to gain", f"{words}; {units.milliseconds(now.step_ms)} remain")
    if now.more(then, "graph_launches") <= -ONE:
        graphs, kernels = (_describe_counter(then, now, name) for name in ("graph_launches", "kernel_launches"))
        launches = f"{graphs} graph launches and {kernels} kernel launches per step"
        yield Cause("no graph", f"a CUDA graph is launched no more: {launches}")
    if copies := [name for name in COPIES if now.more(then, name) >= ONE]:
        words = " and ".join(f"{_describe_counter(then, now, name)} {name.replace('_', ' ')}" for name in copies)
        yield Cause("copies", f"there are more copies: {words} per step")
    if now.more(then, "pageable_copies") >= ONE:
        words = _describe_counter(then, now, "pageable_copies")
        yield Cause("pageable copies", f"copies go through pageable memory: {words} per step")
    if now.not_engaged:
        yield Cause("not engaged", f"the optimization did not happen: {now.not_engaged}")
    if now.more(then, "synchronizing_calls") >= ONE:
        yield Cause("synchronization", _describe_waits(then, now))
    if now.more(then, "engine_layers") >= 1 and then.profile and now.profile:
        gone, new = list_changed_layers(then.profile, now.profile)
        first = f": first of all, {gone[0]} became {' and '.join(new[:MOST_PIECES])}" if gone and new else ""
        layers = _describe_counter(then, now, "engine_layers")
        yield Cause("unfused layers", f"the engine has more layers, {layers}{first}")
    if now.more(then, "kernels") >= ONE:
        yield Cause("more kernels", _describe_kernels(then, now))
    if not now.on_gpu and (operators := _describe_operators(then, now)):
        yield Cause(OPERATORS, operators)


def _describe_waits(then: State, now: State) -> str:
    calls = _describe_counter(then, now, "synchronizing_calls")
    words = f"the host waits for the device more often: {calls} calls per step"
    if then.profile is None or now.profile is None:
        return words
    before = then.profile.waits
    more = {name: count - before.get(name, NOTHING)[0] for name, (count, _) in now.profile.waits.items()}
    most = max(more, key=more.__getitem__, default="")
    return f"{words}, more of them in {most}" if more.get(most, 0.0) >= ONE else words


def _describe_kernels(then: State, now: State) -> str:
    words = f"more kernels run: {_describe_counter(then, now, 'kernels')} per step"
    more = [move for move in list_changed_parts(then, now) if move.is_kernel and move.count >= ONE]
    if not more:
        return words
    # Libraries take one kernel for another from process to process, so that some come more often and others less.
    wanted = now.more(then, "kernels")
    name = min(more, key=lambda move: abs(move.count - wanted)).name
    return f"{words}, among them {'short ones' if name == OTHERS else shorten_name(name)}"


def _describe_operators(then: State, now: State) -> str:
    """The words about operators that come more or less often; empty where none does, and where threads of a pipeline
    give no whole number in a step."""
    name = "operators"
    counts = [state.counters.get(name, 0.0) for state in (then, now)]
    if not all(counts) or any(count != int(count) for count in counts):
        return ""
    changed = [part for part in list_changed_parts(then, now) if abs(part.count) >= ONE]
    more = now.more(then, name)
    if not more and not changed:
        return ""
    # A longer step with fewer operators has others, and so has a shorter one with more.
    is_slower = now.step_ms > then.step_ms
    kind = "more" if more > 0 and is_slower else "fewer" if more < 0 and not is_slower else "other"
    number = f"{_describe_counter(then, now, name)} per step" if more else f"{counts[1]:g} per step as before"
    named = [f"{shorten_name(part.name)} ({part.count:+g})" for part in changed if part.name != OTHERS]
    among = f", among them {', '.join(named[:MOST_OPERATORS])}" if named else ""
    return f"{kind} operators run: {number}{among}"


def _after(then: State, now: State) -> Cause | None:
    """Device work behind the last step belongs to no step, and is timed with the block."""
    if then.profile is None or now.profile is None:
        return None
    before, after = then.profile.after, now.profile.after
    grown = {name: ms - before.get(name, NOTHING)[1] for name, (_, ms) in after.items()}
    name = max(grown, key=grown.__getitem__, default="")
    longer_ms = now.step_ms - then.step_ms
    more_ms = sum(grown.values()) / now.steps_per_block
    # What was not there at all is a count, without noise. The time to enqueue a step, which it vies with, has some.
    least = MOST if name in before else SOME
    if not grown or longer_ms <= 0 or more_ms < least * longer_ms:
        return None
    share = _share(more_ms, longer_ms)
    most = f"{shorten_name(name)}, {write_signed(grown[name])}"
    words = f"finish() adds device work after the last step: {most} ({share})"
    return Cause("more work after the steps", words)


def _times(then: State, now: State) -> Cause | None:
    found = account(then, now)
    if found is None or abs(now.step_ms / then.step_ms - 1) < FEW:
        return None
    faster = now.step_ms < then.step_ms
    term, ms = (min if faster else max)(found.items(), key=lambda item: item[1])
    share = _share(ms, now.step_ms - then.step_ms)
    return _in_words(term, share, faster, then, now)


def _share(ms: float, whole_ms: float) -> str:
    """`+2.00 ms of +3.00 ms per step`: a part may be more than the whole, where others went the other way."""
    if abs(ms) < (1 + LITTLE) * abs(whole_ms):
        return f"{write_signed(ms)} of {write_signed(whole_ms)} per step"
    return f"{write_signed(ms)} per step, and other parts {write_signed(whole_ms - ms)}"


def _reference(then: State, now: State) -> Cause | None:
    """A side that hardly moved is not to blame for a speedup that did."""
    if not (then.reference_ms and now.reference_ms and now.left_by_its_reference(then)):
        return None
    times = _times(then, now)
    step = change(then.step_ms, now.step_ms) if times else "as long as before"
    besides = f"; besides, {times.words}" if times else ""
    reference = change(then.reference_ms, now.reference_ms)
    return Cause("another reference", f"a step takes {step}, and one of the reference {reference}{besides}")


def _in_words(term: str, share: str, faster: bool, then: State, now: State) -> Cause:
    longer, slower = ("less time", "faster") if faster else ("longer", "slower")
    if term in ("kernels", "operators"):
        most = next((move for move in list_changed_parts(then, now) if (move.ms < 0) == faster), None)
        words = f", most of all {shorten_name(most.name)} ({write_signed(most.ms)} under the profiler)" if most else ""
        return Cause("slower kernels", f"{term} take {longer}{words}: {share}")
    if term == "clocks":
        clocks = f"{then.sm_clock_mhz:.0f} -> {now.sm_clock_mhz:.0f} MHz"
        return Cause("clocks", f"the SM clock is {slower}: {clocks} ({share})")
    if term == "copies":
        return Cause("slower copies", f"the same copies take {longer} while no kernel runs ({share})")
    if term == "launch gaps":
        enqueue = " -> ".join(units.milliseconds(state.counters["enqueue_ms"]) for state in (then, now))
        return Cause("launch gaps", f"the host takes {longer} to enqueue a step, {enqueue} ({share})")
    where = "while the device waits" if now.on_gpu else "outside of all operators"
    same = ", with the same calls" if _are_calls_the_same(then, now) else ""
    return Cause("host", f"the host takes {longer} {where}{same} ({share})")


def _are_calls_the_same(then: State, now: State) -> bool:
    """True where both states counted the same calls, each as often."""
    before, after = ({name: state.counters[name] for name in CALLS if name in state.counters} for state in (then, now))
    return bool(before) and before == after


def _describe_counter(then: State, now: State, counter: str) -> str:
    return f"{then.counters[counter]:g} -> {now.counters[counter]:g}"


def list_changed_layers(then: StepProfile, now: StepProfile) -> tuple[list[str], list[str]]:
    """Lists the short names of the engine's layers that are gone, and of those that are new."""
    before, after = {*then.layers}, {*now.layers}
    gone = [shorten_name(name) for name in then.layers if name not in after]
    return gone, [shorten_name(name) for name in now.layers if name not in before]
