"""One case of a session, from its start to its verdicts: functions over its `CaseResult`."""

from __future__ import annotations

import gc
import logging
import math
from contextlib import ExitStack, nullcontext
from dataclasses import replace

from gpugate.errors import (
    SPANS_GPUS,
    CatalogueError,
    GpugateError,
    OptionError,
    SideError,
    SpoiledProcessError,
    skip_reason,
)
from gpugate.explaining.autopsy import explain
from gpugate.judging.actions import Action, Allowed, next_action
from gpugate.judging.evidence import Evidence, gather
from gpugate.judging.machine_state import environment_problem, impossible_rate
from gpugate.judging.rules import decide_by
from gpugate.machine.cores import find_usable_cores
from gpugate.machine.processes import name_left_over
from gpugate.measurement.derived import launch_slowdown, with_ceilings, with_derived
from gpugate.measurement.progress import Progress, Report, silent
from gpugate.measurement.record import Measurement
from gpugate.measurement.settings import SLOWDOWN_ENDED, Settings
from gpugate.report.machine import describe_slow_launches
from gpugate.results.case import CaseResult, Confirmation, Promise, describe_other_reference
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import Mode
from gpugate.results.summary import summarize
from gpugate.results.verdict import CASE_CHECKS, Outcome, Verdict
from gpugate.session.confirm import compare_code, confirm
from gpugate.session.options import AUTO, OFF, Options
from gpugate.session.perf_session import PerfSession
from gpugate.store.codec import from_json, to_json
from gpugate.workload import Case, for_device_class

_LOG = logging.getLogger(__name__)
NEEDS_NOT_SKIPS = "a gate and a recording accept no skip: declare what it needs with Needs, for --allow-missing"
RANKS_ON_CPU_BUDGET_S = 1.0  # of a case whose ranks share the cores of one CPU: its times are not judged
SPOILED = "its reference, and perhaps each later side of this process: run the other cases without it"


def measure_case(session: PerfSession, case: Case, report: Report = silent) -> CaseResult:
    """Measures and judges the case, once per session; a failure becomes its error or its skip."""
    result = session.case_result(case)
    if result.measurement or result.error or result.skipped or result.verdicts:
        return result
    try:
        missing = session.missing(case)
    except GpugateError as error:
        _note_failure(session.options, case, result, error)
    else:
        if missing is not None:
            result.skipped, result.lacking = missing.reason, missing.names
        elif (over := session.doubt.refuse_case(session.elapsed_s)) is not None:
            result.skipped = over
        else:
            session.measuring, worker = case, session.options.worker
            with ExitStack() as stack:
                if worker is not None:
                    stack.enter_context(worker.hold_host(session.needs_host(case)))
                    session.cores = find_usable_cores()
                stack.enter_context(name_left_over(case.id, session.notes))
                _measure(session, case, result, report)
            session.measuring = None
    session.save_case(result)
    return result


def _measure(session: PerfSession, case: Case, result: CaseResult, report: Report) -> None:
    if session.unusable is not None:
        _note_no_times(result, session.unusable)
        return
    session.records.hash_source(case)
    classes = session.environment.device_classes
    result.promise = Promise(
        min_speedup=for_device_class(case.optimization.min_speedup, classes),
        tolerance=case.optimization.tolerated,
        contract=for_device_class(case.optimization.contract, classes),
    )
    result.remembered = session.records.find(case)
    collect_garbage()
    lost = None
    try:
        if session.capture is not None:
            result.skipped = SPANS_GPUS if case.spans_gpus else session.capture(case, session.context(case))
            return
        if not session.result.yardsticks:
            session.probe()
        _say_slow_host(session)
        _measure_until_decided(session, case, result, report)
    except KeyboardInterrupt:
        _drop_measurement(result)  # its confirmations may be missing
        raise
    except BaseException as error:
        from gpugate.measurement.yardsticks import device_problem

        _LOG.debug("measuring %s failed", case.id, exc_info=True)
        _note_failure(session.options, case, result, error)
        lost = device_problem(session.device)
        if lost is not None:
            session.unusable = lost
        else:
            _drop_measurement(result)
            if isinstance(error, SpoiledProcessError):
                session.unusable = f"{case.id} changed {SPOILED}"
    if lost is not None:
        _note_no_times(result, lost)
    elif result.error is not None or result.skipped is not None:
        from gpugate.measurement.sides import release

        release(session.device)  # once more: while the error was on its way it kept what the failed side held


def _say_slow_host(session: PerfSession) -> None:
    """Says once, before the first case with a record is measured, that this host is slower than the recorded one."""
    words = "" if session.said_slow else "".join(describe_slow_launches(session.result))
    if words:
        session.said_slow = True
        session.print_line(f"{words}: longer wall times prove nothing here; promises, bills and duets are judged")


def end_hung(session: PerfSession, error: SideError) -> str:
    """Ends the run with the error of the case that hangs in C code; returns the sentence about it.

    It runs in another thread, when the main one will not come back.
    """
    sentence = str(error)
    if session.measuring is not None:
        result = session.case_result(session.measuring)
        result.error = _error_sentence(error)
        sentence = f"{session.measuring.id}: {result.error}"
        _drop_measurement(result)
        if session.options.worker is not None:  # the controller writes the run
            session.save_case(result)
    session.finish(interrupted=True)
    paths = " and ".join(str(path) for path in session.options.run_paths)
    kept = f"; what was measured is in {paths}" if paths else ""
    return f"{sentence}; it hangs in code that is not Python, so the run ends here{kept}"


def _measure_until_decided(session: PerfSession, case: Case, result: CaseResult, report: Report) -> None:
    """Measures the case, and measures on as `next_action` decides, while there is time for doubt."""
    from gpugate.measurement.sides import release

    has_changed, doubt = session.records.has_changed(case), session.doubt
    doubt.begin_case(has_changed)
    settings = session.plan_settings()
    longer = settings.escalate()
    if case.spans_gpus and case.device_kind == "cpu" and not session.options.update_baselines:
        settings = replace(settings, budget_s=min(settings.budget_s, RANKS_ON_CPU_BUDGET_S))
    result.measurement = measure_here(session, case, settings, report)
    _forget_other_reference(session, result)
    _check_machine(session, result, result.measurement)
    evidence = _judge(session, result)
    allowed = _allow(session, result, result.measurement.wall_s + longer.budget_s, has_changed)
    while (action := next_action(evidence, allowed)) is not Action.STOP:
        if action is Action.PAIRS:
            more = measure_here(session, case, longer, report)
            result.measurement = _as_stored(with_derived(result.measurement.with_more(more), case.size, {}))
            _check_machine(session, result, result.measurement)
        elif action is Action.PROCESS and not doubt.affords(
            result.measurement.wall_s, doubt.find_left_s(session.elapsed_s)
        ):
            result.attempts.append(Confirmation(None, doubt.leave_out(case.id)))
            evidence = _judge(session, result)
            break
        elif action is Action.PROCESS:
            release(session.device)
            count = f"fresh process {len(result.attempts) + 2} of {allowed.processes}"
            report(Progress(case.id, "confirming", count))
            with doubt.spend():
                result.attempts.append(confirm(session, case))
        else:
            result.recorded_code = compare_code(session, case, result, report)
        evidence = _judge(session, result)
    lasts = (result.measurement.lasting_slowdown or math.inf) > SLOWDOWN_ENDED
    if evidence.slowed and lasts and (result.attempts or allowed.processes == 1):
        session.unusable = f"{case.id} slowed {SPOILED}"
    if session.options.explain or any(verdict.needs_autopsy for verdict in result.verdicts):
        try:  # an autopsy decides no verdict, so that its failure is only a note
            entry = session.records.find_entry(case)
            result.autopsy = explain(result, entry.profile if entry is not None else None)
        except Exception as error:
            _LOG.debug("explaining %s failed", case.id, exc_info=True)
            session.notes.add(f"{case.id} was not explained ({type(error).__name__}: {error})")


def _allow(session: PerfSession, result: CaseResult, more_s: float, has_changed: bool) -> Allowed:
    """The measurements of a case that the session allows, after its first one; more pairs take `more_s`.

    A process that is recorded, that measures for another one, or that is the only one takes no further pairs. A case
    without a record is compared only with code that the user names, and every case is compared with that.
    """
    against, looks = session.options.against, session.result.mode is Mode.DEVELOPER
    processes = session.options.deciding_processes
    has_time = session.shared_s is None or not looks or session.doubt.affords_pairs(more_s, session.elapsed_s)
    return Allowed(
        pairs=processes > 1 and has_time,
        processes=processes,
        duet=result.remembered is not None if against == AUTO else against != OFF,
        changed=has_changed or against not in (AUTO, OFF),
    )


def measure_here(session: PerfSession, case: Case, settings: Settings, report: Report) -> Measurement:
    """Measures both sides of the case in this process, and adds what the probes of the machine say about them."""
    from gpugate.measurement.cold_inputs import most_cached_bytes
    from gpugate.measurement.ranks import RankJob, count_ranks
    from gpugate.measurement.run import WorkloadCache, measure

    def add_ceilings(found: Measurement) -> Measurement:
        cache = most_cached_bytes(session.device)
        return with_ceilings(found, case.optimization.dtype, session.device.type, cache, session.result.yardsticks)

    session.cache = session.cache or WorkloadCache()
    proved = session.proofs.recall(case) if settings.prove else ()
    settings = replace(settings, prove=settings.prove and not proved)
    job = RankJob(count_ranks(session.device), session.device) if case.spans_gpus else nullcontext()
    with job as ranks:
        found = measure(case, replace(session.context(case), ranks=ranks), settings, report, session.cache)
    if proved:
        found = replace(found, proofs=proved)
    elif settings.prove:
        try:
            session.proofs.keep(case, found.proofs)
        except OptionError as error:  # what was measured must not be lost by it
            session.notes.add(f"warning: proofs are not remembered: {error}")
    found = add_ceilings(found)
    if found.pairs and impossible_rate(found, summarize(found), case.size):
        session.probe()  # one bad probe makes no side too fast
        found = add_ceilings(found)
    return _as_stored(with_derived(found, case.size, session.result.yardsticks[-1].values))


def _forget_other_reference(session: PerfSession, result: CaseResult) -> None:
    """Drops a record whose reference is not today's one: the case is then one without a record."""
    if result.remembered is None or result.measurement is None:
        return
    then, now = result.remembered.reference_counters, result.measurement.reference_counters
    problem = describe_other_reference(then, now)
    if problem is not None:
        result.remembered = None
        session.notes.add(f"the record of {result.case_id} is of another reference: {problem}; record it again")


def _check_machine(session: PerfSession, result: CaseResult, measurement: Measurement) -> None:
    """Probes the machine after a measurement in this process, and notes what makes its times no evidence."""
    session.probe()
    result.environment_problem = find_environment_problem(session, result, measurement)
    if result.remembered is not None:
        result.launch_slowdown = launch_slowdown(session.result.yardsticks, result.remembered.yardsticks)


def find_environment_problem(session: PerfSession, result: CaseResult, measurement: Measurement) -> str | None:
    """The reason why the times of this measurement are no evidence; None for a machine that is as it was."""
    cores, probes, remembered = find_usable_cores(), session.result.yardsticks, result.remembered
    if cores != session.cores:  # by a side or from outside: nobody can tell
        return f"the cores of this process changed during the run, from {sorted(session.cores)} to {sorted(cores)}"
    if remembered and remembered.match == "exact":
        expected = remembered.yardsticks
    else:
        names = {name for probe in probes for name in probe.values}
        expected = {name: max(probe.values.get(name, 0.0) for probe in probes) for name in names}
    if environment_problem(measurement, probes[-2:], expected) is None:
        return None
    session.probe()  # one bad probe is no sick machine
    return environment_problem(measurement, probes[-1:], expected)


def _judge(session: PerfSession, result: CaseResult) -> Evidence:
    pairs = result.measurement is not None and result.measurement.pairs
    result.summary = result.summarize(result.measurement) if result.measurement and pairs else None
    evidence = gather(result, session.result.mode)
    result.verdicts = decide_by(evidence)
    return evidence


def collect_garbage() -> None:
    """Collects what earlier cases left, and leaves what stays, imports above all, out of each collection of this case.

    Every build is followed by a collection: it took 70 ms for 100,000 objects that had been there before.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _as_stored(found: Measurement) -> Measurement:
    """Rounds the measurement as the file does, so that `gpugate replay` decides the same numbers again."""
    return from_json(Measurement, to_json(found))


def _drop_measurement(result: CaseResult) -> None:
    """Removes the measurement of a case that was interrupted, or that failed."""
    result.measurement, result.summary, result.verdicts, result.attempts = None, None, [], []


def _note_no_times(result: CaseResult, problem: str) -> None:
    """Makes the case ENV_INVALID, since its device was lost, or the process was spoiled."""
    result.error, result.environment_problem = None, problem
    lost = (Reason(ReasonCode.MACHINE_UNFIT, {"problem": problem}),)
    result.verdicts = [Verdict(check, result.case_id, Outcome.ENV_INVALID, lost) for check in CASE_CHECKS]


def _note_failure(options: Options, case: Case, result: CaseResult, error: BaseException) -> None:
    """Makes a failure the skip of the case where a developer's run may skip it, else the error of the case."""
    reason = skip_reason(error)
    if case.optimization.point is not None and isinstance(error, SideError) and error.out_of_memory:
        result.skipped = "out of memory"
    elif reason is None:
        result.error = _error_sentence(error)
    elif options.gate or options.update_baselines:
        result.error = f"{_error_sentence(error)}; {NEEDS_NOT_SKIPS}"
    else:
        skipped = f"{error.side} was skipped while {error.doing}" if isinstance(error, SideError) else "skipped"
        result.skipped = f"{skipped}: {reason}"


def _error_sentence(error: BaseException) -> str:
    if isinstance(error, (CatalogueError, OptionError)):
        return str(error)
    known = error if isinstance(error, SideError) else SideError("the engine", "measuring it", error)
    if known.out_of_memory:
        return f"{known}; free device memory or lower the items per step, the other workloads go on"
    return str(known)
