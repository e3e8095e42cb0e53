"""One night of `--perf-report` as `night.html`, a page that needs no script and no network. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpugate import units
from gpugate.report.pages.rendering import render
from gpugate.report.tables import checks_by_outcome
from gpugate.report.view import RunView
from gpugate.results.case import CaseResult, summarize_decider
from gpugate.results.changes import Changes, Flip, Moved, find_flips
from gpugate.results.run import RunResult, night_of
from gpugate.results.summary import Summary
from gpugate.results.verdict import SEVERITY, outcome_word

NO_RECORD = "no record"
COPIES = ("host_to_device_ms", "device_to_host_ms", "device_to_device_ms")


def night_page(view: RunView, last: tuple[str, RunResult] | str) -> bytes:
    """The page of one night, with the changes since the last one, or the sentence why there is no last one."""
    run = view.run
    changes = None if isinstance(last, str) else Changes(night_of(last[1]), night_of(run))
    flips = [] if isinstance(last, str) else list(find_flips(last[1], run))
    measured = [case for case in run.cases.values() if case.verdicts or case.measurement is not None]
    measured.sort(key=lambda case: not case.verdicts)  # those that nothing judged come last
    found = {one.case_ids[0]: one for one in view.found}
    failures = {case_id: found.get(case_id) for case_id in (*view.errors, *found)}  # the worst first
    return render(
        "night.html",
        view=view,
        run=run,
        light=_light(run),
        rest=_rest(view),
        warned=[*([view.fault] if view.fault else []), *view.problems, *view.warnings],
        worth=[words for words in (view.records, view.comparisons, view.proofs, view.not_gated) if words],
        last=last,
        changes=changes,
        flipped=len(flips),
        flips=_flip_rows(flips),
        moved=[_moved_cells(one) for one in changes.moved] if changes else [],
        judged=any(case.verdicts for case in run.cases.values()),
        failures=failures,
        links={case_id: f"f{number}" for number, case_id in enumerate(failures, 1)},
        rows=list(map(_case_row, measured)),
    )


def _light(run: RunResult) -> tuple[str, str]:
    """The state of the whole run, as a class and in words: the answer of `gpugate verdict`."""
    if run.interrupted:
        return "open", "interrupted"
    if run.recording or not run.gate:
        return "open", "no gate"
    if run.exit_status is None:
        return "open", "no exit status"
    return ("good", "gate green") if run.exit_status == 0 else ("bad", "gate red")


def _rest(view: RunView) -> str:
    """The end of the first sentence: the machine, the duration, and the sharpness or, without records, the gains."""
    worth = view.sharpness or "; ".join(view.gains) or "no case has a record, so its sharpness is unknown"
    return f"on {view.run.environment.device_name}, in {units.duration(view.run.wall_s)}; {worth}."


def _case_row(case: CaseResult) -> dict[str, Any]:
    """A measured case: its verdicts by outcome, and its figures against its record."""
    now, allowed, detectable = summarize_decider(case), case.number("time_tolerance"), case.detectable_slowdown
    then = case.remembered.current if case.remembered else None
    return {
        "case_id": case.case_id,
        "verdict": outcome_word(case.worst),
        "checks": checks_by_outcome(case.verdicts),
        "strip": _speedup_strip(case, now),
        "bill": _divide_step(case, now),
        "figures": (
            units.ratio(now.speedup.median) if now else "",
            units.interval(now.speedup.low, now.speedup.high) if now else "",
            units.ratio(then.speedup) if then else NO_RECORD,
            f"±{units.percent(allowed)}" if allowed is not None else "",
            units.percent(detectable) if detectable is not None else "none" if then else "",
            units.milliseconds(now.optimized_ms.median) if now else "",
            units.milliseconds(then.optimized_ms) if then else "",
        ),
    }


def _divide_step(case: CaseResult, now: Summary | None) -> list[tuple[str, float, float]]:
    """The parts of an optimized step by its bill, each with its beginning and its length in percent; empty without one.

    CPU time counts as far as kernels and copies leave time, and gaps are the rest.
    """
    if case.measurement is None or now is None:
        return []
    found = case.measurement.optimized_counters
    copies_ms = sum(found.get(name, 0.0) for name in COPIES)
    cpu_ms = 0.0 if found.get("spinning") else found.get("cpu_ms", 0.0)  # threads that wait in a loop do no work
    times_ms = {"kernels": found.get("kernel_ms", 0.0), "copies": copies_ms, "CPU": cpu_ms}
    begin, parts = 0.0, []
    for name, ms in times_ms.items():
        share = round(min(100 * ms / now.optimized_ms.median, 100 - begin), 1)
        parts += [(name, begin, share)] if share else []
        begin = round(begin + share, 1)
    return [*parts, *([("gaps", begin, round(100 - begin, 1))] if parts and begin < 100 else [])]


def _speedup_strip(case: CaseResult, now: Summary | None) -> dict[str, Any] | None:
    """The speedup against its record, else against its promise; without either, its interval alone. `words` describe
    the picture to a screen reader."""
    if now is None:
        return None
    found, minimum = now.speedup, case.promise.min_speedup if case.promise else None
    then = case.remembered.current.speedup if case.remembered else minimum
    against = "its record" if case.remembered else "its promise" if then else "itself, since it has no record"
    value, low, high = (one / (then or found.median) - 1 for one in (found.median, found.low, found.high))
    change, *ends = map(units.signed_percent, (value, low, high))
    words = f"speedup against {against}: {change} ({'..'.join(ends)})"
    return {"value": value, "low": low, "high": high, "words": words}


def _flip_rows(flips: Sequence[Flip]) -> list[tuple[str, list[str], str, str]]:
    """Case, checks and the outcome before and after; flips of one case alike in one row, the most severe first."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for flip in sorted(flips, key=lambda flip: SEVERITY.index(flip.after) if flip.after else len(SEVERITY)):
        words = outcome_word(flip.before), outcome_word(flip.after)
        found.setdefault((flip.case_id, *words), []).append(flip.check)
    return [(case_id, checks, before, after) for (case_id, before, after), checks in found.items()]


def _moved_cells(moved: Moved) -> tuple[str, ...]:
    """A case with its speedup and its time per step, each before and after, and their changes."""
    cells = [moved.case_id]
    for one, write in ((moved.speedup, units.ratio), (moved.per_step_ms, units.milliseconds)):
        cells += [f"{write(one.before.median)} → {write(one.after.median)}", units.signed_percent(one.share)]
    return tuple(cells)
