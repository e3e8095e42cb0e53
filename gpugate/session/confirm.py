"""Second opinions about a case: fresh processes that measure it again, and duets with the code of its record."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.catalogue import catalogue
from gpugate.errors import SPANS_GPUS, CompareError, FreshProcessError, GpugateError
from gpugate.machine.children import run_module
from gpugate.measurement.progress import Progress, Report
from gpugate.results.case import CaseResult, Confirmation
from gpugate.results.changes import SOURCE_CHANGED
from gpugate.results.duet import DuetProcess, RecordedCode
from gpugate.results.run import Provenance, RunResult
from gpugate.session.duets import DuetPlan, measure_duets
from gpugate.session.options import AUTO, MEASURE
from gpugate.store import run_file
from gpugate.store.provenance import find_commit_with, is_unchanged
from gpugate.store.version import Version, check_out, find_repository, git, suggest_commit
from gpugate.units import SHORT_COMMIT
from gpugate.workload import Case

if TYPE_CHECKING:
    from gpugate.session.perf_session import PerfSession

FRESH_PROCESS_S = 900.0  # within which one case is measured, its compilation or engine included; a hung one is killed


def run_fresh(
    session: PerfSession, node_ids: Sequence[str], json_path: Path, timeout_s: float | None = None
) -> RunResult:
    """Runs `node_ids` in one child, which writes its run to `json_path` and its output beside it, as `.log`.

    The child compares with no record, starts no confirmation of its own, and leaves the proofs to this process. Raises
    FreshProcessError, with the end of the child's output, where the child fails or does not end within `timeout_s`.
    """
    fault, budget_s = session.options.fault, session.plan_settings().budget_s
    words = [*node_ids, *repeat_options(session), "--perf-budget", str(budget_s)]
    words += [f"--perf-mutate={fault}"] if fault else []
    words += [f"--perf-json={json_path}"]
    log = json_path.with_suffix(".log")
    ended = run_module("pytest", words, MEASURE, timeout_s, folder=session.root, log_path=log)
    if ended.status not in (0, 1) or not json_path.exists():
        raise FreshProcessError(ended.cause, "\n".join(ended.last_lines()))
    return run_file.read(json_path)


def repeat_options(session: PerfSession) -> list[str]:
    """The arguments of pytest in a child that measures as this process does. Node ids are relative to the project; the
    plugin may have come by `-p` alone."""
    words = [f"--rootdir={session.root}", "-q", "-p", "gpugate.plugin", "-p", "no:cacheprovider"]
    words += ["--perf-device", str(session.device), "-o", f"perf_step_timeout={session.options.step_timeout_s}"]
    words += [f"--perf-baselines={session.options.baselines_path}"]
    return [*words, *(f"--perf-set={name}={value}" for name, value in session.options.settings.items())]


def confirm(session: PerfSession, case: Case) -> Confirmation:
    """Measures the case in a fresh process, while this one waits."""
    with tempfile.TemporaryDirectory(prefix="gpugate-attempt-") as folder:
        try:
            timeout_s = FRESH_PROCESS_S + 10 * session.plan_settings().budget_s
            run = run_fresh(session, [session.node_ids[case.id]], Path(folder) / "run.json", timeout_s)
            found = run.cases[case.id]
        except FreshProcessError as error:
            return Confirmation(None, str(error))
        except (GpugateError, OSError, LookupError) as error:  # what this process measured must not be lost by it
            return Confirmation(None, f"a fresh process gave no result ({type(error).__name__}: {error})")
    return Confirmation(found.measurement, found.error or found.skipped or found.environment_problem)


def choose_ref(against: str, recorded: Provenance | None, project: Path) -> str:
    """The git ref to compare with: the recorded commit, else one with the recorded files. Raises CompareError."""
    if against != AUTO:
        return against
    if recorded is None or recorded.commit is None:
        raise CompareError(
            "the record does not contain its commit: give --against REF, or commit the code and record again"
        )
    is_there = git(project, "cat-file", "-e", f"{recorded.commit}^{{commit}}") is not None
    found = find_commit_with(recorded.files or (), project) if recorded.changes or not is_there else recorded.commit
    if found is not None:
        return found
    name, branch = recorded.commit[:SHORT_COMMIT], f" of branch {recorded.branch}" if recorded.branch else ""
    find_repository(project, f"the recorded commit {name} is not found", "gate in a clone that git reads")
    problem = f"the recorded commit {name}{branch} is not in this clone"
    step = "a squash or rebase drops it; record on the default branch, or give --against REF"
    if recorded.changes is not None:
        problem = f"the record is of {name} with uncommitted changes, and no commit here has the recorded files"
        step = "commit first and record again, or give --against REF"
    raise CompareError(f"{problem}: {suggest_commit(project, step)}")


def compare_code(session: PerfSession, case: Case, result: CaseResult, report: Report) -> RecordedCode:
    """Compares the code of the case with that of its record, where both differ or an alarm is to be explained.

    The processes also measure the duets of later cases that changed alike, as many as have time.
    """
    if case.spans_gpus:
        return RecordedCode("", problem=SPANS_GPUS)
    provenance, doubt = _find_origin(session, case), session.doubt
    measured_s = result.duration_s / len(result.measurements)
    left_s, spent_s = doubt.find_duet_s(session.elapsed_s, measured_s), doubt.spent_s
    try:
        ref = choose_ref(session.options.against, provenance, session.root)
        if session.options.fault is None and is_unchanged(session.root, ref, session.options.result_paths):
            code = RecordedCode(ref, unchanged=True)
        elif case.id in session.duets:
            code = session.duets[case.id]
        elif not doubt.affords(measured_s, left_s):
            code = RecordedCode("", problem=doubt.leave_out(case.id))
        else:
            case_ids = [case.id, *_find_alike(session, provenance)][: doubt.count_duets(measured_s, left_s)]
            with doubt.spend():
                session.duets |= _measure_code(session, case_ids, ref, report, left_s)
            code = session.duets.get(case.id) or RecordedCode("", problem="no process of the duet measured it")
    except (CompareError, OSError) as error:
        code = RecordedCode("", problem=str(error))
        if doubt.spent_s - spent_s >= left_s:  # cut off
            doubt.leave_out(case.id)
    return replace(code, machine_changes=_list_machine_changes(provenance, session.result.provenance, result))


def _find_origin(session: PerfSession, case: Case) -> Provenance | None:
    """The provenance of the record of the case."""
    record = session.records.find_record(case)
    return record.provenance if record else None


def _find_alike(session: PerfSession, origin: Provenance | None) -> list[str]:
    """The cases that are still to be measured, whose source changed since a record of this origin. A worker does not
    know which of them are its own."""
    own = session.node_ids.keys() - session.result.cases.keys() if session.options.worker is None else ()
    cases = [case for case in catalogue.cases() if case.id in own and session.can_measure(case) and not case.spans_gpus]
    return [case.id for case in cases if session.records.has_changed(case) and _find_origin(session, case) == origin]


def _measure_code(
    session: PerfSession, case_ids: Sequence[str], ref: str, report: Report, limit_s: float
) -> dict[str, RecordedCode]:
    """Measures the duets of the cases with the version `ref`, in fresh processes while this one waits, for at most
    `limit_s`.

    Raises CompareError where the version cannot be checked out, driven or measured.
    """
    from gpugate.measurement.sides import release

    release(session.device)
    options, known, node_ids = session.options, session.worktrees, (session.node_ids[name] for name in case_ids)
    if ref not in known:
        fork = None if options.against == AUTO else "HEAD"
        known[ref] = session.closing.enter_context(check_out(ref, session.root, fork))
    base = known[ref]
    head = Version(".", session.root)
    words = [*dict.fromkeys(node_ids), *repeat_options(session)]
    plan = DuetPlan(str(base.root), case_ids=tuple(case_ids), fault=options.fault, project=str(head.root))
    taken = measure_duets(
        plan,
        head,
        words,
        print_line=lambda line: report(Progress(case_ids[0], "comparing", line)),
        limit_s=limit_s,
    )
    found = {name: _read_code(name, base.commit or ref, ref, taken) for name in case_ids}
    return {name: code for name, code in found.items() if code is not None}


def _read_code(case_id: str, commit: str, ref: str, taken: Sequence[DuetProcess]) -> RecordedCode | None:
    """The comparison of one of the cases of these processes; None where no process had it."""
    problems = [one.problems[case_id] for one in taken if case_id in one.problems]
    problems += [f"{case_id} is not in {ref}" for one in taken if case_id in one.added]
    own = tuple(
        replace(one, wanted=(case_id,), measured={case_id: one.measured[case_id]}, problems={}, added=(), removed=())
        for one in taken
        if case_id in one.measured
    )
    return RecordedCode(commit, processes=own, problem=next(iter(problems), None)) if own or problems else None


def _list_machine_changes(recorded: Provenance | None, now: Provenance | None, result: CaseResult) -> tuple[str, ...]:
    remembered = result.remembered
    found = [text for text in (remembered.differences if remembered else ()) if text != SOURCE_CHANGED]
    if recorded is not None and now is not None:
        found += ["another host"] if recorded.host != now.host else []
        found += ["another GPU of this kind"] if recorded.gpu_uuid != now.gpu_uuid else []
    return tuple(found)
