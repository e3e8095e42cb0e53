"""Where Nsight Systems and Nsight Compute are, and whether they can do what is asked of them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpugate.errors import EnvironmentUnfitError
from gpugate.session.child_process import program_command

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
ANSWER_S = 60.0
LIBDW = "libdw.so.1"  # which minimal systems lack
_MISSING_LIBRARY = re.compile(r"(\S+\.so[.\d]*)(?:: cannot open shared object file| => not found)")


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

    def importer_problem(self) -> str:
        """Why no report is made of what was captured: the part of nsys that makes it says so at once."""
        importers = sorted(Path(self.path).resolve().parents[1].glob("host-linux-*/QdstrmImporter"))
        said = answer([str(importers[-1])], self.environment) if importers else "no QdstrmImporter beside it"
        missing = _MISSING_LIBRARY.search(said)
        if missing is None:
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            return f"its importer failed ({last[0][:200]}), so install Nsight Systems whole"
        return needs_library(missing[1])


def needs_library(name: str) -> str:
    """Why an importer makes no report where a library of the system is missing."""
    package = " (apt install libdw1)" if name == LIBDW else ""
    return f"its importer needs {name}, so install it{package}"


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
    """What a short command prints, on either stream; its own words where it does not run."""
    try:
        return ended(command, ANSWER_S, environment).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


_running: set[subprocess.Popen[str]] = set()


def end_all() -> None:
    """Kills what `ended` is waiting for in other threads, which then tell of it as of any command that failed."""
    for process in tuple(_running):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def ended(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command at its end, with what it printed on either stream; without an environment of its own it has ours.

    Raises OSError where it cannot be started and TimeoutExpired; then nothing of it goes on running.
    """
    # A session of its own: these tools start programs, and they must end with them.
    process = subprocess.Popen(
        program_command(command),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    _running.add(process)
    try:
        said, _ = process.communicate(timeout=timeout_s)
    finally:
        _kill(process)
        process.wait()
        _running.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, said)
