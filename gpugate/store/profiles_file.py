"""Where a step's time went when a baseline was recorded: `baselines/profiles/<machine>/<workload>.json`.

Beside the baselines and not in them: names of kernels change with every library, and nothing is judged by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpugate.errors import BaselineError
from gpugate.measurement.step_profile import StepProfile
from gpugate.results.run import RunResult
from gpugate.store.json_file import JsonFile, NextSteps

FOLDER = "profiles"


@dataclass(frozen=True)
class Profiles:
    """Of one workload on one machine: the optimized sides, by `<optimization>/<kind of device>`."""

    cases: Mapping[str, StepProfile]


_MEND = "delete it, and record again to have it"
FILE = JsonFile(
    "gpugate-profiles",
    1,  # History: 1: the optimized side of each case, in columns of its parts.
    Profiles,
    BaselineError,
    NextSteps(_MEND, _MEND, _MEND, unwritable="mend its permissions; nothing is judged by it"),
)


def path_of(baselines: Path, machine: str, workload: str) -> Path:
    return baselines / FOLDER / machine / f"{workload}.json"


def load(path: Path) -> Profiles:
    """None recorded where the file is absent. Raises BaselineError for a bad file."""
    return FILE.read(path) if path.exists() else Profiles({})


def made(baselines: Path, machine: str, runs: Iterable[RunResult]) -> dict[Path, Profiles]:
    """The files with what the runs profiled added, the last one of each case; nothing is written.

    Raises BaselineError for a bad file that is there.
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


def drop_case(path: Path, key: str) -> dict[Path, Profiles]:
    """The file without one case, to be written; empty where it has none. Raises BaselineError for a bad file."""
    cases = load(path).cases
    if key not in cases:
        return {}
    return {path: Profiles({name: profile for name, profile in cases.items() if name != key})}


def write(files: Mapping[Path, Profiles]) -> str | None:
    """Writes what was made, each in one step; what could not be written, in one sentence, or None."""
    for path, profiles in files.items():
        try:
            with FILE.writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            FILE.write(path, profiles)
        except BaselineError as error:
            return str(error)
    return None
