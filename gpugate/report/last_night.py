"""The night before a run, and the changes since then: software, commits, verdicts, cases, times."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.machine.environment import compare, machine_name
from gpugate.report.moved_cases import Moved, find_moved
from gpugate.report.tables import NOT_JUDGED
from gpugate.results.case import CaseResult, decider
from gpugate.results.provenance import SHORT_COMMIT, Provenance
from gpugate.results.run import RunResult
from gpugate.results.verdict import Check, Outcome
from gpugate.statistics.intervals import Estimate
from gpugate.store import run_file
from gpugate.store.night_files import RUN


class NoLastNightError(GpugateError):
    """A run has no earlier night that it can be compared with."""


@dataclass(frozen=True)
class LastNight:
    """An earlier run of the same machine, and the name of its folder."""

    name: str
    run: RunResult


@dataclass(frozen=True)
class Flip:
    """A check of a case whose outcome is another than last night. None: not judged on that night."""

    case_id: str
    check: Check
    before: Outcome | None
    after: Outcome | None

    @property
    def words_before(self) -> str:
        return NOT_JUDGED if self.before is None else self.before.value

    @property
    def words_after(self) -> str:
        return NOT_JUDGED if self.after is None else self.after.value


@dataclass(frozen=True)
class NightChanges:
    """The differences of a run from the night before. `software` and `code` are texts such as `torch 2.10 -> 2.11`."""

    last: str
    started_at: str
    software: tuple[str, ...]
    code: tuple[str, ...]
    flips: tuple[Flip, ...]
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    moved: tuple[Moved, ...]


def find_last_night(folder: Path, run: RunResult) -> LastNight:
    """Reads the newest earlier night of the same machine beside `folder`, the folder of the night of `run`.

    Recordings, runs with a fault on purpose, shards and runs that were cut off do not count, nor does a run of a
    format that is too old. Raises NoLastNightError where there is no night, or the newest one cannot be read.
    """
    machine, started = machine_name(run.environment), datetime.datetime.fromisoformat(run.started_at)
    found, unreadable = list[tuple[datetime.datetime, Path]](), list[str]()
    for path in folder.resolve().parent.glob(f"*/{RUN}"):
        if path.parent == folder.resolve():
            continue
        try:
            start = run_file.read_start(path)
            time = datetime.datetime.fromisoformat(start.started_at)
            if machine_name(start.environment) == machine and not start.interrupted and time < started:
                found.append((time, path))
        except (GpugateError, TypeError, ValueError) as error:
            unreadable.append(f"{path.parent.name}: {error}")
    for _, path in sorted(found, reverse=True):
        try:
            earlier = run_file.read(path)
        except GpugateError as error:
            raise NoLastNightError(f"last night cannot be read, so nothing is compared with it: {error}") from error
        if not earlier.recording and earlier.mutated is None and earlier.shard is None:
            return LastNight(path.parent.name, earlier)
    raise NoLastNightError(
        f"no earlier night of {machine} is beside this folder, so nothing is compared with last night"
        + (f" ({len(unreadable)} cannot be read, such as {min(unreadable)})" if unreadable else "")
    )


def find_changes(last: LastNight, run: RunResult) -> NightChanges:
    """The changes since last night; a case counts as lost or gained by its measurement, whatever was selected."""
    before, after = _measured(last.run), _measured(run)
    return NightChanges(
        last=last.name,
        started_at=last.run.started_at,
        software=compare(last.run.environment, run.environment).differences,
        code=tuple(_code_changes(last.run, run)),
        flips=tuple(_flips(last.run.cases, run.cases)),
        gained=tuple(case_id for case_id in after if case_id not in before),
        lost=tuple(case_id for case_id in before if case_id not in after),
        moved=tuple(find_moved(_times(before), _times(after))),
    )


def _measured(run: RunResult) -> dict[str, CaseResult]:
    return {case_id: case for case_id, case in run.cases.items() if case.measurement is not None}


def _code_changes(last: RunResult, run: RunResult) -> Iterator[str]:
    then, now = last.provenance or Provenance(), run.provenance or Provenance()
    if then.commit != now.commit:
        yield f"commit {_short(then.commit)} -> {_short(now.commit)}"
    if then.changes != now.changes:
        yield f"uncommitted changes {_short(then.changes, 'none')} -> {_short(now.changes, 'none')}"
    if then.container != now.container:
        yield f"image {then.container or 'unknown'} -> {now.container or 'unknown'}"
    hashes = last.source_hashes, run.source_hashes
    edited = sorted(name for name in hashes[0].keys() & hashes[1].keys() if hashes[0][name] != hashes[1][name])
    yield from (f"the source of {name} changed" for name in edited)


def _short(value: str | None, absent: str = "unknown") -> str:
    return value[:SHORT_COMMIT] if value else absent


def _flips(before: Mapping[str, CaseResult], after: Mapping[str, CaseResult]) -> Iterator[Flip]:
    """The checks of cases that both nights judged."""
    for case_id, case in after.items():
        then = {one.check: one.outcome for one in before[case_id].verdicts} if case_id in before else {}
        now = {one.check: one.outcome for one in case.verdicts}
        if then and now:
            yield from (
                Flip(case_id, check, then.get(check), now.get(check))
                for check in {**then, **now}
                if then.get(check) is not now.get(check)
            )


def _times(cases: Mapping[str, CaseResult]) -> dict[str, tuple[Estimate, Estimate]]:
    """The speedup and the time per step of each case, of the process that decided."""
    found = {case_id: decided.summary for case_id, case in cases.items() if (decided := decider(case))}
    return {case_id: (summary.speedup, summary.optimized_ms) for case_id, summary in found.items()}
