"""Where Nsight Systems and Nsight Compute are, and whether they can do what is asked of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpugate.errors import EnvironmentUnfitError

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
OLDEST_NSYS = (2023, 1)  # from when on ranges repeat, nodes of CUDA graphs are traced and reports are .nsys-rep
ANSWER_S = 60.0
_MISSING_LIBRARY = re.compile(r"(\S+\.so[.\d]*)(?:: cannot open shared object file| => not found)")


def found(tool: Literal["nsys", "ncu"]) -> str | None:
    """The path of nsys or ncu: the one on PATH, else the newest where installers put it."""
    elsewhere = (sorted(Path("/").glob(place.lstrip("/"))) for place in PLACES[tool])
    newest = (str(paths[-1]) for paths in elsewhere if paths)
    return shutil.which(tool) or next(newest, None)


@dataclass(frozen=True)
class Nsys:
    """One nsys that is new enough. `waits` says that it can hold a program up until the report of a range is there."""

    path: str
    environment: Mapping[str, str]
    waits: bool

    def importer_problem(self) -> str:
        """Why no report is made of what was captured: the part of nsys that makes it says so at once."""
        importers = sorted(Path(self.path).resolve().parents[1].glob("host-linux-*/QdstrmImporter"))
        said = answer([str(importers[-1])], self.environment) if importers else "no QdstrmImporter beside it"
        missing = _MISSING_LIBRARY.search(said)
        if missing is None:
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            return f"its importer failed ({last[0][:200]}), so install Nsight Systems whole"
        package = " (apt install libdw1)" if missing[1] == "libdw.so.1" else ""
        return f"its importer needs {missing[1]}, so install it{package}"


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
    return Nsys(path, environment, waits="[:mode]" in answer([path, "profile", "--help"], environment))


def ncu() -> str:
    """Raises EnvironmentUnfitError where it is not there."""
    path = found("ncu")
    if path is None:
        raise EnvironmentUnfitError("--ncu found no ncu: install Nsight Compute, or put it on PATH")
    return path


def answer(command: list[str], environment: Mapping[str, str]) -> str:
    """What a short command prints, on either stream; its own words where it does not run."""
    try:
        ended = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ended.stdout.decode(errors="replace")
