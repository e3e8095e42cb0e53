"""`python -m tools.autopsy_proof`: its table, its exit status, and the faults that a CPU can show."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpugate.errors import SideError
from gpugate.faults.fault import Fault
from gpugate.measurement import settings
from gpugate.results.case import CaseResult
from tests.support.stored_runs import COUNTED, case, measured
from tools import autopsy_proof as proof
from tools.autopsy_proof import GOAL, KINDS, NAMES, FaultTrial, table


def test_every_fault_has_its_right_causes() -> None:
    assert set(NAMES) == set(KINDS)
    for kind in KINDS:
        assert Fault.parse(proof.SIZES.get(kind, kind)).kind == kind


def test_the_table_of_a_proof_counts_what_was_named() -> None:
    trials = [FaultTrial("sync", f"net/{number}/cuda", "synchronization", named=True) for number in range(3)]
    trials += [
        FaultTrial("leak", "net/0/cuda", "host"),
        FaultTrial("copy", "net/0/cuda", cannot="a CPU copies nothing"),
    ]
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
    monkeypatch.setattr(proof, "KINDS", [kind for kind in KINDS if kind not in ("slow", "cpu-work")])
    kept = tmp_path / "proof.json"
    assert proof.main(["proven", "--device", "cpu", "--budget", "0.1", "--json", str(kept)]) == 0
    said, told = capsys.readouterr()
    rows = {line.split("`")[1]: line.split("|")[2:4] for line in said.splitlines() if line.startswith("| `")}
    assert {fault: [int(cell) for cell in cells] for fault, cells in rows.items() if int(cells[1])} == {
        "wrong:0.1": [1, 1],
        "stale": [1, 1],
        "skip-work": [1, 1],
    }
    assert "tiny/fast/cpu sync: fast failed while being mutated by sync: ValueError: a CPU has no device" in told
    trials = json.loads(kept.read_text())["trials"]
    assert len(trials) == len(KINDS) - 2
    assert {trial["kind"] for trial in trials if trial["named"]} == {"numerics", "stale output", "work left out"}


def test_a_proof_that_named_too_few_or_showed_nothing_is_red(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(proof, "_select", lambda *arguments: ([], {}))
    assert proof.main([]) == 1
    few = [FaultTrial("stale", f"net/{number}/cpu", "numerics", named=number > 1) for number in range(10)]
    for trials, status in ((few, 1), (few[1:], 1), (few[2:], 0)):
        monkeypatch.setattr(proof, "take_trials", lambda *arguments, found=trials: iter(found))
        assert proof.main([]) == status, GOAL
    assert "8 of 10 causes named, 80 %" in capsys.readouterr().out


def test_the_table_in_the_documents_is_that_of_the_trials_beside_it(capsys) -> None:
    folder = Path(__file__).parents[2] / "results/h200/autopsy"
    assert proof.main(["--of", *map(str, sorted(folder.glob("*.json")))]) == 0
    assert capsys.readouterr().out in (folder / "README.md").read_text(encoding="utf-8")


def test_only_a_refusal_of_the_fault_is_no_trial(monkeypatch) -> None:
    errors = {"copy": ValueError("a CPU copies nothing"), "leak": MemoryError("no memory")}

    def measure(of: Any, context: Any, budget_s: float, fault: Fault | None) -> CaseResult:
        if of.id == "tiny/broken/cuda":
            raise SideError("broken", "being built", RuntimeError("no"))
        if fault is not None and fault.kind in errors:
            raise SideError("fast", "being built", errors[fault.kind])
        return case("fast", measurement=measured("tiny/fast/cuda", 3.0, optimized_counters=COUNTED))

    monkeypatch.setattr(proof, "_measure", measure)
    cases = [SimpleNamespace(id=f"tiny/{name}/cuda") for name in ("broken", "fast")]
    found = list(proof.take_trials(cases, dict.fromkeys(case.id for case in cases), 1.0))
    assert [(one.fault, one.case_id) for one in found if one.failed] == [
        ("none", "tiny/broken/cuda"),
        ("leak", "tiny/fast/cuda"),
    ]
    assert [one.fault for one in found if one.cannot] == ["copy"]
    assert {one.kind for one in found if not (one.failed or one.cannot)} == {"nothing"}
