"""Runs of pytest under nsys and ncu, and the reports that are kept of them.

nsys leaves a report per test parameter and side, which is exported and summarized. ncu leaves one report for
its own window, and gpugate reads nothing from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpugate.errors import GpugateError
from gpugate.profiling import nsight_tools
from gpugate.profiling.capture_index import EXPORT, NOT_IMPORTED, REPORT, REPORT_STEM, Capture, safe_name
from gpugate.profiling.export import ProfileError
from gpugate.profiling.isolated_environment import allowed_variables, isolating_words
from gpugate.profiling.profiled_run import ProfiledRun, start_profiled
from gpugate.session.options import Profiling
from gpugate.store.json_file import write_atomically

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
    "--clock-control=none",  # the machine is not ours alone
    "--profile-from-start=off",
    "--graph-profiling=node",
    "--nvtx",
    "--force-overwrite",
    "--import-sass=no",  # else the code of every library that a kernel comes from: 17 MB for 12 kernels of cuBLAS
)
SUMMARY, SUMMARY_JSON, NCU_REPORT = ".summary.md", ".summary.json", "kernels.ncu-rep"
MAY_READ = "nsys may read the variables of other processes here, and write them into it"
ELSEWHERE = "run it as root, where user namespaces are allowed, or in a container of its own"
MOST_SHOWN = 6  # reports: of more the terminal only shows where they are


@dataclass(frozen=True)
class Kept:
    """The report kept of one capture. `problem`: why a file is missing; `brief`: the summary in a few lines."""

    capture: Capture
    report: Path | None = None
    problem: str | None = None
    brief: Sequence[str] = ()


def run_under_nsys(profiling: Profiling, arguments: Sequence[str], print_line: Callable[[str], None]) -> int:
    """Runs pytest under nsys, keeps its reports in the folder and prints what they are; returns the exit status.

    Raises OptionError for a folder that cannot be written and EnvironmentUnfitError for an nsys that cannot be used.
    """
    profile = nsight_tools.nsys_profile(allowed_variables(os.environ))  # before there is a folder
    isolated = isolating_words()

    def command(folder: Path) -> list[str]:
        return [*(isolated or []), *profile, *NSYS_OPTIONS, f"--output={folder / REPORT_STEM}"]

    def keep(run: ProfiledRun) -> list[str]:
        return keep_reports(run, isolated is not None, print_line)

    return start_profiled(profiling, arguments, command, keep, print_line)


def keep_reports(run: ProfiledRun, isolated: bool, print_line: Callable[[str], None]) -> list[str]:
    """Moves all reports of the run into its folder, prints their names, and returns their problems. Where nsys was not
    `isolated` from other processes, only the summaries are kept."""
    folder = run.profiling.folder
    kept = [_keep(run, capture, isolated) for capture in run.index.captures]
    reports = [each.report for each in kept if each.report is not None and each.report.suffix == REPORT]
    print_line(f"nsys: {len(reports)} reports in {folder}; under a profiler: timings are not judged")
    for each in kept:
        if each.report is not None:
            print_line(f"  {each.capture.window} ({each.capture.side}), {each.capture.steps} steps: {each.report.name}")
            for line in each.brief if len(kept) <= MOST_SHOWN else ():
                print_line(f"    {line}")
    if reports:
        print_line(f"all of it: the {SUMMARY} beside each, or `gpugate profile {reports[0]}`")
    return list(dict.fromkeys(each.problem for each in kept if each.problem))


def _keep(run: ProfiledRun, capture: Capture, isolated: bool) -> Kept:
    """Keeps what nsys left of one capture; an error costs no other capture."""
    stem = f"{safe_name(capture.case_id)}.{capture.label}"
    folder = run.profiling.folder
    try:
        for ending in (REPORT, NOT_IMPORTED, EXPORT, SUMMARY, SUMMARY_JSON):
            (folder / f"{stem}{ending}").unlink(missing_ok=True)  # of an earlier run
        if not capture.complete:  # a side that failed has failed its test already
            return Kept(capture)
        found = _find(run, capture)
        if found is None:
            return Kept(capture, problem=f"nsys wrote no report of {capture.window}: look at its output")
        found = found.replace(run.folder / f"{stem}{found.suffix}")
        problem, brief = None, []
        try:
            if found.suffix == NOT_IMPORTED:
                raise ProfileError("nsys could not import it: its importer may need libdw.so.1, apt install libdw1")
            brief = _summarize(nsight_tools.export_report(found, run.environment), folder / stem, capture)
        except (GpugateError, OSError) as error:
            problem = f"{found.name} was not summarized: {error}"
        if not isolated:
            return Kept(capture, problem=f"{found.name} was not kept, as {MAY_READ}: {ELSEWHERE}")
        for path in (found, found.with_suffix(EXPORT)):
            if path.exists():
                path.replace(folder / path.name)
        return Kept(capture, folder / found.name, problem, brief)
    except Exception as error:
        return Kept(
            capture,
            problem=f"{stem} was not kept ({type(error).__name__}: {error}): move what is in its way, or report this",
        )


def _find(run: ProfiledRun, capture: Capture) -> Path | None:
    """The report of the capture's range: nsys numbers them, a single one perhaps not."""
    stems = [f"{REPORT_STEM}.{capture.number}", *([REPORT_STEM] if len(run.index.captures) == 1 else [])]
    named = (run.folder / f"{stem}{ending}" for stem in stems for ending in (REPORT, NOT_IMPORTED))
    return next((path for path in named if path.exists()), None)


def _summarize(export: Path, target: Path, capture: Capture) -> list[str]:
    """Writes the summary to files that begin with `target`; returns it in a few lines."""
    from gpugate.profiling.render import brief, markdown
    from gpugate.profiling.summary import summarize, write_summary

    summary = summarize(export, capture.steps, capture.window)
    write_summary(target.with_name(target.name + SUMMARY_JSON), summary)
    write_atomically(target.with_name(target.name + SUMMARY), markdown(summary))
    return brief(summary)


def run_under_ncu(profiling: Profiling, arguments: Sequence[str], print_line: Callable[[str], None]) -> int:
    """Runs pytest under ncu, keeps its report, and returns the exit status.

    Raises OptionError for a folder that cannot be written and EnvironmentUnfitError for an ncu that is not there.
    """
    ncu = nsight_tools.require("ncu")

    def command(folder: Path) -> list[str]:
        files = f"--log-file={folder / 'log'}", f"--export={folder / REPORT_STEM}"
        return [ncu, *NCU_OPTIONS, f"--launch-count={profiling.kernels}", *files]

    return start_profiled(profiling, arguments, command, lambda run: _keep_of_ncu(run, print_line), print_line)


def _keep_of_ncu(run: ProfiledRun, print_line: Callable[[str], None]) -> list[str]:
    """Keeps the report of a run that captured a side; returns the reason where ncu made none."""
    if not any(capture.complete for capture in run.index.captures):
        return []
    report, kept = run.folder / f"{REPORT_STEM}.ncu-rep", run.profiling.folder / NCU_REPORT
    if report.exists():
        report.replace(kept)
        print_line(f"ncu: open {kept} in Nsight Compute; under a profiler: not judged")
        return []
    log = run.folder / "log"
    output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if "ERR_NVGPUCTRPERM" in output:
        return [f"ncu may not read hardware counters (ERR_NVGPUCTRPERM): {nsight_tools.PERMISSION}"]
    of_kind = (line for kind in ("ERROR", "WARNING") for line in output.splitlines() if kind in line[:12])
    first = next((line.partition("== ")[2][:200] for line in of_kind), "it said no error")
    return [f"ncu made no report ({first}): run it by hand to see more"]
