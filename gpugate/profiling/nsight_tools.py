"""Nsight Systems and Nsight Compute: where they are, what they can do, and exporting a report of nsys."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpugate.errors import EnvironmentUnfitError
from gpugate.profiling.capture_index import EXPORT, REPORT
from gpugate.profiling.export_schema import ProfileError
from gpugate.session.child_process import program_command
from gpugate.session.run_child import run_child

# Nsight Compute brings an nsys of its own, which no PATH names.
PLACES = {
    "nsys": (
        "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
        "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
        "/usr/local/cuda/bin/nsys",
    ),
    "ncu": ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda/bin/ncu"),
}
PERMISSION = "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run as root or with CAP_SYS_ADMIN"
# What a version may know: other processes' variables are none of our business, and without CPU samples no symbol is.
LEANER = ("--discard-environment=true", "--resolve-symbols=false")
OLDEST_NSYS = (2023, 1)  # from when on ranges repeat, nodes of CUDA graphs are traced and reports are .nsys-rep
ANSWER_S, EXPORT_S = 60.0, 600.0
LAST_WORDS = 200


def found(tool: Literal["nsys", "ncu"]) -> str | None:
    """The path of nsys or ncu: the one on PATH, else the newest where installers put it."""
    elsewhere = (sorted(Path("/").glob(place.lstrip("/"))) for place in PLACES[tool])
    newest = (str(paths[-1]) for paths in elsewhere if paths)
    return shutil.which(tool) or next(newest, None)


@dataclass(frozen=True)
class Nsys:
    """One nsys that is new enough. `leaner` are those of LEANER that its `profile` knows."""

    path: str
    environment: Mapping[str, str]
    leaner: tuple[str, ...] = ()


def nsys(environment: Mapping[str, str]) -> Nsys:
    """Raises EnvironmentUnfitError for an nsys that is not there, does not run or is too old."""
    path = found("nsys")
    if path is None:
        raise EnvironmentUnfitError(
            "--nsys found no nsys: install Nsight Systems, put it on PATH, or try --torch-trace"
        )
    said = answer([path, "--version"], environment)
    version = re.search(r"version (\d+)\.(\d+)", said)
    if version is None:
        raise EnvironmentUnfitError(f"{path} does not tell its version ({said.strip()[:200]}): install it anew")
    if (int(version[1]), int(version[2])) < OLDEST_NSYS:
        oldest = ".".join(map(str, OLDEST_NSYS))
        raise EnvironmentUnfitError(f"{path} is {version[0]}: install Nsight Systems {oldest} or newer")
    known = answer([path, "profile", "--help"], environment)
    return Nsys(path, environment, tuple(option for option in LEANER if option.partition("=")[0] in known))


def ncu() -> str:
    """Raises EnvironmentUnfitError where it is not there."""
    path = found("ncu")
    if path is None:
        raise EnvironmentUnfitError("--ncu found no ncu: install Nsight Compute, or put it on PATH")
    return path


def answer(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The output of a short command on either stream, or the reason why there is none."""
    try:
        ended = run_child(program_command(command), ANSWER_S, environment=environment)
    except OSError as error:
        return str(error)
    return ended.reason if ended.status is None else ended.output


def run_nsys(arguments: Sequence[str | Path], timeout_s: float, nsys: Nsys | None = None) -> str:
    """What `nsys ARGUMENTS` prints, both streams together. Without an `nsys` it is the one that is found, with our
    environment.

    Raises ProfileError where it cannot be started, fails or takes too long; then nothing of it goes on running.
    """
    path, environment = (nsys.path, nsys.environment) if nsys is not None else (found("nsys"), None)
    if path is None:
        raise ProfileError("nsys was not found: install Nsight Systems, or put its nsys on PATH")
    doing = f"`nsys {arguments[0]}`"
    try:
        ended = run_child(program_command([path, *map(str, arguments)]), timeout_s, environment=environment)
    except OSError as error:
        raise ProfileError(f"{path} cannot be started ({error.strerror}): install Nsight Systems anew") from error
    if ended.status != 0:
        last = "".join(ended.last_lines(1))[:LAST_WORDS] or "without output"
        raise ProfileError(f"{doing} {ended.reason} ({last}): run it by hand to see more")
    return ended.output


def export_report(path: Path, nsys: Nsys | None = None) -> Path:
    """The SQLite export beside a .nsys-rep, made anew where it is missing or older; any other file as it is.

    Raises ProfileError for a report that does not exist or cannot be exported.
    """
    if path.suffix != REPORT:
        return path
    if not path.is_file():
        raise ProfileError(f"{path} is no file: give a .nsys-rep, or what nsys exported from it")
    sqlite = path.with_suffix(EXPORT)
    if sqlite.is_file() and sqlite.stat().st_size and sqlite.stat().st_mtime >= path.stat().st_mtime:
        return sqlite
    try:
        with tempfile.TemporaryDirectory(prefix=".exporting-", dir=path.parent) as folder:
            partial = Path(folder, sqlite.name)  # an export that is cut off must not pass for a whole one
            run_nsys(["export", "--type=sqlite", "--force-overwrite=true", f"--output={partial}", path], EXPORT_S, nsys)
            return partial.replace(sqlite)
    except OSError as error:
        why = f"({error.strerror}): move the report to another folder"
        raise ProfileError(f"{sqlite} cannot be written {why}") from error
