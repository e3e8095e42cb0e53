"""The result of a whole run, and one night made of its shards: the check that they belong together. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path

from gpugate.errors import ReplayError
from gpugate.faults.fault import KINDS, Fault
from gpugate.judging.knee import judge_knee
from gpugate.machine.environment import differences, machine_key
from gpugate.results.case import CaseResult
from gpugate.results.fleet_plan import Shard
from gpugate.results.run import Provenance, RunResult
from gpugate.results.series import sweeps
from gpugate.session.decide_again import decide_again, find_changes
from gpugate.units import list_names

ALL_GOOD, SOME_BAD = 0, 1  # exit statuses of a merged night, as those of pytest
CAUGHT, IMPOSSIBLE = 0, 2  # the exit statuses of a run with a fault; 1 is that of a fault that a case missed
NOTHING_MEASURED = "the gate measured nothing: select cases that this machine can run"


def list_red(run: RunResult) -> list[str]:
    """The errors and the held verdicts that make a stored gate red, whatever exit status its file has."""
    swept = {case_id: case for case_id, case in run.cases.items() if "knee" in case.held}
    judged = [one for case in run.cases.values() for one in case.verdicts if one.check in case.held]
    judged += [judge_knee(sweep, run.mode) for sweep in sweeps(swept)]
    errors = [f"the error of {case_id}" for case_id, case in run.cases.items() if case.error is not None]
    measured = [case for case in run.cases.values() if case.measurement is not None and case.error is None]
    errors += [f"no held verdict of {case.case_id}" for case in measured if run.gate and not case.held]
    return errors + [f"{one.outcome.value} {one.check} of {one.case_id}" for one in judged if not one.good]


def run_problems(run: RunResult) -> Iterator[str]:
    """Writes a sentence for a gate that measured nothing at all, and for a fault that nothing caught.

    Only the checks of its kind catch a fault: a case that another check fails is red without the fault, too.
    """
    cases = run.cases.values()
    # The cases of a shard may all be absent: the night that is merged of all shards must have measured something.
    if run.gate and run.shard is None and not any(case.measurement is not None or case.error for case in cases):
        yield NOTHING_MEASURED
    if run.mutated is None:
        return
    caught_by = KINDS[Fault.parse(run.mutated).kind].caught_by
    caught = {one.case_id for case in cases for one in case.verdicts if one.bad and one.check in caught_by}
    missed = [case.case_id for case in cases if case.verdicts and case.case_id not in caught]
    if missed:
        yield (
            f"nothing caught {run.mutated} in {', '.join(missed)}: record a baseline without the fault first, make the "
            "fault larger, or give more --perf-budget"
        )


def fault_status(run: RunResult) -> int:
    """The exit status of a run with a fault that no case missed: CAUGHT, or IMPOSSIBLE where a case cannot show it."""
    cases = run.cases.values()
    shown = any(case.verdicts for case in cases)
    return CAUGHT if shown and not any(case.error for case in cases) else IMPOSSIBLE


@dataclass(frozen=True)
class ShardRun:
    """A stored run that measured one shard of a night."""

    path: Path
    run: RunResult
    shard: Shard


def check_shard(path: Path, run: RunResult) -> ShardRun:
    """Raises ReplayError for a run that is no shard."""
    if run.shard is None:
        raise ReplayError(f"{path} is a whole night, measured without --perf-shard: give the shards of one night")
    return ShardRun(path, run, run.shard)


def merge(shards: Sequence[ShardRun]) -> RunResult:
    """The night of these shards, judged again as a whole. What is missing in it is among its problems.

    Raises ReplayError for shards of different nights, and for a shard or a case that is there twice.
    """
    shards = sorted(shards, key=lambda one: one.shard.number)
    _check_together(shards)
    runs, first = [one.run for one in shards], shards[0]
    cases, there = _join_cases(shards), {one.shard.number for one in shards}
    absent = [case_id for case_id in first.shard.cases if case_id not in cases]
    # A shard of few cases may have none: without an absent case no shard is missing.
    missing = [number for number in range(1, first.shard.count + 1) if absent and number not in there]
    joined = replace(
        join_workers(first.run, runs, incomplete=missing != []),
        started_at=min(runs, key=lambda run: run.started).started_at,
        cases={case_id: cases[case_id] for case_id in first.shard.cases if case_id in cases},
        yardsticks=[probe for run in runs for probe in run.yardsticks],
        shard=None,
    )
    night = decide_again(joined)
    changed = dict.fromkeys(change.case_id for change in find_changes(joined, night))
    night.problems = [
        *dict.fromkeys(problem for run in runs for problem in run.problems if problem not in run_problems(run)),
        *_describe_missing(shards, missing, absent),
        *([f"the whole night judges {list_names(list(changed))} otherwise"] if changed else []),
    ]
    night.problems += [] if night.interrupted else run_problems(night)
    statuses = [SOME_BAD if run.exit_status is None else run.exit_status for run in runs]
    night.exit_status = SOME_BAD if night.problems or list_red(night) else max(statuses, default=ALL_GOOD)
    return night


def _check_together(shards: Sequence[ShardRun]) -> None:
    first = shards[0]
    facts = _list_facts(first.run)
    for other in shards[1:]:
        for name, value in _list_facts(other.run).items():
            if value != facts.get(name, value):
                has = f"{other.path} has the {name} {value}, and {first.path} has {facts[name]}"
                raise ReplayError(f"{has}: merge the shards of one night")
        if other.shard.cases != first.shard.cases:
            raise ReplayError(
                f"{other.path} divides other cases than {first.path}: give every shard the same selection"
            )
        changed = differences([first.run.environment, other.run.environment])
        if changed:
            raise ReplayError(
                f"the software or the machine of {other.path} and {first.path} differs ({', '.join(changed)}): merge "
                "shards of one machine type and image"
            )


def _list_facts(run: RunResult) -> Mapping[str, object]:
    """The facts that the runs of one night have in common, each with its name.

    Verdicts with a record share the false alarms of a night with all checks of its machine, whichever shard has them.
    """
    origin = run.provenance or Provenance()
    checks = max((case.remembered.checks for case in run.cases.values() if case.remembered is not None), default=None)
    facts = {
        "commit": origin.commit,
        "hash of uncommitted changes": origin.changes,
        "image": origin.container,
        "machine": machine_key(run.environment, run.memory_bytes),
        "number of shards": None if run.shard is None else run.shard.count,
        "option --gate": run.gate,
        "option --allow-missing": ", ".join(run.accepted) if run.accepted else None,
        "fault": run.mutated,
        "command": run.command,
    }
    facts = {name: "none" if value is None else value for name, value in facts.items()}
    return facts if checks is None else {**facts, "number of recorded checks": checks}


def _join_cases(shards: Sequence[ShardRun]) -> dict[str, CaseResult]:
    found: dict[str, tuple[ShardRun, CaseResult]] = {}
    for one in shards:
        for case_id, case in one.run.cases.items():
            if case_id in found:
                raise ReplayError(
                    f"{one.path} and {found[case_id][0].path} both measured {case_id}: leave one out, or give "
                    "every shard the same selection"
                )
            found[case_id] = (one, case)
    return {case_id: case for case_id, (_, case) in found.items()}


def _describe_missing(shards: Sequence[ShardRun], missing: Sequence[int], absent: Sequence[str]) -> Iterator[str]:
    """Writes a sentence for each shard that is missing or was cut off, and one about the cases that no shard has."""
    count = shards[0].shard.count
    for number in missing:
        yield f"shard {number} of {count} is missing: measure it with --perf-shard {number}/{count}, and merge again"
    for one in shards:
        if one.run.interrupted or one.run.exit_status is None:
            yield f"shard {one.shard} in {one.path} was cut off: measure it again, and merge again"
    if absent:
        yield f"no shard measured {list_names(absent)}"


def join_workers(stored: RunResult, runs: Sequence[RunResult], incomplete: bool) -> RunResult:
    """The run of workers on one host: `stored` has the finished cases of all, `runs` are those of ended workers.

    Where one died, the run is `incomplete`: an interrupted one.
    """
    cases = dict(chain.from_iterable(run.cases.items() for run in (stored, *runs)))
    return replace(
        stored,
        cases=cases,
        source_hashes=dict(chain.from_iterable(run.source_hashes.items() for run in (stored, *runs))),
        interrupted=incomplete or not runs or any(run.interrupted for run in runs),
        problems=list(dict.fromkeys(problem for run in runs for problem in run.problems)),
        wall_s=max(run.wall_s for run in (stored, *runs)),
        provenance=_join_provenance([run.provenance for run in runs or [stored] if run.provenance is not None]),
    )


def _join_provenance(found: Sequence[Provenance]) -> Provenance | None:
    """The values that all shards have; a night of several hosts has no host of its own."""
    if not found:
        return None
    values = {field.name: {getattr(one, field.name) for one in found} for field in fields(Provenance)}
    return Provenance(**{name: next(iter(those)) if len(those) == 1 else None for name, those in values.items()})
