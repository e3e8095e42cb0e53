"""`python -m tools.autopsy_proof`: its table in the documents, its exit status, and the faults that a CPU can show."""

import json
from pathlib import Path

from gpugate.measurement import settings
from tools import autopsy_proof as proof

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
    monkeypatch.setattr(proof, "KINDS", ("sync", "stale"))
    kept = tmp_path / "proof.json"
    assert proof.main(["proven", "--device", "cpu", "--budget", "0.1", "--json", str(kept)]) == 0
    said, told = capsys.readouterr()
    rows = {line.split("`")[1]: line.split("|")[2:4] for line in said.splitlines() if line.startswith("| `")}
    assert {fault: [int(cell) for cell in cells] for fault, cells in rows.items() if int(cells[1])} == {
        "stale": [1, 1],
    }
    assert "tiny/fast/cpu sync: fast failed while being mutated by sync: ValueError: a CPU has no device" in told
    trials = json.loads(kept.read_text())["trials"]
    assert len(trials) == 2
    assert {trial["kind"] for trial in trials if trial["named"]} == {"stale output"}


def test_the_table_in_the_documents_is_that_of_the_trials_beside_it(capsys) -> None:
    folder = Path(__file__).parents[2] / "results/h200/autopsy"
    assert proof.main(["--of", *map(str, sorted(folder.glob("*.json")))]) == 0
    assert capsys.readouterr().out in (folder / "README.md").read_text(encoding="utf-8")
