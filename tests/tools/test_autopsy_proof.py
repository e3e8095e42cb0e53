"""`python -m tools.autopsy_proof`: its table in the documents, its exit status, and the faults that a CPU can show."""

import json
from pathlib import Path

import pytest
import torch

from gpugate.measurement import settings
from gpugate.workload import Case, Context, DeviceKind, Optimization, Side, Size, Workload
from tools import autopsy_proof as proof


def batch(context: Context, index: int) -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(index))


def build(context: Context) -> Side:
    return Side(lambda inputs: inputs.cos() * 2)


def test_faults_of_what_is_computed_are_named_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fast = Optimization("fast", lambda context: Side(lambda inputs: inputs.cos() + inputs.cos()), {"cpu": 0.1})
    sizes: dict[DeviceKind, Size] = {"cpu": Size(4, 0, 0)}
    workload = Workload("tiny", build, batch, sizes, (fast,), cold=False)
    monkeypatch.setattr(proof, "list_cases", lambda kind: [Case(workload, fast, kind)])
    monkeypatch.setitem(settings.WARM_UP_S, "cpu", 0.01)
    monkeypatch.setitem(settings.BLOCK_MS, "cpu", 1.0)
    # How a slowdown is called is for the times to say, which decide no test.
    monkeypatch.setattr(proof, "KINDS", ("sync", "stale"))
    kept = tmp_path / "proof.json"
    assert proof.main(["--device", "cpu", "--budget", "0.1", "--json", str(kept)]) == 0
    said, told = capsys.readouterr()
    rows = {line.split("`")[1]: line.split("|")[2:4] for line in said.splitlines() if line.startswith("| `")}
    assert {fault: [int(cell) for cell in cells] for fault, cells in rows.items() if int(cells[1])} == {"stale": [1, 1]}
    assert "tiny/fast/cpu sync: fast failed while being mutated by sync: ValueError: a CPU has no device" in told
    trials = json.loads(kept.read_text())["trials"]
    assert len(trials) == 2
    assert {trial["kind"] for trial in trials if trial["named"]} == {"stale output"}


def test_the_table_in_the_documents_is_that_of_the_trials_beside_it(capsys) -> None:
    folder = Path(__file__).parents[2] / "results/h200/autopsy"
    assert proof.main(["--of", *map(str, sorted(folder.glob("*.json")))]) == 0
    assert capsys.readouterr().out in (folder / "README.md").read_text(encoding="utf-8")
