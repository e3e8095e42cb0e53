"""The life of a baseline: missing, recorded, loaded, compared, updated; and everything that must not happen to it."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.errors import BaselineError
from gpugate.machine.environment import Environment
from gpugate.measurement.record import Yardstick
from gpugate.results.case import CaseResult
from gpugate.results.reason import Reason, ReasonCode
from gpugate.results.run import RunResult
from gpugate.results.verdict import NextStep, Outcome, Verdict
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.store import baseline
from gpugate.store.baseline import BaselineFile, Recording, load_all, write
from gpugate.store.codec import to_json
from gpugate.store.json_file import parse
from gpugate.workload import Size
from tests.conftest import H200
from tests.support.stored_runs import measurement, timed_build

MACHINE = "nvidia-h200"
FIRST = Recording(reason="first record")
SIZE = Size(items=64, flops=1e9, bytes=1e6)
ROOT = Path(baseline.__file__).parents[2]


def record_runs(
    file: BaselineFile | None,
    workload: str,
    runs: Sequence[RunResult],
    recording: Recording,
    min_processes: int = DECIDING_PROCESSES,
) -> BaselineFile:
    """The new file of one workload."""
    old = {} if file is None else {workload: file}
    files, _ = baseline.record_cases(old, runs, recording, min_processes)
    return next(made for made in files if made.workload == workload)


def case(name: str, speedup: float, workload: str = "net", pairs: int = 4) -> CaseResult:
    case_id = f"{workload}/{name}/cuda"
    drift = [1 + 0.001 * number for number in range(pairs)]
    measured = measurement(
        *[timed_build([2 * one for one in drift], [2 / speedup * one for one in drift])] * 2,
        case_id=case_id,
        reference_counters={"kernels": 216.0, "tensor_core_kernels": 0.0},
        optimized_counters={"kernels": 62.0, "api_ms": 0.01 * speedup, "cpu_ms": 0.02 * speedup},
    )
    good = Verdict("speedup", case_id, Outcome.NO_BASELINE, next_step=NextStep.RECORD)
    return CaseResult(case_id, workload, name, "baseline", SIZE, measured, verdicts=[good])


def run(*cases: CaseResult, environment: Environment = H200, day: int = 1) -> RunResult:
    return RunResult(
        environment=environment,
        started_at=f"2030-01-{day:02}T00:00:00+00:00",
        seed=day,
        cases={case.case_id: case for case in cases},
        yardsticks=[Yardstick({"copy_gbs": 4000.0 + day})],
        source_hashes={"net": "0123456789abcdef"},
    )


def five_runs(name: str = "tf32", speedup: float = 2.0, workload: str = "net") -> list[RunResult]:
    return [run(case(name, speedup + 0.01 * i, workload), day=i + 1) for i in range(5)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "baselines" / MACHINE


@pytest.fixture
def recorded(folder: Path) -> Path:
    """The path of a good file."""
    write(folder, record_runs(None, "net", five_runs(), FIRST))
    return folder / "net.json"


def test_the_life_of_a_baseline(folder: Path) -> None:
    assert load_all(folder) == {}
    assert not folder.exists()

    assert write(folder, record_runs(None, "net", five_runs(), FIRST)) == (
        "net/tf32/cuda: recorded 2.02x, 2.00..2.04 over 5 processes on 5 days, cv 0.78 %, detects 5.3 %",
    )

    file = load_all(folder)["net"]
    first = file.cases["tf32/cuda"]
    assert first.record.reason == "first record"
    assert first.record.recorded_at == "2030-01-05T00:00:00+00:00"
    assert first.record.source_hash == "0123456789abcdef"
    assert first.record.yardsticks == {"copy_gbs": 4003.0}
    assert first.record.reference_counters == {"kernels": 216.0, "tensor_core_kernels": 0.0}
    assert first.record.optimized_counters == {"api_ms": 0.0204, "cpu_ms": 0.0408, "kernels": 62.0}

    faster = Recording(reason="new driver")
    runs = [replace(run(case("tf32", 2.5)), environment=replace(H200, driver="590.2")) for _ in range(5)]
    assert write(folder, record_runs(file, "net", runs, faster)) == (
        "net/tf32/cuda: 2.02x -> 2.50x, 2.50..2.50 over 5 processes, cv 0 %, detects 1 %",
    )
    second = load_all(folder)["net"].cases["tf32/cuda"]
    assert (second.record.reason, second.record.environment.driver) == ("new driver", "590.2")


def test_a_useless_record_does_not_replace_one_that_is_twice_as_sharp() -> None:
    sharp, useless = ([run(case("tf32", 2 + i / factor)) for i in range(5)] for factor in (1000, 1))
    file, blunt = (record_runs(None, "net", runs, FIRST) for runs in (sharp, useless))
    with pytest.raises(BaselineError) as refused:
        record_runs(file, "net", useless, FIRST)
    assert re.fullmatch(
        r"the record of net/tf32/cuda stays: it detects a slowdown of [\d.]+ %, and the new one of \d+ %, since its 5 "
        r"processes vary by \d+ %: record again on a quieter machine, or give gpugate accept --force",
        str(refused.value),
    )
    changed = [replace(one, source_hashes={"net": "fedc"}) for one in useless]  # what is sharp gates other code
    less_sharp = [run(case("tf32", 2 + i / 100)) for i in range(5)]
    for old, runs, recording in (
        (file, useless, replace(FIRST, force=True)),
        (blunt, useless, FIRST),
        (file, changed, FIRST),
        (file, less_sharp, FIRST),
    ):
        made = record_runs(old, "net", runs, recording).cases["tf32/cuda"].record
        assert [process[0].pairs[0].optimized_ms for process in made.processes] == [
            one.cases["net/tf32/cuda"].measurement.pairs[0].optimized_ms for one in runs
        ]


def test_what_is_told_of_a_record() -> None:
    cases = [*[case("tf32", 2.0)] * 5, slow(case("tf32", 4.0))]
    runs = [replace(run(one), started_at=f"2030-01-01T00:0{minute}:00+00:00") for minute, one in enumerate(cases)]
    assert told(runs).startswith("net/tf32/cuda: recorded 2.00x, 2.00..4.00 over 6 processes, cv 35 %, detects")
    nights = [run(case("tf32", 2.0), day=day) for day in range(1, 6)]
    spread = "2.00..2.00 over 5 processes on 5 days"
    assert told(nights) == f"net/tf32/cuda: recorded 2.00x, {spread}, cv 0 %, detects 1 %"


def told(runs: Sequence[RunResult]) -> str:
    file = record_runs(None, "net", runs, FIRST)
    (line,) = baseline._describe_changes(file, "tf32/cuda", None, file.cases["tf32/cuda"])
    return line


def slow(result: CaseResult) -> CaseResult:
    """On a machine where both sides take half as long again."""
    assert result.measurement is not None
    (pair, *_) = result.measurement.pairs
    build = timed_build(1.5 * pair.reference_ms, 1.5 * pair.optimized_ms)
    return replace(result, measurement=replace(result.measurement, instances=(build, build)))


def test_each_recorded_process_keeps_its_bill_and_an_added_one_stands_beside_its_process(folder: Path) -> None:
    file = record_runs(None, "net", five_runs(), FIRST)
    adding = replace(FIRST, adding=True)
    file = record_runs(file, "net", [run(case("tf32", 2.05), day=9)], adding, min_processes=1)
    write(folder, file)
    text = (folder / "net.json").read_text()
    read = load_all(folder)["net"]
    record = read.cases["tf32/cuda"].record
    assert [bills.optimized.counters for bills in record.bills if bills] == [
        {"kernels": 62.0, "cpu_ms": pytest.approx(0.02 * speedup)} for speedup in (2.0, 2.01, 2.02, 2.03, 2.04, 2.05)
    ]
    assert record.history.bills == record.bills
    write(folder, read)
    assert (folder / "net.json").read_text() == text


@pytest.mark.parametrize("changes", [{"reference_slowdown": 2.5}, {"reference_counters": {"tensor_core_kernels": 9.0}}])
def test_no_process_of_a_slowed_or_another_reference_is_added(recorded: Path, changes: dict[str, object]) -> None:
    one, file = case("tf32", 2.0), load_all(recorded.parent)["net"]
    changed = run(replace(one, measurement=replace(one.measurement, **changes)))  # type: ignore[type-var]
    with pytest.raises(BaselineError, match=r"by 0 of the 1 processes|another reference"):
        record_runs(file, "net", [changed], replace(FIRST, adding=True), min_processes=1)


def test_a_record_without_bills_gets_those_of_the_processes_that_are_added(folder: Path) -> None:
    write(folder, record_runs(None, "net", five_runs(), FIRST))
    document = json.loads((folder / "net.json").read_text())
    del document["cases"]["tf32/cuda"]["record"]["bills"]
    (folder / "net.json").write_text(json.dumps(document))
    old = load_all(folder)["net"]
    assert old.cases["tf32/cuda"].record.history.bills == ()
    more = record_runs(old, "net", [run(case("tf32", 2.05), day=9)], replace(FIRST, adding=True), min_processes=1)
    assert [bills is None for bills in more.cases["tf32/cuda"].record.bills] == [True] * 5 + [False]
    write(folder, more)
    assert to_json(load_all(folder)["net"]) == to_json(more)


def test_the_text_does_not_depend_on_the_order_of_the_run(folder: Path) -> None:
    def text(order: list[int]) -> str:
        runs = [run(*[[case("a", 2.0), case("b", 3.0)][i] for i in order]) for _ in range(5)]
        write(folder, record_runs(None, "net", runs, FIRST))
        return (folder / "net.json").read_text()

    assert text([0, 1]) == text([1, 0])


REPAIR = "restore it from version control, or delete it and record again with --update-baselines"
DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "bills of other processes": (
        lambda text: text.replace('"measured": [true, ', '"measured": ['),
        f"cannot be used because cases.tf32/cuda.record.bills: 'cpu_ms' has 5 values for 4 processes: {REPAIR}",
    ),
    "another machine": (
        lambda text: text.replace('"nvidia-h200"', '"nvidia-h100"'),
        "is of the machine 'nvidia-h100', not of 'nvidia-h200': move it there or delete it",
    ),
    "another workload": (
        lambda text: text.replace('"workload": "net"', '"workload": "other"'),
        "is of the workload 'other': give it that name again or delete it",
    ),
    "no samples": (
        lambda text: text[: text.index('"processes": [')] + '"processes": [[]],' + text[text.index('"yardsticks"') :],
        f"cannot be used because cases.tf32/cuda.record: a process lacks samples: {REPAIR}",
    ),
    "no time": (
        lambda text: re.sub(r'"started_at": \["[^"]*"', '"started_at": ["yesterday"', text, count=1),
        f"cannot be used because cases.tf32/cuda.record: recorded_at or started_at is no ISO 8601 time: {REPAIR}",
    ),
    "a time too few": (
        lambda text: re.sub(r'"started_at": \["[^"]*",', '"started_at": [', text, count=1),
        f"cannot be used because cases.tf32/cuda.record: it has not one time and one bill for each process: {REPAIR}",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_named_and_nothing_overwrites_it(folder: Path, recorded: Path, kind: str) -> None:
    damage, sentence = DAMAGE[kind]
    good = load_all(folder)["net"]
    damaged = damage(recorded.read_text())
    assert damaged != recorded.read_text()
    recorded.write_text(damaged)
    for use in (lambda: load_all(folder), lambda: write(folder, good)):
        with pytest.raises(BaselineError) as refused:
            use()
        assert str(refused.value) == f"{recorded} {sentence}"
        assert recorded.read_text() == damaged
    assert sorted(path.name for path in folder.iterdir()) == ["net.json"]


def test_a_family_has_a_folder(folder: Path) -> None:
    for name in ("net", "net/deep", "net/wide"):
        runs = [run(case("tf32", 2.0, name)) for _ in range(5)]
        write(folder, record_runs(None, name, runs, FIRST))
    assert sorted(path.name for path in (folder / "net").iterdir()) == ["deep.json", "wide.json"]
    assert set(load_all(folder)) == {"net", "net/deep", "net/wide"}
    assert list(load_all(folder)["net/deep"].cases) == ["tf32/cuda"]


def because(problem: str) -> tuple[Reason, ...]:
    return (Reason(ReasonCode.NOT_ENGAGED, {"problem": problem}),)


def judged(outcome: Outcome, *reasons: Reason) -> RunResult:
    verdict = Verdict("counters", "net/tf32/cuda", outcome, reasons or because("because"))
    return run(replace(case("tf32", 2.0), verdicts=[verdict]))


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        *(
            (judged(outcome), f"net/tf32/cuda is {outcome.value} in the check of counters (because): mend that and")
            for outcome in (Outcome.WRONG, Outcome.NOT_ENGAGED)
        ),
        (
            judged(Outcome.UNDECIDED, Reason(ReasonCode.REFERENCE_SLOWED, {"times": 3.0})),
            "net/tf32/cuda is UNDECIDED in the check of counters (no result: the reference takes 3 times as long "
            "beside the optimized side as before that was built): end the other work on this machine, or on a CPU set",
        ),
        (run(replace(case("tf32", 2.0), measurement=None, error="no memory")), "net/tf32/cuda failed (no memory): "),
        (
            run(replace(case("tf32", 2.0), environment_problem="the copy ran at 60 %")),
            "net/tf32/cuda has no valid times (the copy ran at 60 %): mend that",
        ),
        (run(case("tf32", 2.0, pairs=0)), "net/tf32/cuda has no samples: give it a larger --perf-budget and record"),
        (
            run(replace(case("tf32", 2.0, pairs=0), verdicts=judged(Outcome.WRONG).cases["net/tf32/cuda"].verdicts)),
            "net/tf32/cuda is WRONG in the check of counters (because): mend that and",
        ),
        (run(), "net/tf32/cuda was measured by 4 of the 5 processes that a baseline needs: measure it again by pytest"),
        (
            run(environment=replace(H200, driver="590.2")),
            "the runs' environments differ (driver 580.65.06 -> 590.2): record again on one machine",
        ),
        (
            replace(run(case("tf32", 2.0)), source_hashes={"net": "fedc"}),
            "the source of 'net' changed between the runs: accept those from 2030-01-01T00:00:00+00:00 on alone, or",
        ),
    ],
)
def test_what_must_not_become_a_baseline_is_refused(last: RunResult, sentence: str) -> None:
    with pytest.raises(BaselineError) as refused:
        record_runs(None, "net", [*five_runs()[:4], last], FIRST, min_processes=5)
    assert str(refused.value).startswith(sentence)


def test_runs_that_skipped_every_case_become_no_baseline() -> None:
    with pytest.raises(BaselineError, match=r"^every case was skipped, so no baseline was written: record where they"):
        record_runs(None, "net", [run(replace(case("tf32", 2.0), measurement=None, skipped="needs a GPU"))] * 5, FIRST)


def test_what_the_first_run_lacks_may_not_differ_among_the_others() -> None:
    def under(**packages: str) -> RunResult:
        return run(case("tf32", 2.0), environment=replace(H200, packages={**H200.packages, **packages}))

    runs = [under(), under(tensorrt="10.1"), under(tensorrt="10.1"), under(), under(tensorrt="11.0")]
    with pytest.raises(BaselineError, match=r"environments differ \(tensorrt 10\.1 -> 11\.0\): record again on one"):
        record_runs(None, "net", runs, FIRST)
    file = record_runs(None, "net", [*runs[:4], under(tensorrt="10.1")], FIRST)
    assert file.cases["tf32/cuda"].record.environment.packages == {**H200.packages, "tensorrt": "10.1"}


def test_a_regression_that_somebody_accepts_can_be_recorded(folder: Path, recorded: Path) -> None:
    slower = replace(case("tf32", 1.5), verdicts=[Verdict("speedup", "net/tf32/cuda", Outcome.REGRESSED)])
    file = record_runs(load_all(folder)["net"], "net", [run(slower)] * 5, FIRST)
    assert write(folder, file) == ("net/tf32/cuda: 2.02x -> 1.50x, 1.50..1.50 over 5 processes, cv 0 %, detects 1 %",)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(Outcome.UNDECIDED, ReasonCode.SLOWER_THAN_RECORD), (Outcome.REGRESSED, ReasonCode.SPEEDUP_BELOW_PROMISE)],
)
def test_what_is_perhaps_slower_than_recorded_is_not_added_to_the_record(
    folder: Path, recorded: Path, outcome: Outcome, code: ReasonCode
) -> None:
    slower = run(replace(case("tf32", 1.5), verdicts=[Verdict("speedup", "net/tf32/cuda", outcome, (Reason(code),))]))
    with pytest.raises(BaselineError, match=f"net/tf32/cuda is {outcome.value} in the check of speedup "):
        record_runs(load_all(folder)["net"], "net", [slower], replace(FIRST, adding=True), min_processes=1)


@pytest.mark.parametrize("path", sorted((ROOT / "baselines").rglob("*.json")), ids=lambda path: path.stem)
def test_a_committed_file_is_written_as_it_was_read(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert baseline.FILE.encode(baseline.FILE.decode(parse(text))) == text
