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
from gpugate.store.codec import (
    from_json,
    naming_the_file,
    parse,
    pretty,
    to_json,
    with_header,
    without_header,
    write_atomically,
)

FORMAT = "gpugate-profiles"
# History: 1: the optimized side of each case, in columns of its parts.
FORMAT_VERSION = 1
FOLDER = "profiles"


@dataclass(frozen=True)
class Profiles:
    """Of one workload on one machine: the optimized sides, by `<optimization>/<kind of device>`."""

    cases: Mapping[str, StepProfile]


def path_of(baselines: Path, machine: str, workload: str) -> Path:
    return baselines / FOLDER / machine / f"{workload}.json"


def load(path: Path) -> Profiles:
    """None recorded where the file is absent. Raises BaselineError for a bad file."""
    if not path.exists():
        return Profiles({})
    mend = "delete it, and record again to have it"
    with naming_the_file(path, BaselineError, unreadable=mend, damaged=mend, instead_of_upgrading=mend):
        return from_json(Profiles, without_header(FORMAT, FORMAT_VERSION, parse(path.read_text(encoding="utf-8"))))


def made(baselines: Path, machine: str, runs: Iterable[RunResult]) -> dict[Path, str]:
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
        together = Profiles({**load(path).cases, **cases})
        files[path] = pretty(with_header(FORMAT, FORMAT_VERSION, to_json(together))) + "\n"
    return files


def drop_case(path: Path, key: str) -> dict[Path, str]:
    """The file without one case, to be written; empty where it has none. Raises BaselineError for a bad file."""
    cases = load(path).cases
    if key not in cases:
        return {}
    rest = Profiles({name: profile for name, profile in cases.items() if name != key})
    return {path: pretty(with_header(FORMAT, FORMAT_VERSION, to_json(rest))) + "\n"}


def write(files: Mapping[Path, str]) -> str | None:
    """Writes what was made, each in one step; what could not be written, in one sentence, or None."""
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
        except OSError as error:
            return f"{path} cannot be written ({error.strerror}), and nothing is judged by it: mend its permissions"
    return None
