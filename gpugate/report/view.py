"""A run in words and tables: all that a terminal, a page and a Markdown template print of it. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property

from gpugate import units
from gpugate.judging.evidence import duet_of
from gpugate.measurement.derived import whole_run
from gpugate.report.bottleneck import bottleneck
from gpugate.report.machine import load, yardsticks
from gpugate.report.next_step import describe_next_step, describe_recording
from gpugate.report.table import Table
from gpugate.report.tables import bill_table, checks_by_outcome, overview_table, results_table, series_tables
from gpugate.results.case import CaseResult, summarize_decider
from gpugate.results.duet import DuetOutcome
from gpugate.results.reason import ReasonCode
from gpugate.results.run import Mode, RunResult
from gpugate.results.series import sweeps
from gpugate.results.verdict import (
    CASE_CHECKS,
    GOOD,
    NOT_JUDGED,
    SEVERITY,
    Outcome,
    Verdict,
    order_verdicts,
    outcome_word,
)
from gpugate.units import date_of, number_of, percent

MOST_NAMED = 3  # optimizations by name
SHARP = 0.05  # a gate that misses a slowdown of this share is blunt
REPEATING = "wrong output"  # the kind of an autopsy whose cause is the reason of the verdict
NO_EVIDENCE = (Outcome.ENV_INVALID, Outcome.WRONG, Outcome.NOT_ENGAGED)  # such times are no evidence of a gain


@dataclass(frozen=True)
class Finding:
    """Everything about a case that is not PASS, the most severe verdict first, and the other cases it is true of."""

    verdicts: tuple[Verdict, ...]
    case_ids: tuple[str, ...]
    next_step: str

    @property
    def outcome(self) -> Outcome:
        return self.verdicts[0].outcome

    @property
    def reason(self) -> str:
        return self.verdicts[0].reason

    @property
    def checks(self) -> str:
        """`throughput, counters; UNDECIDED speedup`: checks of another outcome stand behind it."""
        rows = [f"{outcome} {checks}" for outcome, checks in checks_by_outcome(self.verdicts).items()]
        return "; ".join(rows).removeprefix(f"{self.outcome.value} ")

    @property
    def sentences(self) -> list[str]:
        """The reason, then a line for each check with all that its verdict adds; nothing is said twice."""
        lines, said = [self.reason], {self.reason}
        for verdict in self.verdicts:
            words = [one for one in (verdict.reason, *verdict.circumstances) if one not in said]
            said.update(words)
            lines += [f"{verdict.check}: {'; '.join(words)}"] if words else []
        return lines


class RunView:
    """A run in words and tables. A renderer chooses, orders and cuts them; it adds no word about a case."""

    def __init__(self, run: RunResult) -> None:
        self.run, self.cases, self.problems = run, list(run.cases.values()), tuple(run.problems)

    # --- what the run is ----------------------------------------------------------------------------------------------

    @cached_property
    def headline(self) -> str:
        """The kind of the run with its counts: `gate: 89 cases measured (1 REGRESSED, 88 PASS), exit status 1`."""
        run = self.run
        kind = "gate" if run.gate else "run without --gate"
        kind += f", shard {run.shard}" if run.shard is not None else ""
        problems = [number_of(len(run.problems), "problem")] if run.problems else []
        ending = ["interrupted"] if run.interrupted else []
        ending += [f"exit status {run.exit_status}"] if run.exit_status else []
        return f"{kind}: {', '.join([self.counts, *problems, *ending])}"

    @property
    def fault(self) -> str | None:
        """One sentence where a known fault was put in; None otherwise."""
        mutated = self.run.mutated
        return f"MUTATED by {mutated}: every optimized side has this fault on purpose" if mutated else None

    @property
    def interruption(self) -> str | None:
        """One sentence when the session ended early, with what was not reached; None otherwise."""
        if not self.run.interrupted:
            return None
        missed = [
            case.case_id
            for case in self.cases
            if case.measurement is None and case.skipped is None and case.error is None
        ]
        unfinished = f"; not finished: {', '.join(missed)}" if missed else ""
        return f"interrupted{unfinished}"

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each condition that limits the run as a whole."""
        return tuple(words for words in (self.interruption, self._describe_unheld_checks()) if words)

    def _describe_unheld_checks(self) -> str | None:
        """One sentence with the checks of measured cases that no test of a gate held; None otherwise.

        A test ends at the first check that fails, so a case with one says nothing about the others.
        """
        measured = [case for case in self.cases if case.verdicts and not _has_failed(case)]
        if not self.run.gate or self.run.interrupted:
            return None
        words = []
        for check in CASE_CHECKS:
            found = [one for case in measured for one in case.verdicts if one.check == check and check not in case.held]
            bad = Counter(one.outcome.value for one in found if one.bad)
            counts = [f"{len(found)} of {len(measured)} cases"] if len(found) < len(measured) else []
            counts += [f"{count} {word}" for word, count in bad.items()]
            words += [f"{check} ({', '.join(counts)})" if counts else check] if found else []
        return f"checks that no selected test held: {', '.join(words)}" if words else None

    @cached_property
    def machine(self) -> dict[str, list[str]]:
        return {"machine": self.run.environment.facts, "yardsticks": yardsticks(self.run), "load": load(self.run)}

    @cached_property
    def counts(self) -> str:
        """`7 cases measured (1 REGRESSED, 6 PASS), 1 case skipped, 1 case failed`."""
        judged = (case for case in self.cases if case.measurement is not None or case.verdicts)
        measured = [outcome_word(case.worst) for case in judged]
        order = [*(outcome.value for outcome in SEVERITY), NOT_JUDGED]
        words = ", ".join(f"{measured.count(name)} {name}" for name in order if name in measured)
        others = {"skipped": sum(case.skipped is not None for case in self.cases), "failed": len(self.errors)}
        parts = [f"{number_of(len(measured), 'case')} measured{f' ({words})' if words else ''}"]
        return ", ".join([*parts, *(f"{number_of(count, 'case')} {word}" for word, count in others.items() if count)])

    @cached_property
    def tally(self) -> str:
        """`7 cases measured (7 PASS), 1 case not gated tonight (net/fast/cpu), in 182 s, seed 0`."""
        parts = (self.counts, self.not_gated, f"in {self.run.wall_s:.0f} s", f"seed {self.run.seed}")
        return ", ".join(filter(None, parts))

    @property
    def ending(self) -> str:
        """The tally, of a gate that ended with its result: `the gate is red: 7 cases measured (7 PASS) ...`."""
        status = self.run.exit_status
        word = "has no verdict" if self.run.interrupted else "is red" if status else "is green"
        result = f"the gate {word}: " if self.run.gate and status is not None else ""
        return f"{result}{self.tally}"

    @cached_property
    def not_gated(self) -> str:
        """`1 case not gated tonight (net/fast/cpu)`; empty where a gate judged the times of all."""
        found = [case.case_id for case in self.cases if self.run.gate and _is_not_gated(case)]
        return f"{number_of(len(found), 'case')} not gated tonight ({units.list_names(found)})" if found else ""

    # --- its cases ----------------------------------------------------------------------------------------------------

    @cached_property
    def results(self) -> Table:
        return results_table(self.run)

    @cached_property
    def overview(self) -> Table:
        return overview_table(self.run)

    @cached_property
    def series(self) -> list[Table]:
        return series_tables(self.run)

    @cached_property
    def bill(self) -> Table:
        return bill_table(self.run)

    @cached_property
    def refused(self) -> dict[str, list[str]]:
        """Case ids by the reason of each skip on which the gate fails; an older run does not have what was accepted."""
        return _group({case.case_id: describe_absence(case) for case in self.cases if self.run.refuses(case)})

    @cached_property
    def accepted(self) -> dict[str, list[str]]:
        """The other skips."""
        others = (case for case in self.cases if case.skipped is not None and not self.run.refuses(case))
        return _group({case.case_id: case.skipped or "" for case in others})

    @cached_property
    def errors(self) -> dict[str, str]:
        """The one sentence of each case that failed, by case id."""
        return {case.case_id: case.error for case in self.cases if case.error is not None}

    @cached_property
    def autopsies(self) -> dict[str, tuple[str, ...]]:
        """The sentences of each autopsy that adds to the reason of its verdict."""
        explained = [(case.case_id, case.autopsy) for case in self.cases if case.autopsy is not None]
        return {case_id: one.sentences for case_id, one in explained if one.kind != REPEATING}

    @cached_property
    def found(self) -> list[Finding]:
        """The finding of each case with a verdict that is not PASS, the worst first."""
        verdicts = [[one for one in case.verdicts if one.outcome is not Outcome.PASS] for case in self.cases]
        ordered = [order_verdicts(some) for some in verdicts if some]
        made = [Finding(tuple(one), (one[0].case_id,), describe_next_step(one[0], self.run)) for one in ordered]
        return sorted(made, key=lambda finding: SEVERITY.index(finding.outcome))

    @cached_property
    def findings(self) -> list[Finding]:
        """Everything that is not PASS, the worst first; equal words about several cases are said once."""
        return self._merge(lambda one: tuple(one.sentences))

    @cached_property
    def attention(self) -> list[Finding]:
        """Everything that is not PASS, the worst first: the cases with one reason code and one step together.

        The reason is the one of the first case.
        """
        return self._merge(lambda one: one.verdicts[0].code)

    def _merge(self, key: Callable[[Finding], Hashable]) -> list[Finding]:
        """The findings of the cases; those with equal checks, steps and keys as one, with one command for all."""
        merged: dict[Hashable, list[Finding]] = {}
        for one in self.found:
            merged.setdefault((one.outcome, one.checks, one.verdicts[0].next_step, key(one)), []).append(one)
        whole = [(alike[0].verdicts, tuple(one.case_ids[0] for one in alike)) for alike in merged.values()]
        return [Finding(some, ids, describe_next_step(some[0], self.run, ids)) for some, ids in whole]

    # --- its optimizations: they gain by their intervals, and are bounded by a device, a bus or the host ------------

    @cached_property
    def gains(self) -> list[str]:
        """The findings about the optimizations in one or two sentences; none without a time that is evidence, and of a
        fault on purpose."""
        timed = {
            f"{case.workload}/{case.optimization}": (case, one.speedup)
            for case in self.cases
            if (one := summarize_decider(case)) and case.worst not in NO_EVIDENCE and not _has_no_result(case)
        }
        if not timed or self.run.mutated:
            return []
        found = {name: speedup for name, (_, speedup) in timed.items()}
        gains = {name: one for name, one in found.items() if one.low > 1 and not _has_open_promise(timed[name][0])}
        losses = [name for name, speedup in found.items() if speedup.high < 1]
        words = f"gains: {len(gains)} of {number_of(len(found), 'optimization')}"
        if gains:
            best = max(gains, key=lambda name: gains[name].low)
            most = "most of all " if len(gains) > 1 else ""
            words += f", {most}{best}, {units.ratio(gains[best].median)}"
        if losses:
            words += f"; slower than the reference: {len(losses)}, {units.list_names(losses, MOST_NAMED)}"
        knees = [
            f"{sweep.workload} is best with {sweep.parameter} {sweep.knee}"
            for sweep in sweeps(self.run.cases)
            if sweep.knee
        ]
        return [words, *knees]

    @cached_property
    def whole_runs(self) -> list[str]:
        """The time of a run from its start to its end, with its start-up, one line a case; empty where none has an end.

        `net/fast: 600 items in 1.6 s instead of 19.8 s, 12.4x; start-up 0.9 s and 0.4 s`; see
        `gpugate.measurement.derived.whole_run`.
        """
        measured = ((case, case.measurement) for case in self.cases if case.measurement is not None)
        return [
            f"{case.workload}/{case.optimization}: {case.size.whole_run_items:,} items in {whole.optimized_s:.1f} s "
            f"instead of {whole.reference_s:.1f} s, {units.ratio(whole.speedup)}; start-up "
            f"{found.optimized_cost.compile_s:.1f} s and {found.reference_cost.compile_s:.1f} s"
            for case, found in measured
            if (whole := whole_run(case.size, found)) is not None
        ]

    @cached_property
    def bounds(self) -> list[str]:
        """`two-layer-net/all: launch-bound: ...`, each side once; empty where nothing was counted.

        Several cases may share a side: the line is that of the first case whose counters are known.
        """
        lines: dict[str, str] = {}
        for case in self.cases:
            if case.measurement is None or case.summary is None:
                continue
            found, summary = case.measurement, case.summary
            for name, counters, time in (
                (case.compared_with, found.reference_counters, summary.reference_ms),
                (case.optimization, found.optimized_counters, summary.optimized_ms),
            ):
                bound = bottleneck(counters, time.median)
                if bound is not None:
                    lines.setdefault(f"{case.workload}/{name}", bound)
        return [f"{side}: {words}" for side, words in lines.items()]

    @cached_property
    def reasons(self) -> list[str]:
        """The author's reason for the speedup of every measured case.

        Cases of one workload with one reason, such as the points of a sweep, share a line.
        """
        found: dict[tuple[str, str], list[str]] = {}
        for case in self.cases:
            if case.summary is not None and case.why:
                found.setdefault((case.workload, case.why), []).append(case.optimization)
        return [f"{workload}/{', '.join(names)}: {why}" for (workload, why), names in found.items()]

    # --- its verdicts: they are worth their sharpness, their duets and their proofs, and cost processes -------------

    @property
    def worth(self) -> list[str]:
        """The worth of a run's verdicts, a sentence each."""
        parts = self.records, self.sharpness, self.unbilled, self.comparisons, self.proofs
        return [words for words in parts if words]

    @cached_property
    def records(self) -> str | None:
        """The cases by the date and the reason of their records, the newest first; None where none has a reason.

        `records: norm/all/cpu of 2026-11-29 (exact sums), 3 cases of 2026-11-24 (first night)`.
        """
        by_reason: dict[tuple[str, str], list[str]] = {}
        for case in self.cases:
            if (record := case.remembered) is not None and record.reason:
                by_reason.setdefault((date_of(record.recorded_at), record.reason), []).append(case.case_id)
        if not by_reason:
            return None
        groups = [
            f"{ids[0] if len(ids) == 1 else number_of(len(ids), 'case')} of {date} ({reason})"
            for (date, reason), ids in sorted(by_reason.items(), reverse=True)
        ]
        return f"records: {units.list_names(groups, MOST_NAMED)}"

    @cached_property
    def sharpness(self) -> str | None:
        """The number of cases in which a gate would miss a slowdown; None where no case has a record.

        A case catches a slowdown by its wall time, its bill or a duet, whichever shows the smallest one.
        """
        found = [_detectable(case) for case in self.cases if case.remembered is not None and case.verdicts]
        if not found:
            return None
        missed, middle = sum(one > SHARP for one in found), statistics.median(found)
        median = percent(middle) if math.isfinite(middle) else "none"
        return (
            f"sharpness: wall times, bills and duets would miss a slowdown of {percent(SHARP)} in {missed} of "
            f"{len(found)} cases (median detectable {median})"
        )

    @cached_property
    def unbilled(self) -> str | None:
        """The number of cases of which no time of a bill was compared with the record; None where there are none."""
        codes = [{reason.code for verdict in case.verdicts for reason in verdict.reasons} for case in self.cases]
        found = sum(ReasonCode.NO_BILL in one for one in codes)
        return f"bill: counts alone were compared in {number_of(found, 'case')}" if found else None

    @cached_property
    def comparisons(self) -> str | None:
        """The outcomes of the duets with the recorded code, and the first reason for which there are none; None where
        no case was to be compared with it."""
        codes = [case.recorded_code for case in self.cases if case.recorded_code is not None]
        duets = [duet for code in codes if (duet := duet_of(code)) is not None]
        unchanged = sum(code.unchanged for code in codes)
        problems = [code.problem.partition("\n")[0] for code in codes if code.problem is not None]
        counts = Counter(duet.outcome.value for duet in duets)
        outcomes = ", ".join(f"{count} {word}" for word, count in counts.items())
        parts = [f"{number_of(len(duets), 'case')} in turns ({outcomes})"] if duets else []
        parts += [f"{number_of(unchanged, 'case')} unchanged"] if unchanged else []
        such_as = "such as: " if len(set(problems)) > 1 else ""
        not_compared = f"{number_of(len(problems), 'case')} not compared"
        parts += [f"{not_compared} ({such_as}{problems[0]})"] if problems else []
        return f"recorded code: {', '.join(parts)}" if parts else None

    @cached_property
    def proofs(self) -> str | None:
        """The number of proofs by the date of the run that showed them; None where this run showed all of its own."""
        proofs = [proof for case in self.cases if case.measurement for proof in case.measurement.proofs]
        before = Counter(date_of(proof.proved_at) for proof in proofs if proof.proved_at is not None)
        if not before:
            return None
        words = [f"{count} proved on {date}" for date, count in sorted(before.items())]
        now = len(proofs) - before.total()
        return f"proofs: {', '.join([*words, *([f'{now} in this run'] if now else [])])}"

    @cached_property
    def by_cost(self) -> list[CaseResult]:
        """The measured cases, the most expensive first."""
        return sorted((case for case in self.cases if case.measurements), key=lambda case: -case.duration_s)

    @cached_property
    def cost(self) -> list[str]:
        """`cost: 27.4 GPU-minutes, 12 % of them for further processes and duets`; empty without a measured case."""
        on_gpu = self.run.environment.device_kind == "cuda"
        whole_s = further_s = 0.0
        for case in self.by_cost:
            gpus = case.gpus if on_gpu else 1
            whole_s += gpus * case.duration_s
            further_s += gpus * sum(one.wall_s for one in case.measurements[1:])
        if not whole_s:
            return []
        unit = "GPU-minutes" if on_gpu else "minutes"
        share = percent(further_s / whole_s)
        return [f"cost: {whole_s / 60:.1f} {unit}, {share} of them for further processes and duets"]

    @property
    def next_command(self) -> list[str]:
        """The recording of the cases that pass a developer's run and are not recorded yet, and a line with their
        number; empty where there are none, or a fault is in."""
        unrecorded = [
            case.case_id
            for case in self.cases
            if case.worst is Outcome.PASS and any(one.code is ReasonCode.NO_RECORD for one in case.verdicts)
        ]
        if self.run.mode is not Mode.DEVELOPER or self.run.mutated is not None or not unrecorded:
            return []
        verb = "passes and is" if len(unrecorded) == 1 else "pass and are"
        count = f"{number_of(len(unrecorded), 'case')} {verb} not recorded yet"
        return [describe_recording(self.run, unrecorded), count]


def _group(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Case ids by their reason."""
    found: dict[str, list[str]] = {}
    for case_id, reason in reasons.items():
        found.setdefault(reason, []).append(case_id)
    return found


def describe_absence(case: CaseResult) -> str:
    """The reason of a skip, and the option by which a gate accepts it, where there is one."""
    accepted = f"; --allow-missing {','.join(case.lacking)} lets a gate pass without it" if case.lacking else ""
    return f"{case.skipped}{accepted}"


def _has_failed(case: CaseResult) -> bool:
    """True for a case with a held verdict on which a gate fails."""
    return any(one.check in case.held and not one.good for one in case.verdicts)


def _has_open_promise(case: CaseResult) -> bool:
    return any(one.code is ReasonCode.PROMISE_OPEN for one in case.verdicts)


def _has_no_result(case: CaseResult) -> bool:
    """True for times that are impossible, or beside a slowed reference."""
    return any(one.code in (ReasonCode.IMPOSSIBLE_RATE, ReasonCode.REFERENCE_SLOWED) for one in case.verdicts)


def _detectable(case: CaseResult) -> float:
    """The smallest slowdown that the case would catch, a share; infinite where there is none."""
    duet = duet_of(case.recorded_code) if case.recorded_code else None
    by_duet = duet.detectable if duet and duet.outcome is not DuetOutcome.UNDECIDED else None
    known = (case.detectable_slowdown, case.number("detectable_by_bill"), by_duet)
    return min((one for one in known if one is not None), default=math.inf)


def _is_not_gated(case: CaseResult) -> bool:
    """True where the wall time is undecided, or where the source or the software changed, the record misses a slowdown
    of SHARP and no duet decided, unless another check is red."""
    wall, record = next((one for one in case.verdicts if one.check == "throughput"), None), case.remembered
    if wall is None or record is None or case.worst not in GOOD | {Outcome.UNDECIDED}:
        return False
    is_shown = not record.differences or any(reason.code is ReasonCode.CODE_NOT_SLOWER for reason in wall.reasons)
    return wall.outcome is Outcome.UNDECIDED or (wall.good and not is_shown and _detectable(case) > SHARP)
