"""The records of one machine that a session compares with, and the notes that a reader needs about them."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.machine.cores import find_usable_cores
from gpugate.machine.environment import Environment, compare, machine_name
from gpugate.results.case import Remembered
from gpugate.results.changes import SOURCE_CHANGED
from gpugate.results.run import RunResult
from gpugate.results.summary import History
from gpugate.session.options import Options
from gpugate.store import baseline
from gpugate.store.source_hash import source_hash
from gpugate.workload import Case

if TYPE_CHECKING:
    import torch


@dataclass
class Records:
    """The baselines of a session. `files` is empty while baselines are being recorded."""

    options: Options
    device: torch.device
    result: RunResult
    notes: set[str]
    files: dict[str, baseline.BaselineFile] = field(default_factory=dict)
    recorded: Sequence[str] = ()  # the cases of this suite that this machine has recorded

    @property
    def folder(self) -> Path:
        return self.options.baselines_path / machine_name(self.result.environment)

    @cached_property
    def histories(self) -> dict[str, History]:
        """The history of the record of each case that this machine recorded."""
        return baseline.histories_of(self.files)

    def find(self, case: Case) -> Remembered | None:
        """The record of the case on this machine; None where no record can be compared."""
        record = self.find_record(case)
        if record is None:
            if self.result.gate and not self.options.own_inputs:
                self.notes.add(self._describe_absence(case.workload.name))
            return None
        match = compare(record.environment, self._find_environment_beside(record))
        if match.kind == "foreign" or not self._has_as_many_ranks(case, record):
            return None
        differences = match.differences
        self.notes.update(f"recorded under other software: {difference}" for difference in differences)
        if record.source_hash != self.result.source_hashes.get(case.workload.name):
            differences += (SOURCE_CHANGED,)
            self.notes.add(f"the source of {case.workload.name} changed since its baseline was recorded")
        return Remembered(
            current=self.histories[case.id],
            match=match.kind,
            differences=differences,
            optimized_counters=record.optimized_counters,
            reference_counters=record.reference_counters,
            yardsticks=record.yardsticks,
            checks=2 * sum(len(file.cases) for file in self.files.values()),  # speedup and throughput of each
            recorded_at=record.recorded_at,
            reason=record.reason,
        )

    def _describe_absence(self, workload: str) -> str:
        """The name of this machine, with the most similar one that has recorded the workload."""
        name, machines = self.folder.name, baseline.list_machines(self.options.baselines_path, workload)
        closest = get_close_matches(name, set(machines) - {name}, n=1, cutoff=0.0)
        elsewhere = f"; {closest[0]} has records of {workload}" if closest else ""
        return f"cases have no record of this machine, {name}{elsewhere}"

    def _find_environment_beside(self, record: baseline.Record) -> Environment:
        """The environment to compare with that of a record, which may be of the host's cores or of those of a worker.

        The run of workers has all cores of their host.
        """
        now, worker, cores = self.result.environment, self.options.worker, len(find_usable_cores())
        has_share = worker is not None and worker.place is not None
        return replace(now, cpu_count=cores) if has_share and record.environment.cpu_count == cores else now

    def _has_as_many_ranks(self, case: Case, record: baseline.Record) -> bool:
        """False, with a note, for a case that spans GPUs and was recorded on another number of them."""
        if not case.spans_gpus:
            return True
        from gpugate.measurement.ranks import count_ranks

        recorded, now = record.optimized_counters.get("ranks"), count_ranks(self.device)
        if recorded != now:
            told = "an unknown number of" if recorded is None else f"{recorded:g}"
            self.notes.add(f"{case.id}: its record is of {told} ranks and this run has {now}: they are not compared")
        return recorded == now

    def find_entry(self, case: Case) -> baseline.Entry | None:
        file = self.files.get(case.workload.name)
        return file.cases.get(_key(case)) if file else None

    def find_record(self, case: Case) -> baseline.Record | None:
        """The record of the case on this machine, under whatever software it was measured."""
        entry = self.find_entry(case)
        return entry.record if entry else None

    def has_changed(self, case: Case) -> bool:
        """True for a case whose workload has another source than its record."""
        record = self.find_record(case)
        return record is not None and record.source_hash != self.hash_source(case)

    def hash_source(self, case: Case) -> str:
        known, name = self.result.source_hashes, case.workload.name
        if name not in known:
            known[name] = source_hash(case.workload)
        return known[name]

    def describe_lost(self, known: Collection[str]) -> Iterator[str]:
        """Writes a sentence for each recorded case that the catalogue, whose cases are `known`, no longer has."""
        folder = self.options.baselines_path
        for case_id in sorted(set(self.recorded).difference(known)):
            delete = shlex.join(["gpugate", "accept", "--delete", case_id, "--baselines", str(folder)])
            yield f"{case_id} is recorded and no longer in the catalogue: restore it, or delete its record: {delete}"


def _key(case: Case) -> str:
    """The key of the case in the file of its workload."""
    return f"{case.optimization.name}/{case.device_kind}"
