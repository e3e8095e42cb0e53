"""The newest runs of a project, kept as files beside its store: `gpugate accept` records from their samples."""

from __future__ import annotations

import secrets
from pathlib import Path

from gpugate.machine.environment import machine_name
from gpugate.results.run import RunResult
from gpugate.store import run_file
from gpugate.store.store_url import find_root
from gpugate.store.version import STORE_FOLDER
from gpugate.store.writable_folder import choose_folder, make_ignored

MOST = 10  # a case takes about 50 kB


def keep(run: RunResult, root: Path) -> None:
    """Keeps the run in the project `root`, and removes the oldest beyond MOST. Raises OSError and RunFileError."""
    folder = _folder(root)
    make_ignored(folder.parent)
    folder.mkdir(exist_ok=True)
    # Two runs may start in one second with one seed, as shards on the GPUs of a host do.
    name = f"{run_file.parse_time(run.started_at):%Y%m%dT%H%M%S}-{run.seed}-{secrets.token_hex(4)}.json"
    run_file.write(folder / name, run)
    for path in sorted(folder.glob("*.json"))[:-MOST]:
        path.unlink(missing_ok=True)


def find_newest(start: Path) -> list[Path]:
    """The files of the newest kept run of the project around `start`, and of all with the same code and machine."""
    paths = sorted(_folder(find_root(start)).glob("*.json"))
    runs = {path: run_file.read(path) for path in paths}
    return [path for path, run in runs.items() if _is_alike(run, runs[paths[-1]])]


def _folder(root: Path) -> Path:
    return choose_folder(root / STORE_FOLDER) / "runs"


def _is_alike(run: RunResult, newest: RunResult) -> bool:
    commits = [one.provenance and (one.provenance.commit, one.provenance.changes) for one in (run, newest)]
    same_machine = machine_name(run.environment) == machine_name(newest.environment)
    same_code = all(newest.source_hashes.get(name, found) == found for name, found in run.source_hashes.items())
    return same_machine and commits[0] == commits[1] and same_code
