"""What nsys left of a run: every report under the name of its test parameter, exported, summarized and listed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpugate.codec import write_atomically
from gpugate.errors import GpugateError
from gpugate.profiling import summary_file
from gpugate.profiling.artifact_names import EXPORT, NOT_IMPORTED, REPORT, safe_name
from gpugate.profiling.capture_index import REPORT_STEM, Capture
from gpugate.profiling.nsight_tools import Nsys
from gpugate.profiling.nsys_tool import exported
from gpugate.profiling.self_start import ProfiledRun
from gpugate.report.markdown import escaped, plain, table_row

SUMMARY, SUMMARY_JSON, LIST = ".summary.md", ".summary.json", "summary.md"
ENDINGS = (REPORT, NOT_IMPORTED, EXPORT, SUMMARY, SUMMARY_JSON)
HEADINGS = ("test parameter", "side", "steps", "items per step", "report", "MB", "what it says")
NOT_JUDGED = "under a profiler: timings are not judged"


@dataclass(frozen=True)
class Kept:
    """What became of one capture; `problem` is why there is no report, or why it was not summarized."""

    capture: Capture
    report: Path | None = None
    summary: Path | None = None
    problem: str | None = None


def keep_reports(run: ProfiledRun, nsys: Nsys, say: Callable[[str], None]) -> list[str]:
    """Moves all reports of the run into its folder, says which they are, and returns what is wrong with them."""
    kept = [_kept(run, nsys, capture) for capture in run.index.captures]
    folder = run.profiling.folder
    write_atomically(folder / LIST, _listed(kept))
    reports = [each.report for each in kept if each.report is not None and each.report.suffix == REPORT]
    say(f"nsys: {len(reports)} reports in {folder}, listed in its {LIST}; {NOT_JUDGED}")
    for each in kept:
        if each.report is not None:
            capture = each.capture
            say(f"  {capture.case_id} {capture.label} ({capture.side}), {capture.steps} steps: {each.report.name}")
    # A side that failed has failed its test already: it is no problem of the profile.
    return list(dict.fromkeys(each.problem for each in kept if each.problem and each.capture.complete))


def _kept(run: ProfiledRun, nsys: Nsys, capture: Capture) -> Kept:
    stem = f"{safe_name(capture.case_id)}.{capture.label}"
    paths = {ending: run.profiling.folder / f"{stem}{ending}" for ending in ENDINGS}
    for path in paths.values():
        path.unlink(missing_ok=True)  # of an earlier run: it must not pass for what this report says
    if not capture.complete:
        return Kept(capture, problem="its steps failed or were cut off")
    name = run.folder / (capture.report or f"{REPORT_STEM}.{capture.number}{REPORT}")
    found = next((path for path in map(name.with_suffix, (REPORT, NOT_IMPORTED)) if path.exists()), None)
    if found is None:
        return Kept(capture, problem=f"nsys wrote no report of {capture.case_id} {capture.label}: look at what it said")
    kept = found.replace(paths[found.suffix])
    if kept.suffix == NOT_IMPORTED:
        return Kept(
            capture, kept, problem=f"nsys made no report of {kept.name}, which is kept: {nsys.importer_problem()}"
        )
    try:
        _summarize(kept, nsys, paths, capture.steps)
    except (GpugateError, OSError) as error:
        return Kept(capture, kept, problem=f"{kept.name} was not summarized: {error}")
    return Kept(capture, kept, paths[SUMMARY])


def _summarize(report: Path, nsys: Nsys, paths: dict[str, Path], steps: int) -> None:
    from gpugate.profiling.render import markdown
    from gpugate.profiling.summary import summarize, with_findings

    export = exported(report, nsys)
    summary = with_findings(summarize(export, steps), export, nsys)
    summary_file.write(paths[SUMMARY_JSON], summary)
    write_atomically(paths[SUMMARY], markdown(summary))


def _listed(kept: list[Kept]) -> str:
    """The list of all captures as Markdown."""
    rows = [table_row([escaped(cell) for cell in HEADINGS]), "|" + "---|" * len(HEADINGS), *map(_row, kept)]
    return "\n".join([f"# Profiles\n\n{plain(NOT_JUDGED)}\n", *rows]) + "\n"


def _row(each: Kept) -> str:
    capture, report = each.capture, each.report
    words = [capture.case_id, f"{capture.label} ({capture.side})", str(capture.steps), str(capture.items)]
    size = f"{report.stat().st_size / 1e6:.1f}" if report else ""
    link = f"[summary]({each.summary.name})" if each.summary else escaped(each.problem or "")
    return table_row([*map(escaped, words), f"`{report.name}`" if report else "", size, link])
