"""The profiles of recorded steps: `baselines/profiles/<machine>/<workload>.json`.

They stand beside the baselines, not in them: names of kernels change with every library, and nothing is judged by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpugate.errors import BaselineError
from gpugate.measurement.record import StepProfile
from gpugate.results.run import RunResult
from gpugate.store.json_file import JsonFile
from gpugate.workload import CaseKey

FOLDER = "profiles"


@dataclass(frozen=True)
class Profiles:
    """The profiles of the optimized sides of one workload on one machine, by `<optimization>/<kind of device>`."""

    cases: Mapping[CaseKey, StepProfile]


FILE = JsonFile(
    "gpugate-profiles",
    1,  # History: 1: the optimized side of each case, in columns of its parts.
    Profiles,
    BaselineError,
    step="delete it, and record again to have it",
    unwritable="mend its permissions; nothing is judged by it",
)


def path_of(baselines: Path, machine: str, workload: str) -> Path:
    return baselines / FOLDER / machine / f"{workload}.json"


def load(path: Path) -> Profiles:
    """Loads the profiles; there are none where the file is absent. Raises BaselineError for a bad file."""
    return FILE.read(path) if path.exists() else Profiles({})


def collect_profiles(baselines: Path, machine: str, runs: Iterable[RunResult]) -> dict[Path, Profiles]:
    """Returns the existing files with the profiles of the runs added, the last profile of each case; writes nothing.

    Raises BaselineError for a bad file that exists.
    """
    found: dict[str, dict[str, StepProfile]] = {}
    for run in runs:
        for case in run.cases.values():
            if case.measurement is not None and case.measurement.optimized_profile is not None:
                key = f"{case.optimization}/{case.device_kind}"
                found.setdefault(case.workload, {})[key] = case.measurement.optimized_profile
    files = {}
    for workload, cases in found.items():
        path = path_of(baselines, machine, workload)
        files[path] = Profiles({**load(path).cases, **cases})
    return files


def write(files: Mapping[Path, Profiles]) -> str | None:
    """Writes the files, each in one step; returns one sentence about a file that cannot be written, or None."""
    for path, profiles in files.items():
        try:
            with FILE.writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            FILE.write(path, profiles)
        except BaselineError as error:
            return str(error)
    return None
