"""The measurement of one case from beginning to end: outputs, then pairs over several builds, then counters."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

from gpugate.errors import SideError
from gpugate.faults.mutate import mutate
from gpugate.measurement import counters, trace
from gpugate.measurement.cold_inputs import Inputs, check_untouched, exchange_used, make_inputs, new_set, same_form
from gpugate.measurement.collectives import count_collectives
from gpugate.measurement.counters import CountedSide
from gpugate.measurement.device_timer import HostTimer, ReadClock, clock_reader, timer_for
from gpugate.measurement.host_counters import CompilerCounters, CpuCounters, OtherWork
from gpugate.measurement.outputs import (
    Expected,
    check_baseline_unchanged,
    check_same_baseline,
    compare_fresh,
    compare_timed,
    expected_outputs,
    hidden_state_problem,
    outputs_of,
)
from gpugate.measurement.pairing import BothSides, Pairing, build_both, can_repeat, find_slowdown, run_until_refilled
from gpugate.measurement.process_state import keep_process_state
from gpugate.measurement.progress import Doing, Progress, Report, Spent
from gpugate.measurement.ranks import RankedSide
from gpugate.measurement.record import (
    Counters,
    Difference,
    Measurement,
    ProofResult,
    SideCost,
    StepChecks,
    StopReason,
    TimedBuild,
)
from gpugate.measurement.settings import (
    FEWEST_PAIRS,
    FRESH_INPUTS,
    REMEMBERS,
    SLOWDOWN_ENDED,
    SLOWED,
    WARM_UP_S,
    Settings,
)
from gpugate.measurement.sides import BuiltSide, blame, build_side, pause_garbage_collection, release
from gpugate.measurement.speedup import pairs_worth_taking, speedup_of, stop_reason
from gpugate.measurement.step_checks import NewInputs, Tried, block_work_share, check_steps, compare_new
from gpugate.measurement.time_limit import BUILD_SHARE
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.measurement.trace import step_profile
from gpugate.measurement.warm_up import TUNED, least_block_ms, read_each_once, warm_up
from gpugate.statistics.intervals import Estimate
from gpugate.workload import BASELINE, Case, Context, DisprovedError, Tolerance, no_engagement_problem
from gpugate.workload.counter_names import COMPILER_COUNTERS

NEW_FOR_BLOCKS = 8  # new inputs on which the work of a block is measured
REWARM_SHARE = 0.3  # of the warm-up time, for every build after the first: the clock is up already


@dataclass
class WorkloadCache:
    """Outputs and counters of one workload, the last that was measured: its outputs may be large.

    `sides` has the counted sides as they were declared, by name; a side with a fault is not kept.
    """

    _workload: str = ""
    _expected: dict[tuple[object, ...], Expected] = field(default_factory=dict)
    sides: dict[str, CountedSide] = field(default_factory=dict)

    def begin(self, workload: str) -> None:
        """Drops the results of any other workload."""
        if workload != self._workload:
            self._workload, self._expected, self.sides = workload, {}, {}

    def expected_outputs(self, inputs: Inputs, compute: Callable[[], Expected]) -> Expected:
        """Returns the baseline's outputs for inputs of these indices and these checksums; computes new ones."""
        key = inputs.fresh_index, len(inputs.timed), tuple(inputs.checksums.items())
        if key not in self._expected:
            self._expected = {key: compute()}
        return self._expected[key]


@dataclass
class _Run:
    """A running measurement: the plan, the tools, and the results so far."""

    case: Case
    context: Context
    settings: Settings
    report: Report
    inputs: Inputs
    cache: WorkloadCache
    spent: Spent
    expected: Expected | None = None  # None in a duet before its first build
    timer: HostTimer = field(init=False)
    read_clock: ReadClock = field(init=False)
    draw: random.Random = field(init=False)
    cool_down_s: float = 0.0  # of the pairs so far, see `Pairing`
    cpu: tuple[CpuCounters, CpuCounters] = field(default_factory=lambda: (CpuCounters(), CpuCounters()))
    other_work: OtherWork = field(default_factory=OtherWork)
    deadline_s: float = math.inf
    rebuild_s: float = 0.0  # what the next build and its shorter warm-up will take
    tuned: bool = False  # some side took long at the first sight of an input set
    # The results.
    builds: list[TimedBuild] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    proofs: list[ProofResult] = field(default_factory=list)
    half_widths: list[float] = field(default_factory=list)
    costs: list[tuple[SideCost, SideCost]] = field(default_factory=list)  # of each build
    compilers: list[tuple[CompilerCounters, CompilerCounters]] = field(default_factory=list)  # likewise
    alone: tuple[int, float] | None = None  # the reference before the optimized side was built: steps, ms of a step
    reference_slowdown: float | None = None
    lasting_slowdown: float | None = None
    same_bits: bool = False
    inert: bool = False
    baseline_unchanged: bool = False  # True once a reference built after the optimization gave the baseline's outputs
    not_engaged: str | None = None
    step_checks: StepChecks | None = None
    accounts_for_itself: bool = False
    counted: tuple[CountedSide, CountedSide] | None = None  # None: outputs were not comparable, or nothing is counted

    def __post_init__(self) -> None:
        self.timer = timer_for(self.context.device, self.case.workload.timing)
        self.read_clock, self.draw = clock_reader(self.context.device), _draw(self.settings, self.case.id)

    @property
    def seconds_left(self) -> float:
        return self.deadline_s - perf_counter()

    @property
    def comparable(self) -> bool:
        return all(difference.problem is None for difference in self.differences)

    @property
    def pairs(self) -> int:
        return sum(len(build.pairs) for build in self.builds)

    @property
    def steps_ms(self) -> list[float]:
        """The median times per step of the reference and the optimized side."""
        pairs = [pair for build in self.builds for pair in build.pairs]
        times_ms = [pair.reference_ms for pair in pairs], [pair.optimized_ms for pair in pairs]
        return [*map(statistics.median, times_ms)]

    def exchange(self, side: BuiltSide) -> None:
        """Exchanges inputs between two pairs: no side reads the same content at the same address for long."""
        count = len(self.inputs.timed)
        last = range(1, min(count, max(2, side.steps_per_block)) + 1)
        exchange_used(self.inputs, [(side.next_input - back) % count for back in last], self.draw)

    def report_progress(self, doing: Doing, side: str, taking: TimedBuild | None = None) -> None:
        self.spent.begin(doing)
        builds = [*self.builds, *([taking] if taking else [])]
        self.report(
            Progress(
                case_id=self.case.id,
                doing=doing,
                side=side,
                build=len(self.builds) + 1,
                pairs=sum(len(build.pairs) for build in builds),
                speedup=_estimate(builds),
                seconds_left=self.seconds_left if math.isfinite(self.deadline_s) else None,
            )
        )


@keep_process_state()
def measure(
    case: Case, context: Context, settings: Settings, report: Report, cache: WorkloadCache | None = None
) -> Measurement:
    """Measures `case` on `context.device`.

    `cache` has the results that other cases of the workload share in this process; new ones are added. Raises
    SideError, naming the side, when a side cannot be built or run, writes to its inputs or to the other's model, or
    cannot have the fault in the settings. An output that is not comparable (NaN, another shape or dtype) ends the
    measurement without samples.
    """
    spent = Spent()
    report(Progress(case.id, "preparing"))
    cache = cache or WorkloadCache()
    cache.begin(case.workload.name)
    if settings.fault is not None:
        case = mutate(case, settings.fault, context.device)
    try:
        with blame(f"inputs of {case.workload.name}", "being made", BUILD_SHARE):
            inputs = make_inputs(case.workload, context, FRESH_INPUTS, _draw(settings, case.workload.name))
        expected = None  # a duet computes them by its first build
        if not settings.duet:
            draw = _draw(settings, case.id)
            compute = partial(expected_outputs, case, context, inputs, settings.budget_s, draw)
            expected = cache.expected_outputs(inputs, compute)
        run = _Run(case, context, settings, report, inputs, cache, spent, expected)
        if settings.prove:
            run.proofs += run_proofs(case, context, lambda proof: run.report_progress("proving", proof))
        if case.size.whole_run_items is not None:
            # The timed start-up of either side is that of a warm process. The baseline's outputs were computed before,
            # and a proof has built the optimized side.
            built = {BASELINE, case.optimization.name} if run.proofs else {BASELINE}
            for name in sorted({case.reference_name, case.optimization.name} - built):
                run.report_progress("building", name)
                build_side(name, case.builder(name), context, inputs.timed[0], inputs.restore).close()
                release(context.device)
        stopped_because = _sample(run)
        if expected is not None and not run.baseline_unchanged:
            check_baseline_unchanged(case, context, inputs, expected)
        if run.alone is not None and run.reference_slowdown is not None and run.reference_slowdown > SLOWED:
            run.lasting_slowdown = _find_lasting_slowdown(run, run.alone)
        return _record(run, stopped_because)
    finally:
        release(context.device)


def _draw(settings: Settings, what: str) -> random.Random:
    return random.Random(f"{settings.seed} {what}")  # noqa: S311  # for repeatability, not for secrets


def run_proofs(case: Case, context: Context, report: Callable[[str], None]) -> list[ProofResult]:
    """Runs every proof of the optimization, in order, each with the suite's default flags, and returns the results.

    Raises SideError, naming the optimization and the proof, when a proof cannot be run at all.
    """
    found = []
    for proof in case.optimization.proofs:
        report(proof.name)
        TorchFlags().without_tf32().apply()  # outputs are compared, and nothing is timed
        with blame(case.optimization.name, f"showing {proof.name}", BUILD_SHARE):
            try:
                words = proof.show(context)
                if not isinstance(words, str):
                    raise TypeError(f"show() returned {words!r}: return its result in words, as a text")
                result = ProofResult(proof.name, words)
            except DisprovedError as error:
                result = ProofResult(proof.name, problem=str(error))
        found.append(result)
        release(context.device)
    return found


def _sample(run: _Run) -> StopReason:
    """Builds both sides anew, and takes pairs, until the interval, the noise or the budget ends the sampling."""
    while True:
        run.report_progress("building", run.case.optimization.name)
        # The first build begins with the reference: an optimization that edits a shared model is then found and named.
        reference_first = len(run.builds) % 2 == 0
        alone = run.expected is not None and not run.builds
        time_ms = run.timer.time_ms if alone else None
        both = build_both(run.case, run.context, run.inputs, reference_first, time_ms)
        try:
            if alone:
                run.alone = both.reference_alone
            if not run.builds:
                _begin(run, both)
            with run.other_work.measure():
                stopped = _sample_build(run, both) if run.comparable else "outputs not comparable"
            run.costs.append((both.reference.cost, both.optimized.cost))
            run.compilers.append((both.reference.compiler, both.optimized.compiler))
            if stopped is not None:
                _finish(run, both)
                return stopped
        finally:
            both.close()


def _find_lasting_slowdown(run: _Run, alone: tuple[int, float]) -> float | None:
    """Measures the time of a step of a reference that is built after both sides are closed, over its time `alone`.

    A ratio near 1 means that the slowdown ended with the sides, as that of worker processes does. None where this
    reference cannot be built or run.
    """
    name, inputs, time_ms = run.case.reference_name, run.inputs, run.timer.time_ms
    run.report_progress("building", name)
    with suppress(SideError):
        builder = run.case.builder(name)
        with closing(build_side(name, builder, run.context, inputs.timed[0], inputs.restore)) as reference:
            return find_slowdown(reference, lambda: None, inputs.fresh, time_ms, alone, SLOWDOWN_ENDED)
    return None


def _begin(run: _Run, both: BothSides) -> None:
    """Compares outputs of the first build, and starts the budget when building and comparing are done."""
    run.report_progress("checking", both.optimized.name)
    if run.settings.duet:
        run.expected = outputs_of(both.reference, run.inputs)
    assert run.expected is not None  # noqa: S101  # for mypy
    found, run.same_bits = compare_fresh(both, run.inputs, run.expected)
    run.differences += found
    tolerated = run.case.optimization.tolerated.relative_l2
    if run.comparable and any(one.relative_l2 > tolerated or one.unequal for one in found):
        problem = hidden_state_problem(both.optimized, run.inputs, tolerated)
        run.differences = [replace(one, problem=problem) for one in run.differences]
    run.deadline_s = perf_counter() + run.settings.budget_s


def _sample_build(run: _Run, both: BothSides) -> StopReason | None:
    """Warms both sides up and takes pairs; returns None where a further build shall follow."""
    share = REWARM_SHARE if run.builds else 1.0
    kind = run.context.device.type
    started, read_s = perf_counter(), 0.0
    # A later build repeats this where some side took long at the first sight of a set in the first one.
    reads, limit_s = run.tuned or not run.builds, math.inf if run.inputs.ragged else run.settings.budget_s
    for side in (both.reference, both.optimized):
        run.report_progress("warming up", side.name)
        timed, time_ms = run.inputs.timed, run.timer.time_ms
        sights_ms = read_each_once(side, timed, time_ms, limit_s) if reads else []
        least_ms, seconds = least_block_ms(side), share * WARM_UP_S[kind]
        later_ms = warm_up(side, timed, time_ms, least_ms, seconds, run.inputs.ragged) * len(sights_ms)
        if reads and (run.inputs.ragged or sum(sights_ms) > TUNED * later_ms):
            run.tuned = True
            side.cost = replace(side.cost, first_sights_s=max(0.0, sum(sights_ms) - later_ms) / 1e3)
        read_s += sum(sights_ms) / 1e3
        check_untouched(run.inputs, side.name)  # before the other side runs, so that the error names the right side
    warm_s = perf_counter() - started - read_s
    run.rebuild_s = both.build_s + warm_s * REWARM_SHARE / share + (read_s if run.tuned else 0.0)
    if not run.builds:
        run.deadline_s += read_s  # as the first build, it comes on top of the budget
    first = run.draw.random() < 0.5
    pairing = Pairing(both, run.inputs.timed, run.timer, run.read_clock, first, run.cool_down_s, run.cpu, run.exchange)
    pairing.stop_idle = run.settings.duet
    try:
        pairing.settle()
        stopped = _take_pairs(run, pairing)
    finally:
        pairing.end_turns()
    run.cool_down_s = pairing.cool_down_s
    if pairing.pairs:  # none where the budget ended during the warm-up
        run.builds.append(pairing.result())
    if run.expected is not None and not run.settings.duet:
        run.differences += compare_timed(both.optimized, run.inputs, run.expected, run.timer.time_ms, run.draw)
    check_untouched(run.inputs, both.optimized.name)
    both.check_apart()
    return stopped


def _take_pairs(run: _Run, pairing: Pairing) -> StopReason | None:
    settings = run.settings

    def go_on() -> bool:
        run.report_progress("measuring", pairing.both.optimized.name, pairing.result())
        return run.seconds_left > 0 or run.pairs + len(pairing.pairs) < FEWEST_PAIRS

    while True:
        started = perf_counter()
        pairing.take(settings.pairs_per_build, go_on)
        round_s = perf_counter() - started  # a further build takes at least so long
        pairing.take(_more_pairs(run, pairing, round_s), go_on)
        estimate = _estimate([*run.builds, pairing.result()])
        run.half_widths.append(estimate.half_width if estimate else math.inf)
        pairs = run.pairs + len(pairing.pairs)
        # Where building is dear (compilation), the budget allows only more pairs of the same build. The fewest pairs
        # are of two builds, unless one takes the whole budget: eight of one build leave an interval half as wide again.
        # So a case may take twice its budget.
        in_budget = run.rebuild_s + round_s < run.seconds_left
        affordable = in_budget or (pairs < FEWEST_PAIRS and run.rebuild_s < settings.budget_s)
        missing = settings.min_builds - len(run.builds) - 1 if affordable else 0
        wanted = math.inf if settings.planned else settings.half_width
        stopped = stop_reason(run.half_widths, pairs, missing, run.seconds_left, wanted)
        if stopped is not None or affordable:
            return stopped


def _more_pairs(run: _Run, pairing: Pairing, round_s: float) -> int:
    """Computes the further pairs that this build is worth, within a budget that also pays for the missing builds.

    Where pairs are planned, a build takes those of later builds that are too dear.
    """
    if run.settings.planned:
        planned = run.settings.pairs_per_build * run.settings.min_builds - run.pairs - len(pairing.pairs)
        return planned if run.rebuild_s + round_s >= run.seconds_left else 0
    ratios = [build.log_ratios for build in (*run.builds, pairing.result())]
    pair_s = round_s / run.settings.pairs_per_build
    worth = pairs_worth_taking(ratios, run.rebuild_s, pair_s) - len(pairing.pairs)
    later = max(0, run.settings.min_builds - len(run.builds) - 1)
    share_s = (run.seconds_left - later * (run.rebuild_s + round_s)) / (later + 1)
    return max(0, min(worth, int(share_s / pair_s)))


def _estimate(builds: Sequence[TimedBuild]) -> Estimate | None:
    return speedup_of(builds) if any(build.pairs for build in builds) else None


def _finish(run: _Run, both: BothSides) -> None:
    """Runs the checking and counting passes over the last build, after all times, and checks engagement and state."""
    if not (run.settings.count and run.comparable) or run.expected is None:
        return
    if not run.settings.duet:
        run.report_progress("checking", both.optimized.name)
        if run.alone is not None:
            timed, time_ms = run.inputs.timed, run.timer.time_ms
            run_other = partial(run_until_refilled, both.optimized, timed, time_ms)
            run.reference_slowdown = find_slowdown(both.reference, run_other, run.inputs.fresh, time_ms, run.alone)
        run.step_checks = _check_steps(run, both, run.expected)
    run.report_progress("counting", both.optimized.name)
    theirs, ours = _count(run, both)
    run.report_progress("checking", both.optimized.name)
    run.inert = run.same_bits and theirs.same_work(ours)
    run.accounts_for_itself = both.optimized.side.engaged is not no_engagement_problem
    at_limit = (build.limit_problem for _, build in run.compilers)
    run.not_engaged = both.optimized.why_not_engaged() or next(filter(None, at_limit), None)
    run.counted = (theirs, ours)
    check_untouched(run.inputs, both.optimized.name)
    both.check_apart()
    if run.case.reference_name == BASELINE and not both.reference_built_first:
        check_same_baseline(run.case, both.reference, run.inputs, run.expected)
        run.baseline_unchanged = True


def _check_steps(run: _Run, both: BothSides, expected: Expected) -> StepChecks:
    """Runs the checking passes of the optimized side, before the counting pass."""
    side, budget_s, timed = both.optimized, run.settings.budget_s, run.inputs.timed
    step_ms = run.steps_ms[1]
    with pause_garbage_collection():
        checks = check_steps(side, run.inputs, expected, run.case.optimization.tolerated, budget_s, step_ms, run.draw)
        # An output in memory of its own was compared already; only overwritten outputs need this ratio.
        new = _new_inputs(run, both, step_ms)
        tried = None if new is None else new.try_on(side)
        if checks.overwritten or (tried is not None and tried.overwritten):
            given = timed if new is None else [new.make(number) for number in range(NEW_FOR_BLOCKS)]
            checks = replace(checks, block_share=block_work_share(side, given, budget_s, step_ms))
            side.next_input = 0  # among the timed inputs again
        return checks if new is None or tried is None else _compare_new_inputs(run, both, new, tried, checks)


def _new_inputs(run: _Run, both: BothSides, step_ms: float) -> NewInputs | None:
    """Returns the source of new inputs; None where a side reads ahead, since its steps do not wait for their input."""
    if not (can_repeat(both.reference) and can_repeat(both.optimized)):
        return None

    def make_input(number: int) -> Any:
        TorchFlags().apply()
        with blame(f"inputs of {run.case.workload.name}", "being made"):
            return new_set(run.case.workload, run.context, run.inputs, number)

    if not same_form(make_input(0), run.inputs.timed[0]):
        return None  # another shape causes other work: compilation, autotuning
    return NewInputs(make_input, run.inputs.timed, run.timer.time_ms, step_ms, run.draw)


def _compare_new_inputs(run: _Run, both: BothSides, new: NewInputs, tried: Tried, checks: StepChecks) -> StepChecks:
    """Adds `StepChecks.new_input_ratio` and the outputs on new inputs, compared with the reference's."""
    ratio = tried.ratio
    if ratio > REMEMBERS:
        # The reference's ratio is the cost of the first use of an input for a side that keeps no outputs.
        ratio /= max(1.0, new.try_on(both.reference).ratio)
    wanted = [(output, both.reference.output_for(given, expected=True)) for given, output in tried.pairs]
    found = compare_new(wanted, _widest_tolerance(run.case))
    return replace(checks.with_new(found), new_input_ratio=ratio)


def _widest_tolerance(case: Case) -> Tolerance:
    """Merges the tolerances of both sides: each may differ from the baseline by its own."""
    own = case.optimization.tolerated
    if case.reference_name == BASELINE:
        return own
    other = case.workload.optimization(case.reference_name).tolerated
    shares = own.equal_share, other.equal_share
    equal_share = None if None in shares else min(share for share in shares if share is not None)
    return replace(own, relative_l2=max(own.relative_l2, other.relative_l2), equal_share=equal_share)


def _fill_peak(side: BuiltSide, costs: Sequence[SideCost]) -> None:
    """Gives a side whose peak of memory is not known the largest one of its other builds."""
    if side.cost.peak_bytes is None:
        known = [cost.peak_bytes for cost in costs if cost.peak_bytes is not None]
        side.cost = replace(side.cost, peak_bytes=max(known, default=None))


def _count(run: _Run, both: BothSides) -> tuple[CountedSide, CountedSide]:
    """Counts the reference, which several cases share, once in a process, and the optimized side always."""
    reference, optimized, counted = both.reference, both.optimized, run.cache.sides
    for side, costs in zip((reference, optimized), zip(*run.costs, strict=True), strict=True):
        _fill_peak(side, costs)
    sides = [optimized] if reference.name in counted else [reference, optimized]
    inputs, steps_ms = run.inputs.timed, run.steps_ms
    steps = counters.steps_worth_counting((reference, optimized), steps_ms)
    wanted = slice(-len(sides), None)
    with pause_garbage_collection():
        activities = counters.count(sides, inputs, steps[wanted])
        for side, activity, step_ms in zip(sides, activities, steps_ms[wanted], strict=True):
            layers, signature = side.list_layers(), trace.signature(activity)
            profile = replace(step_profile(activity), layers=layers)
            if run.context.device.type == "cuda":
                run.report_progress("watching", side.name)
                of_side = counters.collect(side, activity, inputs, run.timer, step_ms)
                side.await_refill(step_ms)
            else:
                of_side = {"operators": len(activity.operators) / activity.steps}
            if isinstance(side.side, RankedSide):
                of_side |= count_collectives(side, side.side.job, inputs)
            if layers:
                of_side |= {"engine_layers": float(len(layers)), "autotuned": 1.0}
            counted[side.name] = CountedSide(of_side, profile, signature)
    ours = counted[optimized.name]
    if run.settings.fault is not None:
        del counted[optimized.name]  # these counters are of the side with the fault, not of the declared side
    return counted[reference.name], ours


def _all_counters(run: _Run, side: int) -> Counters:
    """Merges the counters of the counting pass and of the timed blocks; `side` is 0 for the reference."""
    if run.settings.count and run.counted is None:
        return {}
    counted = run.counted[side].counters if run.counted else {}
    compiled = [build[side].counters() for build in run.compilers]
    most = {name: max(one[name] for one in compiled) for name in COMPILER_COUNTERS if compiled}
    on_gpu = run.context.device.type == "cuda"
    compile_s = max((build[side].compile_s for build in run.compilers), default=0.0)
    if on_gpu and compile_s:
        most["compile_s"] = compile_s
    if on_gpu and any(build[side].is_autotuned for build in run.compilers):
        most["autotuned"] = 1.0
    cores, throttled = run.other_work.cores, run.other_work.throttled
    # Under a quota, this process could not have used the cores of others.
    others = {"other_cores": cores} if throttled is None else {"throttled_periods": throttled}
    others = {name: value for name, value in others.items() if value is not None}
    return {**counted, **most, **run.cpu[side].per_step(on_gpu), **others}


def _record(run: _Run, stopped_because: StopReason) -> Measurement:
    ratios, spent_s = sorted(run.timer.event_host_ratios), run.spent.seconds()
    # In a duet the first side to be built loads the libraries, too; else the baseline was built before both sides.
    of_sides = zip(*(run.costs if run.settings.duet else run.costs[:1]), strict=True)
    reference_cost, optimized_cost = map(SideCost.lowest, of_sides)
    return Measurement(
        case_id=run.case.id,
        instances=tuple(run.builds),
        stopped_because=stopped_because,
        differences=tuple(run.differences),
        proofs=tuple(run.proofs),
        reference_cost=reference_cost,
        optimized_cost=optimized_cost,
        reference_counters=_all_counters(run, 0),
        optimized_counters=_all_counters(run, 1),
        reference_profile=run.counted[0].profile if run.counted else None,
        optimized_profile=run.counted[1].profile if run.counted else None,
        step_checks=run.step_checks,
        accounts_for_itself=run.accounts_for_itself,
        not_engaged=run.not_engaged,
        inert=run.inert,
        counters_missing=None if run.context.device.type == "cuda" else counters.NOT_COUNTED,
        cpu_missing=next(filter(None, (cpu.problem for cpu in run.cpu)), None),
        event_host_ratio=ratios[len(ratios) // 4] if ratios else None,  # half of the blocks are of one side
        timer=run.timer.name,
        seed=run.inputs.fresh_index,
        reference_slowdown=run.reference_slowdown,
        lasting_slowdown=run.lasting_slowdown,
        wall_s=round(sum(spent_s.values()), 3),
        spent_s=spent_s,
    )
