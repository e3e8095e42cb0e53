"""The file of remembered proofs of one case on one machine, and the place of these files beside the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.measurement.record import ProofResult
from gpugate.store.json_file import JsonFile, NextSteps
from gpugate.store.store_url import find_file
from gpugate.store.version import STORE_FOLDER
from gpugate.store.writable_folder import choose_folder

FOLDER = "proofs"


class ProofFileError(GpugateError):
    """A file of remembered proofs cannot be read or written."""


@dataclass(frozen=True)
class ProvenCase:
    """The proofs of a case, all of which succeeded. `key` is a hash of all that the proofs depend on."""

    key: str
    proofs: tuple[ProofResult, ...]


FILE = JsonFile(
    "gpugate-proofs",
    1,
    ProvenCase,
    ProofFileError,
    NextSteps(
        unreadable="delete it",
        damaged="delete it",
        other_version="delete it",
        unwritable="give another --perf-store, or --perf-store off",
    ),
)


def proofs_folder(url: str, root: Path) -> Path:
    """The folder of remembered proofs: beside the file of a store; for another database, in the project `root`."""
    file = find_file(url)
    return (choose_folder(root / STORE_FOLDER) if file is None else file.parent) / FOLDER
