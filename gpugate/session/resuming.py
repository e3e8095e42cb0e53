"""`--perf-resume`: a run that was cut off goes on from its finished cases, where nothing that they rest on changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.errors import OptionError
from gpugate.judging.decide_again import decide_again, find_changes
from gpugate.machine.environment import differences
from gpugate.results.case import CaseResult, Remembered
from gpugate.results.run import RunResult
from gpugate.results.verdict import Outcome
from gpugate.session.merging import join_provenance, list_facts
from gpugate.store import run_file
from gpugate.store.codec import to_json
from gpugate.store.source_hash import source_hash
from gpugate.workload import Case

if TYPE_CHECKING:
    from gpugate.session.perf_session import PerfSession

OPTION = "--perf-resume"
STEP = f"repeat the command as it was, or leave out {OPTION} to measure anew"


def resume(session: PerfSession, selected: Collection[Case]) -> None:
    """Gives the session the finished cases, the start and the seed of the run at its path.

    It gives none where no run is there, or one that was not cut off: a whole night is measured anew.

    Raises OptionError, with both values, where code, software, machine, options or baselines are not those of the
    run, and RunFileError for a run that cannot be read.
    """
    path = next((path for path in session.options.given_paths if path.exists()), None)
    if path is None:
        return
    stored, now = run_file.read_to_decide_again(path), session.result
    if not stored.interrupted:
        return
    finished = {case_id: case for case_id, case in stored.cases.items() if is_finished(case)}
    edited = [one.case_id for one in find_changes(stored, decide_again(stored)) if one.case_id in finished]
    if edited:
        raise OptionError(f"{OPTION}: {path} has verdicts of {edited[0]} that its measurement does not give: {STEP}")
    _check_facts(path, stored, session)
    now.source_hashes = {**now.source_hashes, **stored.source_hashes}
    _check_cases(path, finished, session, {case.id: case for case in selected})
    now.started_at, now.seed, now.wall_s = stored.started_at, stored.seed, stored.wall_s
    now.provenance = join_provenance([one.provenance for one in (stored, now) if one.provenance is not None])
    session.started_s -= stored.wall_s
    session.finished = finished
    if session.options.worker is None:
        now.cases.update(finished)
        now.yardsticks = stored.yardsticks
        session.saved_probes = session.resumed_probes = len(stored.yardsticks)


def is_finished(case: CaseResult) -> bool:
    """False for a case that was cut off, or whose device was lost: it is measured again."""
    lost = any(one.check == "equivalence" and one.outcome is Outcome.ENV_INVALID for one in case.verdicts)
    came_to_something = case.measurement is not None or case.error is not None or case.skipped is not None
    return came_to_something and not lost


def _check_facts(path: Path, stored: RunResult, session: PerfSession) -> None:
    now, given = session.result, session.options.seed
    for name, value in _facts(stored).items():
        if (found := _facts(now)[name]) != value:
            raise OptionError(f"{OPTION}: {path} has the {name} {value}, and this run has {found}: {STEP}")
    if given not in (None, stored.seed):
        raise OptionError(f"{OPTION}: {path} has the perf_seed {stored.seed}, and this run has {given}: {STEP}")
    changed = differences([stored.environment, now.environment])
    if changed:
        raise OptionError(f"{OPTION}: since {path} the software or the machine changed ({', '.join(changed)}): {STEP}")


def _facts(run: RunResult) -> Mapping[str, object]:
    return {**list_facts(run), "shard": "none" if run.shard is None else str(run.shard)}


def _check_cases(
    path: Path, finished: Mapping[str, CaseResult], session: PerfSession, selected: Mapping[str, Case]
) -> None:
    quiet = replace(session.records, notes=set())  # notes about a baseline belong to the case that it judges
    for case_id, case in finished.items():
        if case_id not in selected:
            raise OptionError(f"{OPTION}: {path} has finished {case_id}, which is not selected now: {STEP}")
        if session.result.source_hashes.get(case.workload) not in (None, source_hash(selected[case_id].workload)):
            raise OptionError(f"{OPTION}: since {path} the source of {case.workload} changed: {STEP}")
        if case.measurement is None:
            continue
        record = quiet.find(selected[case_id])
        if to_json(record) != to_json(case.remembered):
            then, now = _describe(case.remembered), _describe(record)
            raise OptionError(f"{OPTION}: {path} judged {case_id} by {then}, and the baselines now have {now}: {STEP}")


def _describe(record: Remembered | None) -> str:
    if record is None:
        return "no record"
    return f"a record of {record.current.speedup:.6g}x for {record.checks} checks a night"
