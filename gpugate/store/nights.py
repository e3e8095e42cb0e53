"""Nights as the store keeps them, made from runs or from their files; the newest runs are kept as files beside it."""

from __future__ import annotations

import datetime
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.errors import GpugateError, OptionError
from gpugate.machine.environment import machine_name
from gpugate.results.run import Provenance, RunResult, night_of
from gpugate.store import run_file
from gpugate.store.night_files import RUN, find_runs
from gpugate.store.version import STORE_FOLDER
from gpugate.store.writable_folder import choose_folder, make_ignored

if TYPE_CHECKING:
    from gpugate.store.database import Store  # which imports sqlalchemy

MOST_KEPT = 10  # runs, from whose samples `gpugate accept` records; a case takes about 50 kB


@dataclass(frozen=True)
class Added:
    """The numbers of runs that were new to the store and that it had, and a sentence about each unusable run."""

    new: int
    known: int
    refused: tuple[str, ...]


def add_folder(store: Store, folder: Path) -> Added:
    """Adds a night, or each night and each run file in a folder of them.

    Raises OptionError where the folder has none, and StoreError where the store fails.
    """
    paths, refused, new = find_runs(folder), list[str](), 0
    for path in paths:
        try:
            run = run_file.read_night(path)
            if run.shard is not None:
                step = "add the night that gpugate verdict --merge makes"
                raise OptionError(f"{path} is shard {run.shard} of a night: {step}")
        except GpugateError as error:
            refused.append(str(error))
        else:
            new += store.add(night_of(run, path.parent.name if path.name == RUN else path.stem))
    return Added(new, len(paths) - len(refused) - new, tuple(refused))


def keep(run: RunResult, root: Path) -> None:
    """Keeps the run in the project `root`, and removes the oldest beyond MOST_KEPT. Raises OSError and RunFileError."""
    folder = _find_kept(root)
    make_ignored(folder.parent)
    folder.mkdir(exist_ok=True)
    # Runs are kept in the order in which they end, to the microsecond: two may start in one second.
    ended_at = datetime.datetime.now(datetime.timezone.utc)
    run_file.write(folder / f"{ended_at:%Y%m%dT%H%M%S%f}-{secrets.token_hex(4)}.json", run)
    for path in sorted(folder.glob("*.json"))[:-MOST_KEPT]:
        path.unlink(missing_ok=True)


def find_newest(root: Path) -> list[Path]:
    """The files of the newest kept run of the project `root`, and of all with the same code, inputs and machine. An
    older one that cannot be read is passed over, as that of an older gpugate. Raises RunFileError for the newest."""
    paths = sorted(_find_kept(root).glob("*.json"))
    if not paths:
        return []
    newest, found = run_file.read(paths[-1]), list[Path]()
    for path in paths[:-1]:
        with suppress(run_file.RunFileError):
            if _is_alike(run_file.read(path), newest):
                found.append(path)
    return [*found, paths[-1]]


def _find_kept(root: Path) -> Path:
    return choose_folder(root / STORE_FOLDER) / "runs"


def _is_alike(run: RunResult, newest: RunResult) -> bool:
    """True for the same machine, inputs and code: one commit with the same changes, or the same imported files, as
    before and after a commit of them."""
    then, now = (one.provenance or Provenance() for one in (run, newest))
    same_files = then.files is not None and then.files == now.files
    same_version = same_files or (then.commit, then.changes) == (now.commit, now.changes)
    same_machine = machine_name(run.environment) == machine_name(newest.environment)
    same_sources = all(newest.source_hashes.get(name, found) == found for name, found in run.source_hashes.items())
    return same_machine and same_version and same_sources and run.chosen_inputs == newest.chosen_inputs
