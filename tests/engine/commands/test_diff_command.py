"""`gpugate diff A B`: two stored runs, and the profiles that lie beside baselines."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest

from gpugate.commands.cli import main
from gpugate.commands.trust import autopsy_proof as proof
from gpugate.commands.trust.autopsy_proof import GOAL, NAMES, Trial, table
from gpugate.errors import BaselineError, SideError
from gpugate.faults.fault import SPELLING, Fault
from gpugate.measurement import settings
from gpugate.measurement.step_profile import StepProfile
from gpugate.profiling.summary import summarize, write_summary
from gpugate.results.case import CaseResult
from gpugate.store import profiles_file, run_file
from tests.support.profile_exports import ExportWriter
from tests.support.stored_runs import COUNTED, MACHINE, case, measured, stored

MS = 1_000_000  # in ns
PROFILE = StepProfile(kernels={"conv": (57.0, 9.0)}, kernel_ms=9.0)


def profiled(name: str, speedup: float, profile: StepProfile = PROFILE, **counters: float) -> CaseResult:
    case_id = f"tiny/{name}/cuda"
    return case(
        name,
        measurement=measured(case_id, speedup, optimized_profile=profile, optimized_counters={**COUNTED, **counters}),
    )


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A run and the folder of a night after it: a case with more kernels, one that is as before, one that is gone."""
    monkeypatch.setenv("COLUMNS", "140")
    night = tmp_path / "night"
    night.mkdir()
    stored(tmp_path / "a.json", profiled("net", 3.0), profiled("same", 3.0), profiled("gone", 3.0))
    more = StepProfile(kernels={"conv": (57.0, 9.0), "mul": (1.0, 0.5)}, kernel_ms=9.5)
    stored(night / "run.json", profiled("same", 3.0), profiled("net", 3.0, more, kernels=59.0), case("skipped", None))
    return tmp_path / "a.json", night


def test_what_differs_between_two_runs_is_told_with_its_cause(runs, capsys) -> None:
    assert main(["diff", *map(str, runs)]) == 0
    said, complaints = capsys.readouterr()
    assert complaints == ""
    net = said[said.index("tiny/net/cuda\n") :].splitlines()
    assert net[1] == "  verdict: PASS -> REGRESSED; speedup: 3.00x (3.00..3.00) -> 3.00x (3.00..3.00)"
    assert net[2] == "  optimized 10.00 ms -> 10.00 ms, reference 30.00 ms -> 30.00 ms"
    assert net[3].startswith("  likely cause, against a.json: more kernels run: 57 -> 59 per step, among them mul")
    assert "  new: mul 0.500 ms\n" in said
    same = said[said.index("tiny/same/cuda\n") :].splitlines()
    assert same[1] == "  verdict: PASS in both; speedup: 3.00x (3.00..3.00) -> 3.00x (3.00..3.00)"
    assert same[3].startswith("  likely cause, against a.json: a step takes as long as before")
    assert said.startswith("measured in A (a.json) only: tiny/gone/cuda\n\ntiny/")
    assert "measured on" not in said
    assert "measured with" not in said


def test_what_got_slower_the_most_comes_first_and_words_select(runs, capsys) -> None:
    before, night = runs
    found = profiled("same", 3.0).measurement
    pairs = tuple(replace(pair, optimized_ms=20.0) for pair in found.pairs)
    slower = replace(found, instances=(replace(found.instances[0], pairs=pairs),))
    stored(night / "run.json", profiled("net", 3.0), case("same", measurement=slower))
    main(["diff", str(before), str(night), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], list(found["cases"])) == ("gpugate-diff", ["tiny/same/cuda", "tiny/net/cuda"])
    assert found["cases"]["tiny/same/cuda"]["kind"] == "host"
    assert found["cases"]["tiny/same/cuda"]["before"] == {
        "outcome": "PASS",
        "speedup": {"median": pytest.approx(3.0, abs=1e-3), "low": ANY, "high": ANY},
        "reference_ms": ANY,
        "optimized_ms": ANY,
    }
    assert found["cases"]["tiny/same/cuda"]["after"]["outcome"] == "REGRESSED"
    assert found["warnings"] == ["measured in A (a.json) only: tiny/gone/cuda"]
    main(["diff", str(before), str(night), "-k", "NET"])
    said = capsys.readouterr().out
    assert said.startswith("tiny/net/cuda\n")
    assert "tiny/same" not in said


def test_the_side_that_moved_is_named_with_the_times_of_both(runs, capsys) -> None:
    before, night = runs
    stored(night / "run.json", case("net", 4.35))
    assert main(["diff", str(before), str(night)]) == 0
    said = capsys.readouterr().out
    assert "  optimized 10.00 ms -> 10.00 ms, reference 30.00 ms -> 43.50 ms: mostly the reference moved\n" in said
    main(["diff", str(before), str(night), "--json"])
    found = json.loads(capsys.readouterr().out)["cases"]["tiny/net/cuda"]
    assert (found["kind"], found["before"]["reference_ms"]) == ("another reference", pytest.approx(30.0, abs=0.01))
    assert found["after"]["optimized_ms"] == pytest.approx(10.0, abs=0.01)


def test_two_machines_are_named(runs, capsys) -> None:
    before, night = runs
    stored(night / "run.json", profiled("net", 3.0), environment=replace(MACHINE, device_name="NVIDIA H100"))
    main(["diff", str(before), str(night)])
    said = capsys.readouterr().out
    assert said.startswith("measured on two machines: device name NVIDIA H200 -> NVIDIA H100\nmeasured in ")


def test_what_else_differs_between_two_runs_is_named(runs, capsys) -> None:
    before, night = runs
    stored(before, *(profiled(f"gone-{number}", 3.0) for number in range(7)), profiled("net", 3.0))
    stored(
        night / "run.json",
        profiled("net", 3.0),
        profiled("new", 3.0),
        environment=replace(MACHINE, driver="590.2"),
        source_hashes={"tiny": "another"},
    )
    assert main(["diff", str(before), str(night), "--json"]) == 0
    gone = ", ".join(f"tiny/gone-{number}/cuda" for number in range(5))
    assert json.loads(capsys.readouterr().out)["warnings"] == [
        f"measured with other software or settings: driver {MACHINE.driver} -> 590.2",
        "measured of another source: tiny",
        f"measured in A (a.json) only: {gone} and 2 more",
        "measured in B (night) only: tiny/new/cuda",
    ]


def test_a_fault_that_was_put_in_on_purpose_is_named(runs, capsys) -> None:
    before, night = runs
    stored(night / "run.json", profiled("net", 3.0), mutated="slow:20")
    main(["diff", str(before), str(night)])
    said = capsys.readouterr().out
    assert said.startswith("B (night) was mutated by slow:20: its optimized sides have this fault on purpose\nmeasured")


def test_a_case_that_one_run_did_not_judge_says_so(runs, capsys) -> None:
    before, night = runs
    run = stored(night / "run.json", profiled("net", 3.0))
    run.cases["tiny/net/cuda"].verdicts.clear()
    run_file.write(night / "run.json", run)
    main(["diff", str(before), str(night)])
    assert "  verdict: PASS -> not judged; speedup: 3.00x " in capsys.readouterr().out


def test_what_a_profile_does_not_hold_is_a_warning(tmp_path: Path, capsys) -> None:
    before, after = report(tmp_path / "a.sqlite", 2), report(tmp_path / "b.sqlite", 2)
    with sqlite3.connect(after) as connection:
        connection.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    connection.close()
    assert main(["diff", str(before), str(after)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("b.sqlite: no kernel ran because of the steps: profile with --trace=cuda if")
    assert "nothing that is counted changed" not in said
    assert "a step takes as long as before, and what is counted changed: 2 -> 0 kernels per step" in said
    assert "verdict" not in said


def test_two_gpus_of_profiles_are_named(tmp_path: Path, capsys) -> None:
    before = report(tmp_path / "a.sqlite", 2)
    other = replace(summarize(before), gpu="NVIDIA H100")
    write_summary(tmp_path / "b.json", other)
    assert main(["diff", str(before), str(tmp_path / "b.json")]) == 0
    assert capsys.readouterr().out.startswith("measured on two machines: NVIDIA H200 -> NVIDIA H100\n\nb.json\n")


def test_what_cannot_be_compared_is_one_sentence(runs, capsys) -> None:
    before, night = runs
    (night / "empty").mkdir()
    (night / "doctor.json").write_text('{"format": "gpugate-doctor", "format_version": 1}')
    for words, sentence in {
        (str(before), str(night), "-k", "nowhere"): "measured no case in common whose id holds 'nowhere': give others",
        (str(before), str(night / "doctor.json")): (
            f"{night}/doctor.json is a 'gpugate-doctor' file, not a 'gpugate-run' one: give a file that --perf-"
        ),
        (str(before), str(night / "empty")): f"{night}/empty/run.json cannot be read (No such file or directory)",
    }.items():
        assert main(["diff", *words]) == 2
        said, complaint = capsys.readouterr()
        assert said == ""
        assert sentence in complaint
        assert complaint.count("\n") == 1


def test_profiles_come_back_as_they_were_and_others_stay(tmp_path: Path) -> None:
    other = StepProfile(kernels={"gemm": (1.0, 2.0)}, after={"spin": (1.0, 0.5)}, kernel_ms=2.0)
    run = stored(tmp_path / "run.json", profiled("net", 3.0), profiled("same", 3.0), case("skipped", None))
    profiles_file.write(profiles_file.made(tmp_path, "nvidia-h200", [run]))
    again = stored(tmp_path / "run.json", profiled("same", 3.0, other))
    profiles_file.write(profiles_file.made(tmp_path, "nvidia-h200", [run, again]))
    path = profiles_file.path_of(tmp_path, "nvidia-h200", "tiny")
    assert profiles_file.load(path).cases == {"net/cuda": PROFILE, "same/cuda": other}
    assert '        "conv": [57.0, 9.0]\n' in path.read_text(), "a line for each part, to be read as a difference"
    assert profiles_file.load(tmp_path / "none.json").cases == {}


def test_a_damaged_profile_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    path.write_text("{")
    with pytest.raises(BaselineError, match=r"tiny\.json cannot be used because .*: delete it, and record again"):
        profiles_file.load(path)
    run = stored(tmp_path / "run.json", profiled("net", 3.0))
    assert "cannot be written (Not a directory)" in profiles_file.write(
        profiles_file.made(path, "a file is no folder", [run])
    )


def test_every_fault_has_the_names_that_it_may_truly_be_called() -> None:
    assert set(NAMES) == set(SPELLING)
    for kind in SPELLING:
        assert Fault.parse(proof.SIZES.get(kind, kind)).kind == kind


def test_the_table_of_a_proof_counts_what_was_named() -> None:
    trials = [Trial("sync", f"net/{number}/cuda", "synchronization", named=True) for number in range(3)]
    trials += [Trial("leak", "net/0/cuda", "host"), Trial("copy", "net/0/cuda", cannot="a CPU copies nothing")]
    assert table(trials).splitlines()[2:] == [
        "| `sync` | 3 | 3 |  |",
        "| `leak` | 0 | 1 | net/0/cuda: host |",
        "| `copy` | 0 | 0 | no case here can show it |",
        "",
        "3 of 4 causes named, 75 %",
    ]


MODULE = """
import torch
from gpugate.workload import Optimization, Side, Size, Workload

def batch(context, index):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(index))

def build(context):
    return Side(lambda inputs: inputs.cos() * 2)

def fast(context):
    return Side(lambda inputs: inputs.cos() + inputs.cos())

WORKLOADS = (Workload("tiny", build, batch, {"cpu": Size(4, 0, 0)}, (Optimization("fast", fast, {"cpu": 0.1}),)),)
"""


def test_faults_of_what_is_computed_are_named_on_a_cpu(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "proven.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(settings.WARM_UP_S, "cpu", 0.01)
    monkeypatch.setitem(settings.BLOCK_MS, "cpu", 1.0)
    # How a slowdown is called is for the times to say, which decide no test.
    monkeypatch.setattr(proof, "SPELLING", {kind: kind for kind in SPELLING if kind != "slow"})
    kept = tmp_path / "proof.json"
    assert main_of_proof("proven", "--device", "cpu", "--budget", "0.1", "--json", str(kept)) == 0
    said, told = capsys.readouterr()
    rows = {line.split("`")[1]: line.split("|")[2:4] for line in said.splitlines() if line.startswith("| `")}
    assert {fault: [int(cell) for cell in cells] for fault, cells in rows.items() if int(cells[1])} == {
        "wrong:0.1": [1, 1],
        "stale": [1, 1],
        "skip-work": [1, 1],
    }
    assert "tiny/fast/cpu sync: fast failed while being mutated by sync: ValueError: a CPU has no device" in told
    trials = json.loads(kept.read_text())["trials"]
    assert len(trials) == len(SPELLING) - 1
    assert {trial["kind"] for trial in trials if trial["named"]} == {"numerics", "stale output", "work left out"}


def test_a_proof_that_named_too_few_or_showed_nothing_is_red(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(proof, "_selected", lambda *arguments: ([], {}))
    assert main_of_proof() == 1
    few = [Trial("stale", f"net/{number}/cpu", "numerics", named=number > 1) for number in range(10)]
    for trials, status in ((few, 1), (few[1:], 1), (few[2:], 0)):
        monkeypatch.setattr(proof, "trials", lambda *arguments, found=trials: iter(found))
        assert main_of_proof() == status, GOAL
    assert "8 of 10 causes named, 80 %" in capsys.readouterr().out


def test_the_table_in_the_documents_is_that_of_the_trials_beside_it(capsys) -> None:
    folder = Path(__file__).parents[3] / "results/h200/autopsy"
    assert main_of_proof("--of", *map(str, sorted(folder.glob("*.json")))) == 0
    assert capsys.readouterr().out in (folder / "README.md").read_text(encoding="utf-8")


def test_trials_that_cannot_be_read_are_named(tmp_path: Path, capsys) -> None:
    damaged = tmp_path / "proof.json"
    damaged.write_text('{"format": "gpugate-autopsy-proof", "format_version": 1}')
    for path, said in ((damaged, "make it again with --json"), (tmp_path / "none.json", "give what --json wrote")):
        with pytest.raises(SystemExit, match="2"):
            main_of_proof("--of", str(path))
        told = capsys.readouterr().err
        assert f"{path} cannot be " in told
        assert told.endswith(f"{said}\n")


def main_of_proof(*words: str) -> int:
    return proof.main(words)


def report(path: Path, encode_ms: int) -> Path:
    """Two steps of 20 ms; in each the stage `decode` runs a kernel of 4 ms, then `encode` one of `encode_ms`."""
    writer = ExportWriter(path)
    for start_ms in (0, 20):
        writer.step((start_ms + 1) * MS, (start_ms + 20) * MS)
        for name, begin_ms, ms in (("encode", start_ms + 10, encode_ms), ("decode", start_ms + 2, 4)):
            writer.range(name, begin_ms * MS, (begin_ms + 2) * MS)
            writer.launch((begin_ms + 1) * MS, (begin_ms + 1 + ms) * MS, grid=ms)
    return writer.written()


@pytest.mark.parametrize("as_summary", [False, True])
def test_two_profiles_are_compared_step_by_step_and_name_the_stage(tmp_path: Path, capsys, as_summary: bool) -> None:
    before, after = report(tmp_path / "a.sqlite", 2), report(tmp_path / "b.sqlite", 5)
    if as_summary:
        for path in (before, after):
            write_summary(path.with_suffix(".json"), summarize(path))
        before, after = before.with_suffix(".json"), after.with_suffix(".json")
    assert main(["diff", str(before), str(after), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cases"][after.name]
    assert found["against"] == before.name
    assert "first stage that takes longer: encode +3.00 ms" in found["lines"]
    assert "moved most: add() +3.00 ms" in found["lines"]


def launches(path: Path, gap_ms: int, waits: bool = False) -> Path:
    """Two steps of ten kernels of 1 ms; `gap_ms` of them after each other on the host, or in a call that waits."""
    writer, step_ms = ExportWriter(path), 10 * (1 + gap_ms)
    for start in (0, step_ms * MS):
        writer.step(start, start + step_ms * MS)
        for number in range(10):
            at = start + number * (1 + gap_ms) * MS
            writer.launch(at + MS // 2, at + MS // 2 + MS)
            if waits:
                writer.call("cudaStreamSynchronize_v3020", at + MS // 2, at + (1 + gap_ms) * MS)
    return writer.written()


def test_two_profiles_with_longer_between_launches_say_so(tmp_path: Path, capsys) -> None:
    before, after = launches(tmp_path / "a.sqlite", 1), launches(tmp_path / "b.sqlite", 2)
    assert main(["diff", str(before), str(after), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cases"][after.name]
    assert (found["kind"], "20.00 ms -> 30.00 ms (+10.00 ms of +10.00 ms" in found["cause"]) == ("launch gaps", True)
    assert "where it went: launch gaps +10.00 ms" in found["lines"]
    assert "the SM clock is not known of both: what a lower one cost is told as kernels" in found["lines"]


def test_a_host_that_waits_for_longer_launches_nothing_later(tmp_path: Path, capsys) -> None:
    paths = [launches(tmp_path / f"{gap_ms}.sqlite", gap_ms, waits=True) for gap_ms in (1, 2)]
    assert main(["diff", *map(str, paths), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cases"]["2.sqlite"]["kind"] == "host"


def test_a_run_and_a_profile_have_nothing_to_compare(runs, tmp_path: Path, capsys) -> None:
    export = report(tmp_path / "a.sqlite", 2)
    assert main(["diff", str(runs[0]), str(export)]) == 2
    assert "are a run and a profile: give two runs or two profiles" in capsys.readouterr().err
    assert main(["diff", str(export), str(export), "-k", "net"]) == 2
    assert "-k 'net' selects cases, and a profile is of one" in capsys.readouterr().err
    assert main(["diff", str(export), str(tmp_path / "none.sqlite")]) == 2
    assert "none.sqlite" in capsys.readouterr().err


def test_only_a_refusal_of_the_fault_is_no_trial(monkeypatch) -> None:
    """What fails otherwise, be it the sound side, was to be named and was not."""
    errors = {"copy": ValueError("a CPU copies nothing"), "leak": MemoryError("no memory")}

    def measured(case: Any, context: Any, budget_s: float, fault: Fault | None) -> CaseResult:
        if case.id == "tiny/broken/cuda":
            raise SideError("broken", "being built", RuntimeError("no"))
        if fault is not None and fault.kind in errors:
            raise SideError("fast", "being built", errors[fault.kind])
        return profiled("fast", 3.0)

    monkeypatch.setattr(proof, "_measured", measured)
    cases = [SimpleNamespace(id=f"tiny/{name}/cuda") for name in ("broken", "fast")]
    found = list(proof.trials(cases, dict.fromkeys(case.id for case in cases), 1.0))
    assert [(one.fault, one.case_id) for one in found if one.failed] == [
        ("none", "tiny/broken/cuda"),
        ("leak", "tiny/fast/cuda"),
    ]
    assert [one.fault for one in found if one.cannot] == ["copy"]
    assert {one.kind for one in found if not (one.failed or one.cannot)} == {"nothing"}
