"""Stored values that JSON can hold and that mean nothing: one sentence with file, field, value and next step.

Each row is an edit of a file that the program wrote itself. Random edits of such files found those that ended in a
traceback, in a search without an end, or in a verdict about nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.cli import main
from gpugate.errors import BaselineError
from gpugate.statistics.policy import MIN_PROCESSES
from gpugate.store import baseline, profiles_file, run_file
from gpugate.store.run_file import RunFileError
from tests.support import made_up_nights, stored_runs

CASE = "cases.tiny/pass/cuda"
ROOT = Path(__file__).parents[3]
HUGE = 10**30
SMALL_TIME = "greater than or equal to 1e-09"


def edit(path: Path, field: str, value: object) -> None:
    """Replaces the value at `field`, a path of names and numbers with spaces between them."""
    document = at = json.loads(path.read_text(encoding="utf-8"))
    *steps, last = (int(word) if word.isdecimal() else word for word in field.split())
    for step in steps:
        at = at[step]
    at[last] = value
    path.write_text(json.dumps(document), encoding="utf-8")


RUN: list[tuple[str, object, str]] = [
    ("measurement instances optimized_ms 0 0", 5e-324, f"is 5e-324, not {SMALL_TIME}"),
    ("measurement instances reference_ms 0 0", 1e300, "is 1e+300, not less than or equal to 1e+12"),
    ("measurement instances optimized_steps_per_block 0", 0, "is 0, not greater than or equal to 1"),
    ("measurement instances discarded 1", -3, "is -3, not greater than or equal to 0"),
    ("measurement instances reference_steps_per_block 0", 10**400, "not less than or equal to 9.0072e+15"),
    ("measurement attempts", 0, "is 0, not greater than or equal to 1"),
    ("measurement optimized_counters kernels", -1, "is -1, not greater than or equal to 0"),
    ("measurement wall_s", -0.5, "is -0.5, not greater than or equal to 0"),
    ("size items", 0, "is 0, not greater than or equal to 1"),
    ("summary speedup median", 0, "is 0, not greater than or equal to 1e-30"),
    ("summary speedup median", 1e6, "the median 1e+06 is not from low, "),
    ("summary optimized_ms median", 5e-324, "is 5e-324, not greater than or equal to 1e-30"),
    ("promise min_speedup", 0, "is 0, not greater than or equal to 1e-30"),
    ("promise tolerance relative_l2", -1, "is -1, not greater than or equal to 0"),
    ("remembered anchor speedup", 0, "is 0, not greater than or equal to 1e-30"),
    ("remembered anchor speedup_cv", -0.1, "is -0.1, not greater than or equal to 0"),
    ("remembered current optimized_ms", -1, f"is -1, not {SMALL_TIME}"),
    ("remembered current processes", 0, "is 0, not greater than or equal to 1"),
    ("remembered current processes", 10**15, "is 1000000000000000, not less than or equal to 10000"),
    ("remembered current sittings", -1, "is -1, not greater than or equal to 1"),
    ("remembered checks", 10**15, "is 1000000000000000, not less than or equal to 10000"),
    ("skipped", "\ud800", "is '\\ud800', not a valid string"),
]


@pytest.fixture
def stored_run(tmp_path: Path) -> Path:
    stored_runs.stored(tmp_path / "run.json", stored_runs.case("pass"))
    return tmp_path / "run.json"


@pytest.mark.parametrize(("field", "value", "words"), RUN)
def test_a_run_with_a_value_that_means_nothing(stored_run: Path, field: str, value: object, words: str) -> None:
    edit(stored_run, f"cases tiny/pass/cuda {field}", value)
    with pytest.raises(RunFileError) as refused:
        run_file.read(stored_run)
    sentence = str(refused.value)
    assert sentence.startswith(f"{stored_run} cannot be used because {CASE}.{field.split()[0]}")
    assert words in sentence
    assert sentence.endswith(": write it again with --perf-json")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("yardsticks 0 values matmul_bf16_tflops", 0, "matmul_bf16_tflops is 0, not greater than or equal to 1e-30"),
        ("yardsticks 0 values matmul_bf16_tflops", -788, "is -788, not greater than or equal to 1e-30"),
        ("started_at", "yesterday", "started_at is 'yesterday', not an ISO 8601 time with the UTC offset"),
        ("started_at", "2030-01-02T03:04:05", "not an ISO 8601 time with the UTC offset"),
        ("wall_s", -1, "wall_s is -1, not greater than or equal to 0"),
        ("environment cpu_count", 0, "environment.cpu_count is 0, not greater than or equal to 1"),
        ("environment l2_bytes", HUGE, f"environment.l2_bytes is {HUGE}, not less than or equal to 9.0072e+15"),
        ("source_hashes", {"\ud800": "x"}, "a name in source_hashes is '\\ud800', not a valid string"),
        ("cases tiny/pass/cuda case_id", "tiny/other/cuda", f"{CASE} is of the case 'tiny/other/cuda'"),
    ],
)
@pytest.mark.parametrize("command", ["replay", "record", "diff"])
def test_every_command_that_reads_a_run_names_it(
    stored_run: Path, capsys: pytest.CaptureFixture[str], command: str, field: str, value: object, words: str
) -> None:
    edit(stored_run, field, value)
    more = {"record": ["--baselines", str(stored_run.parent / "b")], "diff": [str(stored_run)]}.get(command, [])
    assert main([command, str(stored_run.parent), *more]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"gpugate {command}: {stored_run} cannot be used because ")
    assert words in said.err
    assert said.err.count("\n") == 1


BASELINE: list[tuple[str, object, str]] = [
    ("processes 2 optimized_ms 0 0", 5e-324, f"optimized_ms[0][0] is 5e-324, not {SMALL_TIME}"),
    ("processes 2 optimized_steps_per_block 0", 0, "optimized_steps_per_block[0] is 0, not greater than or equal to 1"),
    ("yardsticks matmul_bf16_tflops", 0, "matmul_bf16_tflops is 0, not greater than or equal to 1e-30"),
    ("optimized_counters kernels", -1, "optimized_counters.kernels is -1, not greater than or equal to 0"),
    ("environment cpu_count", -4, "environment.cpu_count is -4, not greater than or equal to 1"),
    ("environment l2_bytes", 10**400, "not less than or equal to 9.0072e+15"),
    ("reason", "\udfff", "reason is '\\udfff', not a valid string"),
]


@pytest.mark.parametrize("record", ["anchor", "current"])
@pytest.mark.parametrize(("field", "value", "words"), BASELINE)
def test_a_baseline_with_a_value_that_means_nothing(
    tmp_path: Path, record: str, field: str, value: object, words: str
) -> None:
    folder = tmp_path / "nvidia-h200"
    runs = []
    for hour in range(5):
        case = replace(stored_runs.case("pass", 3 + hour / 100), remembered=None)
        started_at = f"2030-01-02T0{hour}:00:00+00:00"
        runs.append(stored_runs.stored(tmp_path / "run.json", case, started_at=started_at))
    recording = baseline.Recording("first")
    baseline.write(folder, baseline.record_runs(None, "tiny", runs, recording, MIN_PROCESSES))
    path = folder / "tiny.json"
    edit(path, f"cases pass/cuda {record} {field}", value)
    with pytest.raises(BaselineError) as refused:
        baseline.load_all(folder)
    sentence = str(refused.value)
    assert sentence.startswith(f"{path} cannot be used because ")
    assert f"cases.pass/cuda.{record}.{field.split()[0]}" in sentence
    assert words in sentence
    assert "restore it from version control, or delete it" in sentence


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("summary speedup median", -3, "summary.speedup.median is -3.0, not greater than or equal to 1e-30"),
        ("summary speedup low", 5, "summary.speedup: the median "),
        ("summary optimized_ms median", 0, f"summary.optimized_ms.median is 0, not {SMALL_TIME}"),
        ("summary reference_ms median", 5e-324, f"summary.reference_ms.median is 5e-324, not {SMALL_TIME}"),
        ("remembered anchor speedup", 0, "remembered.anchor.speedup is 0, not greater than or equal to 1e-30"),
        ("case_id", "\ud800", "case_id is '\\ud800', not a valid string"),
    ],
)
def test_one_bad_night_costs_no_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object, words: str
) -> None:
    paths = made_up_nights.nights(tmp_path, {"a": made_up_nights.speedups(9)})
    edit(paths[4] / "run.json", f"cases tiny/a/cuda {field}", value)
    assert main(["history", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    (refused,) = json.loads(said.out)["refused"]
    assert said.err == f"gpugate history: {refused}\n"
    assert refused.startswith(f"{paths[4] / 'run.json'} cannot be used because cases.tiny/a/cuda.")
    assert words in refused
    assert refused.endswith(": delete the night")
    (machine,) = json.loads(said.out)["machines"]
    assert len(machine["nights"]) == 8


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("trials 1 instances reference_ms 0 0", 5e-324, f"reference_ms[0][0] is 5e-324, not {SMALL_TIME}"),
        ("trials 0 slowdown", -1, "trials[0].slowdown is -1, not greater than or equal to 0"),
        ("trials 0 process", 0, "trials[0].process is 0, not greater than or equal to 1"),
        ("conditions budget_s", 0, "conditions.budget_s is 0, not greater than or equal to 1e-30"),
    ],
)
def test_a_trust_folder_with_a_value_that_means_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object, words: str
) -> None:
    path = tmp_path / "trials-001.json"
    shutil.copy(ROOT / "results/cpu/trust/trials-001.json", path)
    edit(path, field, value)
    assert main(["trust", "--report-only", "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"gpugate trust: {path} cannot be used because " in said
    assert words in said
    assert said.endswith(": delete it and take its trials again\n")
    assert said.count("\n") == 1


def first_part(change: Callable[[dict[str, Any]], None], path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    change(next(iter(document["cases"].values())))
    path.write_text(json.dumps(document), encoding="utf-8")


def test_a_profile_with_a_value_that_means_nothing(tmp_path: Path) -> None:
    path = tmp_path / "two-layer-net.json"
    shutil.copy(ROOT / "baselines/profiles/nvidia-h200/two-layer-net.json", path)
    first_part(lambda profile: profile.update(kernel_ms=-1), path)
    with pytest.raises(BaselineError) as refused:
        profiles_file.load(path)
    sentence = str(refused.value)
    assert f"{path} cannot be used because cases." in sentence
    assert sentence.endswith(".kernel_ms is -1, not greater than or equal to 0: delete it, and record again to have it")


def test_what_was_committed_is_still_read() -> None:
    """The ranges refuse no value that a machine ever gave."""
    assert len(baseline.load_all(ROOT / "baselines/nvidia-h200")) == 20
    for path in (ROOT / "baselines/profiles").rglob("*.json"):
        assert profiles_file.load(path).cases
