"""Remembered proofs: a proof that succeeded is not shown again while code, software and machine are the same."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path

from gpugate.errors import OptionError
from gpugate.machine.environment import machine_key
from gpugate.measurement.record import ProofResult
from gpugate.results.run import RunResult
from gpugate.store.codec import to_json
from gpugate.store.json_file import JsonFile
from gpugate.store.source_hash import proof_hash
from gpugate.store.writable_folder import make_ignored
from gpugate.workload import Case

_LOG = logging.getLogger(__name__)
REMEMBERED = timedelta(days=7)


@dataclass(frozen=True)
class ProvenCase:
    """The proofs of a case, all of which succeeded. `key` is a hash of all that the proofs depend on."""

    key: str
    proofs: tuple[ProofResult, ...]


FILE = JsonFile(
    "gpugate-proofs",
    1,
    ProvenCase,
    OptionError,
    step="delete it",
    unwritable="give another --perf-store, or --perf-store off",
)


@dataclass
class RememberedProofs:
    """The proofs that earlier runs showed, in a file for each case and machine below `folder`.

    `folder` is None where nothing is remembered. `keys` are hashes of all that the proofs of a case depend on.
    """

    folder: Path | None
    run: RunResult
    keys: dict[str, str] = field(default_factory=dict)

    def compute_keys(self, cases: Iterable[Case]) -> None:
        """Computes the keys of the cases that are to be measured, at the start of a session.

        The code that is loaded is proved: an edit made later, during a night of half an hour, is not.
        """
        kind = self.run.environment.device_kind
        for case in cases:
            if self.folder is not None and case.optimization.proofs and case.device_kind == kind:
                try:
                    self.keys[case.id] = self._key(case)
                except Exception:  # of a file that was edited meanwhile: its proofs are shown and not remembered
                    _LOG.debug("the code of %s cannot be read", case.id, exc_info=True)

    def recall(self, case: Case) -> tuple[ProofResult, ...]:
        """Returns the remembered proofs of the case, and forgets those that are outdated.

        Empty: all proofs of the case are to be shown. What was forgotten is gone also where the proofs then fail or
        the process is killed: no later run remembers them.
        """
        if self.folder is None or not case.optimization.proofs:
            return ()
        with suppress(OptionError):
            found = FILE.read(self._path(case))
            unchanged = found.key == self.keys.get(case.id)
            if unchanged and not self.run.recording and all(map(self._is_recent, found.proofs)):
                return found.proofs
        with suppress(OSError):
            self._path(case).unlink(missing_ok=True)
        return ()

    def keep(self, case: Case, proofs: tuple[ProofResult, ...]) -> None:
        """Remembers proofs that this run showed, unless one failed. Raises OptionError."""
        key = self.keys.get(case.id)
        if self.folder is None or key is None or any(proof.problem is not None for proof in proofs):
            return
        path = self._path(case)
        with FILE.writing(self.folder):
            make_ignored(self.folder.parent)  # the proofs may come before the store itself
            make_ignored(self.folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            dated = tuple(replace(proof, proved_at=self.run.started_at) for proof in proofs)
            FILE.write(path, ProvenCase(key, dated))

    def _path(self, case: Case) -> Path:
        return Path(self.folder or "", machine_key(self.run.environment, self.run.memory_bytes), f"{case.id}.json")

    def _is_recent(self, proof: ProofResult) -> bool:
        """False also for a proof of the future: a clock was wrong."""
        if proof.problem is not None or proof.proved_at is None:
            return False
        with suppress(ValueError, TypeError):  # no time, or one without its offset
            age = self.run.started - datetime.fromisoformat(proof.proved_at)
            return timedelta() <= age < REMEMBERED
        return False

    def _key(self, case: Case) -> str:
        import torch

        from gpugate.measurement.ranks import count_ranks
        from gpugate.measurement.run import run_proofs

        names = [proof.name for proof in case.optimization.proofs]
        ranks = count_ranks(torch.device(case.device_kind)) if case.spans_gpus else 1
        code = [case.id, case.workload.seed, ranks, names, proof_hash(case), inspect.getsource(run_proofs)]
        environment = to_json(replace(self.run.environment, gpu_index=None))
        text = json.dumps([code, environment, self._installed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def _installed(self) -> list[tuple[str, str]]:
        """The names and versions of all installed packages: a proof may use any of them."""
        return sorted({(one.name, one.version) for one in importlib.metadata.distributions()})
