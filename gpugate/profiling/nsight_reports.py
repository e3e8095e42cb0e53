"""Runs of pytest under nsys and ncu, and the reports that are kept of them.

A plain `pytest ... --nsys` starts itself once under the profiler, and reports the result when that run has ended. Where
it is interrupted, all that the profiler started is killed. nsys leaves a report per test parameter and side, which is
exported and summarized. ncu leaves one report for its own window, and gpugate reads nothing from it.

Profilers write the environment into their reports, and reports travel as artifacts of a job. So a profiled run has the
variables on a list and no others; a workload gets its values by `--perf-set NAME=VALUE`. nsys also reads
/proc/PID/environ of every process that it may look into: also those of the CI job that has started this one, whose
tokens no list here can take away. The kernel refuses that to a process with fewer capabilities than the other one has,
and across user namespaces. Two programs of util-linux start nsys in one of these ways.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpugate.errors import GpugateError, OptionError
from gpugate.machine.children import run_child, start_child
from gpugate.machine.processes import treat_termination_as_ctrl_c
from gpugate.profiling import export
from gpugate.profiling.export import (
    EXPORT,
    FOLDER_VARIABLE,
    REPORT,
    REPORT_STEM,
    Capture,
    CaptureIndex,
    read_index,
    safe_name,
)
from gpugate.report.terminal import LOG_COLUMNS, code_block, terminal_columns
from gpugate.report.visible_text import show_controls
from gpugate.session.options import Profiling
from gpugate.store.json_file import write_atomically
from gpugate.store.writable_folder import lock_folder

# Without CPU sampling: with it, a program of ten kernels made a report of 2 GB. A graph's kernels one by one, as the
# counting pass has them. Ranges become reports when all of them have ended, in their order.
NSYS_OPTIONS = (
    "--trace=cuda,nvtx,osrt",
    "--sample=none",
    "--cpuctxsw=none",
    "--cuda-graph-trace=node",
    "--cuda-memory-usage=true",
    "--capture-range=cudaProfilerApi",
    "--capture-range-end=repeat",
    "--force-overwrite=true",
)
NCU_OPTIONS = (
    "--set=basic",
    "--section=MemoryWorkloadAnalysis_Tables",  # sectors per request, and conflicts of banks
    "--clock-control=none",  # the machine is not ours alone
    "--profile-from-start=off",
    "--graph-profiling=node",
    "--nvtx",
    "--force-overwrite",
    "--import-sass=no",  # else the code of every library that a kernel comes from: 17 MB for 12 kernels of cuBLAS
)
SUMMARY, NCU_REPORT = ".summary.md", "kernels.ncu-rep"
MAY_READ = "nsys may read the variables of other processes here, and write them into it"
ELSEWHERE = "run it as root, where user namespaces are allowed, or in a container of its own"
MOST_SHOWN = 6  # reports: of more the terminal only shows where they are


def keep_reports(run: ProfiledRun) -> Iterator[str]:
    """Moves all reports of nsys into the folder, prints their names, and yields their problems. An error costs no other
    capture."""
    kept: list[tuple[Capture, Path, list[str]]] = []
    for capture in run.index.captures:
        stem = f"{safe_name(capture.case_id)}.{capture.label}"
        try:
            for ending in (REPORT, EXPORT, SUMMARY):
                (run.profiling.folder / f"{stem}{ending}").unlink(missing_ok=True)  # of an earlier run
            if capture.complete:  # a side that failed has failed its test already
                report, brief, problem = _keep(run, capture, stem)
                kept.append((capture, report, brief))
                yield from filter(None, [problem])
        except GpugateError as error:
            yield str(error)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            yield f"{stem} was not kept ({cause}): move what is in its way, or report this"
    say(f"nsys: {len(kept)} reports in {run.profiling.folder}; under a profiler: timings are not judged")
    for capture, report, brief in kept:
        say(f"  {capture.window} ({capture.side}), {capture.steps} steps: {report.name}")
        for line in brief if len(run.index.captures) <= MOST_SHOWN else ():
            say(f"    {line}")
    if kept:
        say(f"all of it: the {SUMMARY} beside each, or `gpugate profile {kept[0][1]}`")


def _keep(run: ProfiledRun, capture: Capture, stem: str) -> tuple[Path, list[str], str | None]:
    """Keeps what nsys left of one capture; returns the report, its summary in a few lines, and the reason where there
    is none. Where nsys was not isolated from other processes, only the summary is kept, and that is an error."""
    from gpugate.profiling.summary import brief, render

    # nsys numbers the reports, a single one perhaps not.
    stems = [f"{REPORT_STEM}.{capture.number}", *([REPORT_STEM] if len(run.index.captures) == 1 else [])]
    left = next((path for one in stems if (path := run.folder / f"{one}{REPORT}").exists()), None)
    if left is None:
        raise export.ProfileError(
            f"nsys wrote no report of {capture.window}: look at its output, its importer may need libdw1"
        )
    folder, lines, problem = run.profiling.folder, list[str](), None
    report = left.replace((folder if run.isolated else run.folder) / f"{stem}{REPORT}")
    try:
        found = export.read_export(export.export_report(report, run.environment), capture.steps, capture.window)
        write_atomically(folder / f"{stem}{SUMMARY}", code_block(render(found, LOG_COLUMNS)))
        lines = brief(found)
    except (GpugateError, OSError) as error:
        problem = f"{report.name} was not summarized: {error}"
    if not run.isolated:
        raise export.ProfileError(f"{report.name} was not kept, as {MAY_READ}: {ELSEWHERE}")
    return report, lines, problem


def keep_kernels(run: ProfiledRun) -> Iterator[str]:
    """Keeps the report of ncu where a run captured a side; yields the reason where ncu made none."""
    if not any(capture.complete for capture in run.index.captures):
        return
    report, kept = run.folder / f"{REPORT_STEM}.ncu-rep", run.profiling.folder / NCU_REPORT
    if report.exists():
        report.replace(kept)
        say(f"ncu: open {kept} in Nsight Compute; under a profiler: not judged")
        return
    output = (run.folder / "log").read_text(encoding="utf-8", errors="replace")
    if "ERR_NVGPUCTRPERM" in output:
        yield f"ncu may not read hardware counters (ERR_NVGPUCTRPERM): {export.PERMISSION}"
        return
    of_kind = (line for kind in ("ERROR", "WARNING") for line in output.splitlines() if kind in line[:12])
    first = next((line.partition("== ")[2][:200] for line in of_kind), "it said no error")
    yield f"ncu made no report ({first}): run it by hand to see more"


def say(line: str) -> None:
    print(show_controls(line), flush=True)


FAILED, INTERRUPTED = 1, 2  # pytest's exit statuses
KILLED_S, LOOK_S = 10.0, 0.1
_UNFINISHED = ".capturing-"


@dataclass(frozen=True)
class ProfiledRun:
    """A run under a profiler that has ended. `folder` is removed when its captures have been kept; `isolated` where the
    profiler could not look into other processes."""

    profiling: Profiling
    folder: Path
    environment: Mapping[str, str]
    index: CaptureIndex
    isolated: bool = True


def run_under_profiler(profiling: Profiling, arguments: Sequence[str]) -> int:
    """Runs pytest with `arguments` under nsys or ncu, keeps the reports in the folder and prints what they are; returns
    the exit status, 1 where a problem with a report is all that failed.

    Raises OptionError for a folder that cannot be written and ProfileError for a profiler that cannot be used.
    """
    tool, isolating = profiling.tool, isolating_words() if profiling.tool == "nsys" else []
    if tool == "nsys":
        profile = export.nsys_profile(allowed_variables(os.environ))
        words, files = [*(isolating or []), *profile, *NSYS_OPTIONS], {"--output": REPORT_STEM}
    else:
        words = [export.require("ncu"), *NCU_OPTIONS, f"--launch-count={profiling.kernels}"]
        files = {"--log-file": "log", "--export": REPORT_STEM}
    try:
        with treat_termination_as_ctrl_c(), hold_folder(profiling.folder, f"--{tool}") as folder:
            environment = {**allowed_variables(os.environ), "COLUMNS": str(terminal_columns())}
            # A profiler passes the output on, so that pytest sees no terminal.
            colour = ["--color=yes"] if sys.stdout.isatty() and "NO_COLOR" not in os.environ else []
            pytest = [sys.executable, "-m", "pytest", *arguments, *colour]
            written = (f"{option}={folder / name}" for option, name in files.items())
            ended = run_profiled([*words, *written, *pytest], folder, environment)
            index = read_index(folder)
            run = ProfiledRun(profiling, folder, environment, index, isolating is not None)
            problems = list(keep_reports(run) if tool == "nsys" else keep_kernels(run))
    except KeyboardInterrupt:
        say(f"--{tool} was interrupted: not all of its reports are kept")
        return INTERRUPTED
    if index.status is None:
        problems.append(f"pytest did not end by itself under {tool}, which ended with status {ended}")
    elif index.status == 0 and ended:
        problems.append(f"{tool} ended with status {ended}, after all tests had passed")
    for problem in dict.fromkeys(problems):
        say(f"ERROR: {problem}")
    # What pytest says counts; the profiler's own status only where pytest could say nothing, or all went well.
    return index.status or (ended if ended >= 0 else 128 - ended) or (FAILED if problems else 0)


@contextmanager
def hold_folder(folder: Path, option: str) -> Iterator[Path]:
    """Makes and locks the folder, removes what a killed run left in it, and yields a folder inside it, which is removed
    at the end. Raises OptionError, naming `option`, for a folder that cannot be written or is locked."""
    with lock_folder(folder, OptionError, f"{option} {folder}"):
        for left in folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder, ignore_cleanup_errors=True) as inside:
            yield Path(inside)


def run_profiled(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> int:
    """Runs `command` in the working folder to its end; its exit status is negative for a signal.

    Where this process is interrupted, everything is killed: a profiler would make reports for minutes.
    """
    known = {**environment, FOLDER_VARIABLE: str(folder)}
    try:
        with start_child(command, env=known, stdin=subprocess.DEVNULL) as process:
            while True:  # in short turns: an endless wait may not see a signal that comes as it begins
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(LOOK_S)
    finally:
        _kill_all(folder)


def _kill_all(folder: Path) -> None:
    """Kills every process whose environment names the folder until none is left: a daemon of a profiler leaves the
    process group and the session of the run."""
    variable = f"{FOLDER_VARIABLE}={folder}".encode()
    deadline = time.monotonic() + KILLED_S
    while time.monotonic() < deadline:
        left = [int(path.name) for path in Path("/proc").glob("[0-9]*") if variable in _environment(int(path.name))]
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)


def _environment(pid: int) -> list[bytes]:
    """The variables of a process as they were at its start; empty once it has ended."""
    try:
        return [word for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if word]
    except OSError:
        return []


REFUSED = 77  # an exit status that nothing else has
ISOLATION_S = 10.0
ISOLATIONS = (
    # Of root alone: with any of these capabilities a process may read the memory of every other one.
    ("setpriv", "--bounding-set=-sys_ptrace,-perfmon,-sys_admin,-setpcap"),
    ("unshare", "--user", "--map-current-user"),
)


def isolating_words() -> list[str] | None:
    """The beginning of a command line whose program cannot read the environment of this process; None where this
    machine allows no such program."""
    look = f"try: open({f'/proc/{os.getpid()}/environ'!r}, 'rb').read()\nexcept OSError: raise SystemExit({REFUSED})"
    for words in ISOLATIONS:
        command = [*words, sys.executable, "-I", "-S", "-c", look]
        if shutil.which(words[0]) and run_child(command, ISOLATION_S).status == REFUSED:
            return list(words)
    return None


_ALLOWED = re.compile(
    r"""
    PATH | HOME | USER | LOGNAME | SHELL | TMPDIR | TZ | TERM | COLUMNS | LINES | NO_COLOR | FORCE_COLOR | PY_COLORS
    | HOSTNAME | KUBERNETES_SERVICE_(HOST|PORT(_HTTPS)?) | KUBERNETES_PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?
    | LANG | LANGUAGE | LC_[A-Z]+
    | LD_LIBRARY_PATH | LD_PRELOAD | CC | CXX | XDG_CACHE_HOME | XDG_RUNTIME_DIR | VIRTUAL_ENV | CONDA_PREFIX
    | PYTHON(PATH|HOME|HASHSEED|UNBUFFERED|DONTWRITEBYTECODE|NOUSERSITE|UTF8|IOENCODING|WARNINGS|PYCACHEPREFIX)
    | PYTEST_(ADDOPTS|PLUGINS|DISABLE_PLUGIN_AUTOLOAD)
    | (OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS | (OMP|KMP|GOMP)_[A-Z_]+
    | CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|DEVICE_MAX_CONNECTIONS|HOME|PATH|CACHE_PATH|CACHE_DISABLE|CACHE_MAXSIZE)
    | CUDA_(LAUNCH_BLOCKING|MODULE_LOADING|MPS_PIPE_DIRECTORY|MPS_LOG_DIRECTORY|MPS_ACTIVE_THREAD_PERCENTAGE)
    | NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES|TF32_OVERRIDE)
    | CUBLAS_WORKSPACE_CONFIG | CUDNN_LOGLEVEL_DBG | NVTX_DISABLE
    | PYTORCH_(CUDA_)?ALLOC_CONF | PYTORCH_NVML_BASED_CUDA_CHECK | TORCH_(HOME|EXTENSIONS_DIR|CUDNN_[A-Z0-9_]+)
    | TORCHINDUCTOR_(CACHE_DIR|FX_GRAPH_CACHE|COMPILE_THREADS|FREEZING|MAX_AUTOTUNE) | TRITON_(CACHE_DIR|HOME)
    """,
    re.VERBOSE,
)


def allowed_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a report may show."""
    return {name: value for name, value in environment.items() if _ALLOWED.fullmatch(name)}
