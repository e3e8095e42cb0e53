"""One Nsight Systems report per test parameter and side: captured, exported, summarized and listed."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpugate import units
from gpugate.errors import GpugateError
from gpugate.profiling import nsight_tools
from gpugate.profiling.capture_index import EXPORT, NOT_IMPORTED, REPORT, REPORT_STEM, Capture, safe_name
from gpugate.profiling.foreign_variables import scrubbed_of, values_in
from gpugate.profiling.isolated_environment import allowed, can_isolate, isolated_command
from gpugate.profiling.nsight_tools import Nsys, end_all, exported
from gpugate.profiling.profiled_run import LOOK_S, TO_END, ProfiledRun, start_profiled
from gpugate.report.markdown import escaped, plain, table_row
from gpugate.session.options import Profiling
from gpugate.store.codec import write_atomically

# Without CPU sampling: with it, a program of ten kernels made a report of 2 GB. A graph's kernels one by one, as the
# counting pass has them. Ranges become reports when all of them have ended, in their order.
OPTIONS = (
    "--trace=cuda,nvtx,osrt",
    "--sample=none",
    "--cpuctxsw=none",
    "--cuda-graph-trace=node",
    "--cuda-memory-usage=true",
    "--capture-range=cudaProfilerApi",
    "--capture-range-end=repeat",
    "--force-overwrite=true",
)


def run_under_nsys(profiling: Profiling, arguments: Sequence[str], say: Callable[[str], None]) -> int:
    """Runs pytest under nsys, keeps its reports in the folder and says what they are; returns the exit status.

    Raises OptionError for a folder that cannot be written and EnvironmentUnfitError for an nsys that cannot be used.
    """
    found = nsight_tools.nsys(allowed(os.environ))  # before there is a folder
    tool: list[Nsys] = []

    def command(folder: Path, environment: Mapping[str, str]) -> list[str]:
        nsys = replace(found, environment=environment)
        tool.append(nsys)
        output = f"--output={folder / REPORT_STEM}"
        return isolated_command([nsys.path, "profile", *OPTIONS, *nsys.leaner, output, *profiling.nsys_words])

    return start_profiled(profiling, arguments, command, lambda run: keep_reports(run, tool[0], say), say)


SUMMARY, SUMMARY_JSON, LIST = ".summary.md", ".summary.json", "summary.md"
ENDINGS = (REPORT, NOT_IMPORTED, EXPORT, SUMMARY, SUMMARY_JSON)
HEADINGS = ("test parameter", "side", "steps", "items per step", "report", "MB", "what it says")
RULE = "|" + "---|" * len(HEADINGS)
NOT_JUDGED = "under a profiler: timings are not judged"
AT_ONCE = 4  # a summary of a million events takes 200 MiB
NAMED = 3
MOST_TOLD = 6  # reports: of more the terminal only says where they are
LARGEST_MB = 20.0
_CELL_ENDS = re.compile(r"(?<!\\)\|")
_LINK = re.compile(r"\[summary\]\((.+)\)")


@dataclass(frozen=True)
class Kept:
    """What became of one capture; `problem` is why there is no report, or why it was not summarized, `brief` what it
    says."""

    capture: Capture
    report: Path | None = None
    summary: Path | None = None
    problem: str | None = None
    brief: Sequence[str] = ()


def keep_reports(run: ProfiledRun, nsys: Nsys, say: Callable[[str], None]) -> list[str]:
    """Moves all reports of the run into its folder, says which they are, and returns what is wrong with them."""
    kept = _all_kept(run, nsys)
    folder = run.profiling.folder
    rows = [_row(each) for each in kept]
    write_atomically(folder / LIST, _listed([*_rows_before(folder, rows), *rows]))
    reports = [each.report for each in kept if each.report is not None and each.report.suffix == REPORT]
    say(f"nsys: {len(reports)} reports in {folder}, listed in its {LIST}; {NOT_JUDGED}")
    for each in kept:
        if each.report is not None:
            say(f"  {_told(each.capture, each.report)}")
            for line in each.brief if len(kept) <= MOST_TOLD else ():
                say(f"    {line}")
    if reports:
        say(f"all of it: the {SUMMARY} beside each, or `gpugate profile {reports[0]}`")
    # A side that failed has failed its test already: it is no problem of the profile.
    return list(dict.fromkeys(each.problem for each in kept if each.problem and each.capture.complete))


def _all_kept(run: ProfiledRun, nsys: Nsys) -> list[Kept]:
    """In the order of the captures. Where we are to end, nothing of nsys goes on running, and the threads end."""
    with ThreadPoolExecutor(min(AT_ONCE, os.cpu_count() or 1)) as pool:  # the work is nsys's and SQLite's
        makings = [pool.submit(_kept, run, nsys, capture) for capture in run.index.captures]
        try:
            while wait(makings, LOOK_S).not_done:  # an endless wait may not see a signal that comes as it begins
                pass
            return [making.result() for making in makings]
        except TO_END:
            for making in makings:
                making.cancel()
            while not all(making.done() for making in makings):
                with suppress(*TO_END):  # once is enough
                    end_all()
                    wait(makings, LOOK_S)
            raise


def _told(capture: Capture, report: Path) -> str:
    size_mb = report.stat().st_size / 1e6
    large = f", {size_mb:.0f} MB: more than {LARGEST_MB:g} MB, so pass on its summary" if size_mb > LARGEST_MB else ""
    return f"{capture.case_id} {capture.label} ({capture.side}), {capture.steps} steps: {report.name}{large}"


def _kept(run: ProfiledRun, nsys: Nsys, capture: Capture) -> Kept:
    """Whatever is wrong with one capture, the others are kept."""
    stem = f"{safe_name(capture.case_id)}.{capture.label}"
    try:
        return _made(run, nsys, capture, stem)
    except OSError as error:
        return Kept(capture, problem=f"{stem} was not kept ({error}): move what is in its way")
    except Exception as error:
        return Kept(capture, problem=f"{stem} was not kept ({type(error).__name__}: {error}): report this")


def _made(run: ProfiledRun, nsys: Nsys, capture: Capture, stem: str) -> Kept:
    paths = {ending: run.profiling.folder / f"{stem}{ending}" for ending in ENDINGS}
    for path in paths.values():
        path.unlink(missing_ok=True)  # of an earlier run: it must not pass for what this report says
    if not capture.complete:
        return Kept(capture, problem="its steps failed or were cut off")
    found = _found(run, capture)
    if found is None:
        return Kept(capture, problem=f"nsys wrote no report of {capture.window}: look at what it said")
    if found.suffix == NOT_IMPORTED:
        return _not_imported(found, nsys, paths[NOT_IMPORTED], capture)
    return _checked(found, nsys, paths, capture)


def _found(run: ProfiledRun, capture: Capture) -> Path | None:
    """The report of the capture's range: nsys numbers them, a single one perhaps not."""
    stems = [f"{REPORT_STEM}.{capture.number}", *([REPORT_STEM] if len(run.index.captures) == 1 else [])]
    named = (run.folder / f"{stem}{ending}" for stem in stems for ending in (REPORT, NOT_IMPORTED))
    return next((path for path in named if path.exists()), None)


def _not_imported(found: Path, nsys: Nsys, kept: Path, capture: Capture) -> Kept:
    """Keeps it for an nsys that is whole, unless there may be in it what only an export can be searched for."""
    unmade, why = f"nsys made no report of {kept.name}, which is", nsys.importer_problem()
    if not can_isolate():
        problem = f"{unmade} not kept, as nsys may read the variables of other processes here, and write them into it"
        return Kept(capture, problem=f"{problem}: {why}")
    try:
        secret = values_in(found, os.environ)
    except OSError as error:
        problem = f"{unmade} not kept, as it could not be searched for secrets ({error.strerror}): {why}"
        return Kept(capture, problem=problem)
    if secret:
        problem = f"{unmade} not kept, as values that no list allows stand in it ({units.listed(secret, NAMED)})"
        return Kept(capture, problem=f"{problem}: {why}")
    return Kept(capture, found.replace(kept), problem=f"{unmade} kept: {why}")


def _checked(found: Path, nsys: Nsys, paths: dict[str, Path], capture: Capture) -> Kept:
    """Nothing leaves the working folder before it was searched for what other processes had in their environments."""
    name = paths[REPORT].name
    try:
        export = exported(found, nsys)
        foreign = scrubbed_of(export)
    except (GpugateError, OSError) as error:
        return Kept(capture, problem=f"{name} was not kept, as it could not be searched for secrets: {error}")
    report = None if foreign else found.replace(paths[REPORT])
    export = export.replace(paths[EXPORT])
    problem = _told_foreign(foreign, name) if foreign else None
    try:
        brief = _summarize(export, nsys, paths, capture)
    except (GpugateError, OSError, sqlite3.Error) as error:
        return Kept(capture, report, problem=problem or f"{name} was not summarized: {error}")
    return Kept(capture, report, paths[SUMMARY], problem, brief)


def _told_foreign(foreign: list[str], name: str) -> str:
    return (
        f"{name} was not kept, as nsys had written the variables of other processes into it "
        f"({units.listed(foreign, NAMED)}); its summary and an export without them are: run it as root, where user "
        "namespaces are allowed, or in a container of its own"
    )


def _summarize(export: Path, nsys: Nsys, paths: dict[str, Path], capture: Capture) -> list[str]:
    from gpugate.profiling.render import brief, markdown
    from gpugate.profiling.summary import summarize, with_findings, write_summary

    summary = with_findings(summarize(export, capture.steps, capture.window), export, nsys)
    write_summary(paths[SUMMARY_JSON], summary)
    write_atomically(paths[SUMMARY], markdown(summary))
    return brief(summary)


def _listed(rows: list[str]) -> str:
    """The list of all captures as Markdown."""
    head = [table_row([escaped(cell) for cell in HEADINGS]), RULE]
    return "\n".join([f"# Profiles\n\n{plain(NOT_JUDGED)}\n", *head, *rows]) + "\n"


def _rows_before(folder: Path, rows: list[str]) -> list[str]:
    """Of the list of earlier runs the captures that were not made again, as far as there is something of them."""
    path = folder / LIST
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    listed = text.partition(f"\n{RULE}\n")[2].splitlines()
    again = {_of_row(row)[0] for row in rows}
    kept = []
    for row in listed:
        capture, names = _of_row(row)
        if capture not in again and any((folder / name).is_file() for name in names):
            kept.append(row)
    return kept


def _of_row(row: str) -> tuple[tuple[str, str], list[str]]:
    """Of which case and side it is, and the files that it names."""
    cells = [cell.strip() for cell in _CELL_ENDS.split(row)[1:-1]]
    if len(cells) != len(HEADINGS):
        return ("", ""), []
    link = _LINK.fullmatch(cells[-1])
    names = [cells[4].strip("`"), link[1] if link else ""]
    return (cells[0], cells[1].partition(" ")[0]), [name for name in names if name]


def _row(each: Kept) -> str:
    capture, report = each.capture, each.report
    words = [capture.case_id, f"{capture.label} ({capture.side})", str(capture.steps), str(capture.items)]
    size = f"{report.stat().st_size / 1e6:.1f}" if report else ""
    link = f"[summary]({each.summary.name})" if each.summary else escaped(each.problem or "")
    return table_row([*map(escaped, words), f"`{report.name}`" if report else "", size, link])
