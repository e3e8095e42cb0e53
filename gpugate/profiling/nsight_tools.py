"""The programs nsys and ncu: their places, and the export of a report."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from gpugate.errors import EnvironmentUnfitError
from gpugate.machine.children import program_command, run_child
from gpugate.profiling.capture_index import EXPORT, REPORT
from gpugate.profiling.export import ProfileError

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


def find_tool(tool: Literal["nsys", "ncu"]) -> str | None:
    """The path of nsys or ncu: the one on PATH, else the newest where installers put it."""
    elsewhere = (sorted(Path("/").glob(place.lstrip("/"))) for place in PLACES[tool])
    newest = (str(paths[-1]) for paths in elsewhere if paths)
    return shutil.which(tool) or next(newest, None)


def require(tool: Literal["nsys", "ncu"]) -> str:
    """The path of nsys or ncu. Raises EnvironmentUnfitError where it is not there."""
    path = find_tool(tool)
    if path is None:
        raise EnvironmentUnfitError(f"--{tool} found no {tool}: install it, put it on PATH, or try --torch-trace")
    return path


def nsys_profile(environment: Mapping[str, str]) -> list[str]:
    """The beginning of a command line of `nsys profile`, with those of LEANER that this nsys knows.

    Raises EnvironmentUnfitError for an nsys that is not there, does not run or is too old.
    """
    path = require("nsys")
    output = _ask([path, "--version"], environment)
    version = re.search(r"version (\d+)\.(\d+)", output)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_NSYS:
        problem = version[0] if version else f"of an unknown version ({output.strip()[:200]})"
        oldest = ".".join(map(str, OLDEST_NSYS))
        raise EnvironmentUnfitError(f"{path} is {problem}: install Nsight Systems {oldest} or newer")
    known = _ask([path, "profile", "--help"], environment)
    return [path, "profile", *(option for option in LEANER if option.partition("=")[0] in known)]


def _ask(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The output of a short command on either stream, or the reason why there is none."""
    try:
        ended = run_child(program_command(command), ANSWER_S, environment=environment)
    except OSError as error:
        return str(error)
    return ended.reason if ended.status is None else ended.output


def export_report(path: Path, environment: Mapping[str, str] | None = None) -> Path:
    """The SQLite export beside a .nsys-rep, made anew where it is missing or older; any other file as it is.

    nsys gets the variables of `environment`, by default those of this process. Raises ProfileError for a report that
    does not exist or cannot be exported.
    """
    if path.suffix != REPORT:
        return path
    if not path.is_file():
        raise ProfileError(f"{path} is no file: give a .nsys-rep, or what nsys exported from it")
    sqlite = path.with_suffix(EXPORT)
    if sqlite.is_file() and sqlite.stat().st_size and sqlite.stat().st_mtime >= path.stat().st_mtime:
        return sqlite
    nsys = find_tool("nsys")
    if nsys is None:
        raise ProfileError("nsys was not found: install Nsight Systems, or put its nsys on PATH")
    try:
        with tempfile.TemporaryDirectory(prefix=".exporting-", dir=path.parent) as folder:
            partial = Path(folder, sqlite.name)  # an export that is cut off must not pass for a whole one
            words = [nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={partial}", str(path)]
            ended = run_child(program_command(words), EXPORT_S, environment=environment)
            if ended.status != 0:
                last = "".join(ended.last_lines(1))[:LAST_WORDS] or "without output"
                raise ProfileError(f"`nsys export` {ended.reason} ({last}): run it by hand to see more")
            return partial.replace(sqlite)
    except OSError as error:
        raise ProfileError(f"{sqlite} cannot be written ({error.strerror}): move the report elsewhere") from error
