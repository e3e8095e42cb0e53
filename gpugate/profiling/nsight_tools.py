"""The programs nsys and ncu: their places, the export of a report, and the findings of nsys's expert rules."""

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
ANSWER_S, EXPORT_S, ANALYZE_S = 60.0, 600.0, 300.0
LAST_WORDS = 200
# The text of `nsys analyze` has a part per rule: a line `Processing [...] with [.../RULE.py]...`, a heading ` ** TITLE
# (RULE):`, advice or `There were no problems detected ...`, and a table whose columns stand under dashes; or one line
# `SKIPPED: reason`.
MOST_ROWS = 5
_PROCESSING = re.compile(r"^Processing \[.*\] with \[.*?(\w+)\.py\]", re.MULTILINE)
_HEADING = re.compile(r"^\s*\*\* (?P<title>.+) \(\w+.*\):\s*$", re.MULTILINE)
_UNDER_A_HEAD = re.compile(r"^ *-+(?: +-+)* *$", re.MULTILINE)
_FINE = "There were no problems detected"


def find_tool(tool: Literal["nsys", "ncu"]) -> str | None:
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


def require(tool: Literal["nsys", "ncu"]) -> str:
    """The path of nsys or ncu. Raises EnvironmentUnfitError where it is not there."""
    path = find_tool(tool)
    if path is None:
        raise EnvironmentUnfitError(f"--{tool} found no {tool}: install it, put it on PATH, or try --torch-trace")
    return path


def nsys(environment: Mapping[str, str]) -> Nsys:
    """Raises EnvironmentUnfitError for an nsys that is not there, does not run or is too old."""
    path = require("nsys")
    output = answer([path, "--version"], environment)
    version = re.search(r"version (\d+)\.(\d+)", output)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_NSYS:
        problem = version[0] if version else f"of an unknown version ({output.strip()[:200]})"
        oldest = ".".join(map(str, OLDEST_NSYS))
        raise EnvironmentUnfitError(f"{path} is {problem}: install Nsight Systems {oldest} or newer")
    known = answer([path, "profile", "--help"], environment)
    return Nsys(path, environment, tuple(option for option in LEANER if option.partition("=")[0] in known))


def answer(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The output of a short command on either stream, or the reason why there is none."""
    try:
        ended = run_child(program_command(command), ANSWER_S, environment=environment)
    except OSError as error:
        return str(error)
    return ended.reason if ended.status is None else ended.output


def run_nsys(arguments: Sequence[str | Path], timeout_s: float, nsys: Nsys | None = None) -> str:
    """Runs `nsys ARGUMENTS`, by default the nsys that is found, in the environment of this process; returns the output
    of both streams. Raises ProfileError where it cannot be started, fails or takes too long."""
    path, environment = (nsys.path, nsys.environment) if nsys is not None else (find_tool("nsys"), None)
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


@dataclass(frozen=True)
class RuleFinding:
    """One rule that found something: its advice in one paragraph, and the first rows of its table."""

    rule: str
    title: str
    advice: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    count: int  # of all rows, which nsys limits to 50


def findings(sqlite: Path, nsys: Nsys | None = None) -> tuple[RuleFinding, ...]:
    """Runs nsys's rules over an export. Raises ProfileError where nsys is not there or fails."""
    return parse_rules(run_nsys(["analyze", "--format", "column", sqlite], ANALYZE_S, nsys))


def parse_rules(output: str) -> tuple[RuleFinding, ...]:
    """The rules that found something, in the order of nsys; those that were skipped or found nothing say nothing."""
    _, *parts = _PROCESSING.split(output)
    found = (_finding(rule, text) for rule, text in zip(parts[::2], parts[1::2], strict=True))
    return tuple(finding for finding in found if finding is not None)


def _finding(rule: str, text: str) -> RuleFinding | None:
    heading = _HEADING.search(text)
    if heading is None or _FINE in text:
        return None
    body = text[heading.end() :]
    dashes = _UNDER_A_HEAD.search(body)
    words, names = (body, "") if dashes is None else body[: dashes.start()].rstrip("\n").rsplit("\n", 1)
    rows = () if dashes is None else _rows(dashes[0], body[dashes.end() + 1 :].split("\n\n")[0].splitlines())
    return RuleFinding(
        rule=rule,
        title=heading["title"],
        advice=" ".join(words.split()).replace("%%", "%"),  # nsys forgets to format it
        headings=tuple(re.split(r" {2,}", names.strip())) if names else (),
        rows=rows[:MOST_ROWS],
        count=len(rows),
    )


def _rows(dashes: str, lines: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The cells under each run of dashes, which the headings may miss by a column."""
    columns = [match.span() for match in re.finditer("-+", dashes)]
    return tuple(tuple(line[start:end].strip() for start, end in columns) for line in lines)
