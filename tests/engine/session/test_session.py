"""One session with a made-up measurement: what becomes of an error, of absence, and what readers must know."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gpugate.session.records
from gpugate.errors import SPANS_GPUS, FreshProcessError, SideError, SpoiledProcessError
from gpugate.judging.actions import Action
from gpugate.machine.environment import describe, machine_name
from gpugate.measurement import yardsticks
from gpugate.measurement.derived import whole_run
from gpugate.measurement.record import Measurement, SideCost, Yardstick
from gpugate.results.case import CaseResult
from gpugate.results.duet import RecordedCode
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.verdict import NextStep, Outcome
from gpugate.session import recording
from gpugate.session.judged import PerfTests
from gpugate.session.measure_case import measure_case
from gpugate.session.perf_session import PerfSession
from gpugate.session.workers import Worker
from gpugate.store.baseline import BaselineFile, Entry, Record
from gpugate.store.source_hash import source_hash
from gpugate.workload import Case, Context, Engine, Needs, Optimization, Point, Side, Size, SweepCases, Workload
from tests.conftest import H200
from tests.engine.session.test_workers import OPTIONS
from tests.support.stored_runs import COUNTED, measurement, timed_build

CPU = torch.device("cpu")
HERE = describe(CPU)


def build(context: Context) -> Side:
    return Side(lambda inputs: inputs)


FAST = Optimization("fast", build, {"cpu": 1.0, "cuda": 1.0})
NET = Workload("net", build, lambda _, index: index, {"cpu": Size(1, 0, 0), "cuda": Size(1, 0, 0)}, (FAST,))
CASE, ON_GPU = Case(NET, FAST, "cpu"), Case(NET, FAST, "cuda")
BUILD = timed_build(3.0, 1.0)
MEASURED = measurement(*[BUILD] * 3, case_id=CASE.id, counters_missing="CPU")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PerfSession:
    """Its yardsticks are made up; `measuring` says what a measurement gives or raises."""
    monkeypatch.setattr(PerfSession, "probe", lambda self: self.result.yardsticks.append(Yardstick({"copy": 1.0})))
    nodes = {CASE.id: "test_it.py::test_it"}
    return PerfSession(OPTIONS, CPU, tmp_path, RunResult(HERE, "2030-01-01T00:00:00+00:00", seed=1), nodes)


def measuring(monkeypatch: pytest.MonkeyPatch, result: Measurement | BaseException) -> None:
    def measure(session: PerfSession, case: Case, settings: object, report: object) -> Measurement:
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr("gpugate.session.measure_case.measure_here", measure)


def remember(session: PerfSession, **changed: object) -> None:
    record = Record("2030-01-01", "first", source_hash(NET), HERE, ((BUILD,),) * 5, {"copy": 1.0})
    record = replace(record, **changed)
    session.records.files = {"net": BaselineFile("net", machine_name(HERE), {"fast/cpu": Entry(record)})}


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (SideError("fast", "being built", ValueError("no")), "fast failed while being built: ValueError: no"),
        (RuntimeError("not ready\nand a story"), "the engine failed while measuring it: RuntimeError: not ready"),
        (
            RuntimeError(
                "C++ compile error\n\nCommand:\ng++ a.cpp\n\nOutput:\na.cpp:7:10: fatal error: Python.h: none\nmore"
            ),
            "the engine failed while measuring it: RuntimeError: C++ compile error: fatal error: Python.h: none",
        ),
        (torch.OutOfMemoryError("no room"), "the engine failed while measuring it: OutOfMemoryError: no room"),
    ],
)
def test_whatever_goes_wrong_is_one_sentence_of_the_case(session, monkeypatch, error, sentence: str) -> None:
    measuring(monkeypatch, error)
    result = measure_case(session, CASE)
    assert (result.measurement, result.verdicts) == (None, [])
    step = "; free device memory or lower the items per step, the other workloads go on"
    found = re.sub(r" \([\w/]*test_session.py:\d+ measure\)", "", str(result.error))
    assert found == sentence + (step if isinstance(error, torch.OutOfMemoryError) else "")
    measuring(monkeypatch, MEASURED)
    assert measure_case(session, CASE).measurement is None  # once per session


def test_a_case_that_is_interrupted_before_it_is_confirmed_has_no_measurement(session, monkeypatch) -> None:
    def interrupt(session: PerfSession, case: Case) -> None:
        raise KeyboardInterrupt

    session.options = replace(OPTIONS, processes=3)
    measuring(monkeypatch, MEASURED)
    monkeypatch.setattr("gpugate.session.measure_case.next_action", lambda evidence, allowed: Action.PROCESS)
    monkeypatch.setattr("gpugate.session.measure_case.confirm", interrupt)
    with pytest.raises(KeyboardInterrupt):
        measure_case(session, CASE)
    found = session.result.cases[CASE.id]
    assert (found.measurement, found.summary, found.verdicts) == (None, None, [])


@pytest.mark.parametrize("error", [pytest.skip.Exception("no licence"), RuntimeError("no licence")])
@pytest.mark.parametrize("gate", [True, False])
def test_an_engine_that_cannot_be_looked_for_is_an_error_of_its_case(session, error, gate: bool) -> None:
    def why_not(gpu: int) -> str | None:
        raise error

    needy = replace(FAST, needs=Needs(engine=Engine("nvenc", why_not)))
    session.options = replace(OPTIONS, gate=gate, allow_missing=frozenset({"nvenc"}))
    session.device, session.result.environment = torch.device("cuda"), H200
    result = measure_case(session, Case(replace(NET, optimizations=(needy,)), needy, "cuda"))
    if isinstance(error, RuntimeError) or gate:
        kind = type(error).__name__
        assert result.error is not None
        assert result.error.startswith(f"nvenc failed while being looked for: {kind}: no licence")
        assert result.skipped is None
    else:
        assert (result.error, result.skipped) == (None, "nvenc was skipped while being looked for: no licence")


def test_a_record_of_another_reference_is_no_record(session, monkeypatch) -> None:
    recorded, counted = ({"tensor_core_kernels": count} for count in (0.0, 53.0))
    remember(session, reference_counters=recorded)
    measuring(monkeypatch, replace(MEASURED, reference_counters={**MEASURED.reference_counters, **counted}))
    session.result.gate = True
    found = measure_case(session, CASE)
    assert found.remembered is None
    assert {one.check: one.outcome for one in found.verdicts}["throughput"] is Outcome.NO_BASELINE
    (note,) = session.notes
    assert "is of another reference: it ran 0 tensor-core kernels in a step then, and runs 53 now; record it" in note


@pytest.mark.parametrize(
    ("changed", "difference", "note"),
    [
        ({"source_hash": "0123456789abcdef"}, "the workload's source changed", "the source of net changed since its"),
        ({"environment": replace(HERE, python="3.9.0")}, f"python 3.9.0 -> {HERE.python}", "recorded under other soft"),
        ({"environment": replace(HERE, cpu_count=HERE.cpu_count + 1)}, None, None),
    ],
    ids=["source", "software", "machine"],
)
def test_a_record_of_other_code_or_software_is_compared_and_said_and_one_of_another_machine_is_none(
    session, monkeypatch, changed: dict[str, Any], difference: str | None, note: str | None
) -> None:
    remember(session, **changed)
    measuring(monkeypatch, MEASURED)
    throughput = measure_case(session, CASE).verdicts[2]
    if difference is None:
        assert (throughput.outcome, throughput.code, session.notes) == (Outcome.PASS, ReasonCode.NO_RECORD, set())
        return
    assert throughput.reasons[-1] == Reason(ReasonCode.RECORD_DIFFERS, {"differences": difference})
    (said,) = session.notes
    assert said.startswith(str(note))


def test_a_slow_host_is_said_before_the_first_recorded_case_is_measured(session, monkeypatch) -> None:
    said = list[str]()
    session.print_line = said.append
    session.result.yardsticks.append(Yardstick({"launch_latency_us": 9.0}))
    remember(session, yardsticks={"launch_latency_us": 6.0})
    measuring(monkeypatch, KeyboardInterrupt())
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            measure_case(session, CASE)
    assert [line.partition(": longer")[0] for line in said] == ["slow host: launches take 1.5 times the recorded 6 us"]


def test_the_bus_is_compared_with_the_probe_taken_before(session, monkeypatch) -> None:
    streamed = replace(MEASURED, counters_missing=None, optimized_counters={**COUNTED, "host_to_device_bytes": 2e7})
    probes = iter([Yardstick({"pinned_copy_gb_per_s": 50.0}), Yardstick({"pinned_copy_gb_per_s": 49.0})])
    monkeypatch.setattr(session, "probe", lambda: session.result.yardsticks.append(next(probes)))
    monkeypatch.setattr("gpugate.measurement.run.measure", lambda *arguments: streamed)
    found = measure_case(session, CASE).measurement
    assert found.optimized_counters["bus_share"] == pytest.approx(2e7 / 1e-3 / 50e9)


def test_a_whole_run_is_judged_as_it_is_told_more_pairs_included(session, monkeypatch) -> None:
    counted = replace(MEASURED, counters_missing=None, optimized_counters=COUNTED)
    runs = iter([counted, replace(counted, optimized_cost=SideCost(50.0, 0.0))])  # of the second start nothing counts
    actions = iter([Action.PAIRS, Action.STOP])
    monkeypatch.setattr("gpugate.session.measure_case.next_action", lambda evidence, allowed: next(actions))
    monkeypatch.setattr("gpugate.measurement.run.measure", lambda *arguments: next(runs))
    endless = {kind: replace(size, whole_run_items=100 * size.items) for kind, size in NET.sizes.items()}
    case = Case(replace(NET, sizes=endless), FAST, "cpu")
    found = measure_case(session, case).measurement
    assert found.optimized_counters["whole_run_speedup"] == whole_run(case.size, found).speedup
    assert found.optimized_cost == counted.optimized_cost


@pytest.mark.parametrize("answers", [1, 0], ids=["later", "at once"])
def test_a_lost_device_ends_the_run_as_invalid_with_what_was_measured(session, monkeypatch, answers: int) -> None:
    replies = iter([None] * answers + ["the device cuda:0 stopped answering (CUDA error): look at dmesg"])
    monkeypatch.setattr(yardsticks, "device_problem", lambda device: next(replies))
    other = Case(NET, replace(FAST, name="other"), "cpu")
    third = Case(NET, replace(FAST, name="third"), "cpu")
    measuring(monkeypatch, MEASURED)
    assert measure_case(session, CASE).measurement == MEASURED
    measuring(monkeypatch, SideError("other", "running timed steps", RuntimeError("CUDA error: unspecified")))
    for case in (other, third):
        result = measure_case(session, case)
        if answers and case is other:
            assert result.error == "other failed while running timed steps: RuntimeError: CUDA error: unspecified"
            continue
        assert {verdict.outcome for verdict in result.verdicts} == {Outcome.ENV_INVALID}
        assert [verdict.check for verdict in result.verdicts] == ["equivalence", "speedup", "throughput", "counters"]
        assert result.verdicts[0].code is ReasonCode.MACHINE_UNFIT
        assert result.error is None
    measuring(monkeypatch, pytest.fail.Exception("nothing may be measured on a lost device"))
    assert measure_case(session, Case(NET, replace(FAST, name="fourth"), "cpu")).environment_problem is not None


def test_cores_that_change_during_the_run_make_the_times_invalid_and_stay_as_they_are(session, monkeypatch) -> None:
    measuring(monkeypatch, MEASURED)
    usual = os.sched_getaffinity(0)
    session.cores = frozenset({*usual, 4096})
    result = measure_case(session, CASE)
    assert result.verdicts[1].outcome is Outcome.ENV_INVALID
    assert "the cores of this process changed during the run, from [" in result.verdicts[1].reason
    assert os.sched_getaffinity(0) == usual


@pytest.mark.parametrize(
    "found",
    [
        SpoiledProcessError("fast", "being measured", ValueError("the baseline gives others")),
        replace(MEASURED, reference_slowdown=10.0),
        replace(MEASURED, reference_slowdown=10.0, lasting_slowdown=1.3),
    ],
    ids=["other outputs", "a slower reference", "one that stays slower"],
)
def test_a_process_in_which_the_reference_is_another_one_measures_no_further_case(session, monkeypatch, found) -> None:
    monkeypatch.setattr(yardsticks, "device_problem", lambda device: None)
    session.options = replace(OPTIONS, processes=1)
    measuring(monkeypatch, found)
    assert measure_case(session, CASE).error == (str(found) if isinstance(found, SideError) else None)
    honest = measure_case(session, Case(NET, replace(FAST, name="honest"), "cpu"))
    assert {verdict.outcome for verdict in honest.verdicts} == {Outcome.ENV_INVALID}
    assert honest.verdicts[1].reason.endswith("perhaps each later side of this process: run the other cases without it")
    assert CASE.id in honest.verdicts[1].reason


def test_a_process_measures_on_after_a_side_that_slowed_the_reference_until_it_was_closed(session, monkeypatch) -> None:
    session.options = replace(OPTIONS, processes=1)
    measuring(monkeypatch, replace(MEASURED, reference_slowdown=10.0, lasting_slowdown=1.2))
    assert measure_case(session, CASE).verdicts[1].code is ReasonCode.REFERENCE_SLOWED
    measuring(monkeypatch, MEASURED)
    honest = measure_case(session, Case(NET, replace(FAST, name="honest"), "cpu"))
    assert honest.verdicts[1].outcome is Outcome.PASS


def test_a_device_that_answers_is_not_lost(monkeypatch) -> None:
    assert yardsticks.device_problem(CPU) is None
    monkeypatch.setattr(torch, "ones", raising(RuntimeError("CUDA error: device-side assert\nlong story")))
    assert "stopped answering (CUDA error: device-side assert)" in yardsticks.device_problem(CPU)
    monkeypatch.setattr(torch, "ones", lambda *_, **__: torch.zeros(2))
    assert "gives 2 for 4" in yardsticks.device_problem(CPU)


def raising(error: Exception):
    def call(*_: object, **__: object) -> None:
        raise error

    return call


def slower(share: float) -> Measurement:
    return replace(MEASURED, instances=(timed_build(3.0, 1.0 + share),) * 3)


@pytest.mark.parametrize(
    ("processes", "confirming", "asked", "expected"),
    [
        (3, (slower(0.2), slower(0.2)), 1, Outcome.REGRESSED),
        (3, (slower(0.0), slower(0.2)), 2, Outcome.REGRESSED),
        (3, (slower(0.0), slower(0.0)), 2, Outcome.PASS),
        (2, (slower(0.0), slower(0.0)), 1, Outcome.UNDECIDED),
        (1, (), 0, Outcome.REGRESSED),
    ],
)
def test_fresh_processes_are_asked_before_an_alarm(
    session, monkeypatch, processes, confirming, asked, expected
) -> None:
    remember(session)
    measuring(monkeypatch, slower(0.2))
    session.options = replace(OPTIONS, processes=processes)
    left, node_ids = list(confirming), []

    def run_fresh(session, nodes, json_path, timeout_s) -> RunResult:
        node_ids.extend(nodes)
        found = CaseResult(CASE.id, "net", "fast", "baseline", CASE.size, left.pop(0))
        return RunResult(HERE, "2030-01-01T00:00:00+00:00", seed=2, cases={CASE.id: found})

    monkeypatch.setattr("gpugate.session.confirm.run_fresh", run_fresh)
    result = measure_case(session, CASE)
    assert result.verdicts[2].outcome is expected
    assert len(result.attempts) == asked == len(node_ids)
    assert set(node_ids) <= {"test_it.py::test_it"}


@pytest.mark.parametrize(("options", "measured"), [({}, 2), ({"processes": 1}, 1), ({"fresh": True}, 1)])
def test_a_process_among_others_measures_an_open_case_once(session, monkeypatch, options, measured) -> None:
    open_case = replace(MEASURED, instances=(timed_build([2.0, 4.0] * 4, 1.0, pairs=8),))
    measuring(monkeypatch, open_case)
    session.options = replace(OPTIONS, **options)
    found = measure_case(session, CASE).measurement
    assert found is not None
    assert found.attempts == measured


def test_an_alarm_that_no_fresh_process_confirmed_is_open_and_says_so(session, monkeypatch) -> None:
    remember(session)
    measuring(monkeypatch, slower(0.2))
    session.options = replace(OPTIONS, processes=3)

    for error, told in (
        (FreshProcessError("ended with status 3: out of memory", ""), "ended with status 3: out of memory"),
        (OSError("No space left"), "gave no result (OSError: No space left)"),
        (KeyError(CASE.id), "gave no result (KeyError: 'net/fast/cpu')"),
    ):
        session.result.cases.clear()
        monkeypatch.setattr("gpugate.session.confirm.run_fresh", raising(error))
        verdict = measure_case(session, CASE).verdicts[2]
        assert verdict.outcome is Outcome.UNDECIDED
        assert verdict.reasons[0] == Reason(ReasonCode.NOT_CONFIRMED, {"problem": f"a fresh process {told}"})


@pytest.mark.parametrize(
    ("device", "gpus", "given", "planned"),
    [("cuda", 8, None, 11), ("cuda", 1, None, 5), ("cpu", 8, None, 5), ("cuda", 8, 7, 7), ("cpu", 0, 7, 7)],
)
def test_a_recording_on_several_gpus_takes_more_processes(session, monkeypatch, device, gpus, given, planned) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    session.device, session.options = torch.device(device), replace(OPTIONS, processes=given)
    assert recording.planned_processes(session) == planned


def one_of(cores: int, *shares: int, place: int) -> Worker:
    """A worker on a host with so many cores, and shares of them."""
    gpus, of_each = tuple(f"GPU-{number}" for number in range(len(shares))), tuple(tuple(range(n)) for n in shares)
    return Worker(f"gw{place}", Path(), "2030-01-02T03:04:05+00:00", 0, gpus, of_each, tuple(range(cores)), place)


@pytest.mark.parametrize(
    ("recorded", "own", "differences"),
    [(16, 16, ()), (32, 16, ()), (64, 16, ("cpu count 64 -> 32",)), (16, 32, ("cpu count 16 -> 32",))],
    ids=["with the cores of the worker", "with those of the host", "with more", "with fewer than a case that is alone"],
)
def test_a_record_is_of_the_cores_of_a_worker_or_of_its_host(
    session: PerfSession, monkeypatch: pytest.MonkeyPatch, recorded: int, own: int, differences: tuple[str, ...]
) -> None:
    session.result.environment = replace(HERE, device_kind="cuda", cpu_count=32)
    remember(session, environment=replace(session.result.environment, cpu_count=recorded))
    session.result.source_hashes["net"] = source_hash(NET)
    session.records.options = replace(OPTIONS, worker=one_of(32, 16, 16, place=0))
    monkeypatch.setattr(gpugate.session.records, "find_usable_cores", lambda: frozenset(range(own)))
    remembered = session.records.find(CASE)
    assert remembered is not None
    assert (remembered.match == "exact", remembered.differences) == (not differences, differences)


@pytest.mark.parametrize(("recorded", "alone"), [(5, False), (6, True)])
def test_workers_with_uneven_shares_of_the_cores_plan_a_case_alike(session, recorded: int, alone: bool) -> None:
    pipeline = Case(replace(NET, timing="pipeline"), FAST, "cuda")
    here, counters = replace(HERE, cpu_count=recorded), {"copy_fraction": 0.1}
    remember(session, environment=here, reference_counters=counters, optimized_counters=counters)
    session.records.files["net"].cases["fast/cuda"] = session.records.files["net"].cases["fast/cpu"]
    for place in range(3):
        session.options = replace(OPTIONS, worker=one_of(16, 5, 5, 6, place=place))
        assert session.needs_host(pipeline) == alone


SPANNING = Case(NET, replace(FAST, needs=Needs(gpus=2)), "cpu")


@pytest.mark.parametrize(("ranks", "told"), [(2.0, None), (4.0, "4"), (None, "an unknown number of")])
def test_a_record_of_another_number_of_ranks_is_not_compared(session, monkeypatch, ranks, told) -> None:
    remember(session, optimized_counters={} if ranks is None else {"ranks": ranks})
    session.result.source_hashes["net"] = source_hash(NET)
    assert (session.records.find(SPANNING) is None) == (told is not None)
    words = f"{CASE.id}: its record is of {told} ranks and this run has 2: they are not compared"
    assert session.notes == (set() if told is None else {words})


def test_no_capture_is_taken_of_a_case_that_spans_gpus(session) -> None:
    session.capture = lambda case, context: pytest.fail("it was captured")
    assert measure_case(session, SPANNING).skipped == SPANS_GPUS


def test_the_code_of_a_case_that_spans_gpus_is_not_compared_and_its_verdict_says_so(session, monkeypatch) -> None:
    measuring(monkeypatch, MEASURED)
    session.options = replace(session.options, against="HEAD", processes=1)
    found = measure_case(session, SPANNING)
    assert found.recorded_code == RecordedCode("", problem=SPANS_GPUS)
    assert Reason(ReasonCode.CODE_UNDECIDED, {"commit": "", "problem": SPANS_GPUS}) in found.verdicts[2].reasons


@pytest.mark.parametrize(("ranks", "problem"), [(2.0, None), (1.0, "hot")])
def test_no_knee_is_judged_where_ranks_share_a_cpu_or_the_machine_is_sick(
    session, monkeypatch, ranks: float, problem: str | None
) -> None:
    points = [replace(FAST, name=f"mb-{value}", point=Point("mb", value)) for value in (1, 5)]
    cases = tuple(Case(replace(NET, optimizations=tuple(points)), point, "cpu") for point in points)
    measuring(monkeypatch, replace(MEASURED, optimized_counters={"ranks": ranks}))
    monkeypatch.setattr("gpugate.session.measure_case.find_environment_problem", lambda *_: problem)
    results = {case.id: measure_case(session, case) for case in cases}
    monkeypatch.setattr(PerfTests, "_measure", lambda self, cases: results)
    knee = PerfTests(None, session, {}).judge_sweep(SweepCases("mb", cases)).knee
    assert (knee.outcome, knee.code) == (Outcome.ENV_INVALID, ReasonCode.MACHINE_UNFIT)
    assert knee.next_step is (NextStep.USE_CUDA if problem is None else NextStep.COOL_MACHINE)
