"""A proof that succeeded is not shown again while its code, the software, the machine and the days allow it."""

from __future__ import annotations

import importlib.metadata
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from gpugate.measurement.record import ProofResult
from gpugate.results.run import RunResult
from gpugate.session.remembered_proofs import RememberedProofs
from gpugate.store.store_url import VARIABLE
from gpugate.workload import Case, Context, Needs, Optimization, Proof, Side, Size, Workload
from tests.conftest import H200
from tests.support.tiny_project import QUICK, TinyProject

NOW = "2026-11-23T02:00:05+01:00"
LEARNED = (ProofResult("it learns", "98 %"),)


def build(context: Context) -> Side:
    return Side(lambda inputs: inputs)


def show(context: Context) -> str:
    return "98 %"


def a_case(seed: int = 0, items: int = 4, proof: Proof = Proof("it learns", show), needs: Needs = Needs()) -> Case:  # noqa: B008  # frozen
    optimization = Optimization("fast", build, {"cuda": 1.0}, proofs=(proof,), needs=needs)
    sizes = {"cuda": Size(items, 1.0, 1.0)}
    return Case(
        Workload("net", build, lambda context, index: index, sizes, (optimization,), seed=seed), optimization, "cuda"
    )


def proofs_in(folder: Path | None, started_at: str = NOW, **of_run: Any) -> RememberedProofs:
    """The remembered proofs of a session that measures one case."""
    measured = of_run.pop("case", a_case())
    run = RunResult(**{"environment": H200, "started_at": started_at, "seed": 1, **of_run})
    proofs = RememberedProofs(folder, run)
    proofs.compute_keys([measured])
    return proofs


def after(days: float) -> str:
    return (datetime.fromisoformat(NOW) + timedelta(days=days)).isoformat()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the proof that a run remembered."""
    proofs_in(tmp_path / "proofs").keep(a_case(), LEARNED)
    return tmp_path / "proofs"


def file_of(folder: Path) -> Path:
    (path,) = folder.rglob("*.json")
    return path


@pytest.mark.parametrize("days", [0.0, 1.0, 6.99])
def test_a_proof_is_remembered_with_the_start_of_its_run(folder: Path, days: float) -> None:
    assert proofs_in(folder, after(days)).recall(a_case()) == (replace(LEARNED[0], proved_at=NOW),)


def test_another_gpu_of_the_host_is_the_same_machine(folder: Path) -> None:
    assert proofs_in(folder, environment=replace(H200, gpu_index=3)).recall(a_case())


def test_another_number_of_ranks_forgets_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = a_case(needs=Needs(gpus=2))
    for gpus, recalled in ((2, False), (2, True), (4, False)):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        proofs = proofs_in(tmp_path, case=case)
        assert bool(proofs.recall(case)) == recalled
        proofs.keep(case, LEARNED)


ANEW: dict[str, dict[str, Any]] = {
    "seven days": {"started_at": after(7)},
    "a clock that was wrong": {"started_at": after(-0.1)},
    "a recording": {"recording": True},
    "another driver": {"environment": replace(H200, driver="590.2")},
    "another package": {"environment": replace(H200, packages={"torch": "2.12.0"})},
    "other inputs": {"case": a_case(seed=1)},
    "another size": {"case": a_case(items=8)},
    "another proof": {"case": a_case(proof=Proof("it learns", lambda context: "98 %"))},
    "another name": {"case": a_case(proof=Proof("it learns well", show))},
}


@pytest.mark.parametrize("change", ANEW.values(), ids=ANEW)
def test_a_change_forgets_the_proof(folder: Path, change: dict[str, Any]) -> None:
    path = file_of(folder)
    assert proofs_in(folder, **change).recall(change.get("case", a_case())) == ()
    assert not path.exists()


@pytest.mark.parametrize("other", [{"memory_bytes": 2**37}, {"environment": replace(H200, device_name="NVIDIA B200")}])
def test_another_machine_has_a_file_of_its_own(folder: Path, other: dict[str, Any]) -> None:
    assert proofs_in(folder, **other).recall(a_case()) == ()
    assert proofs_in(folder).recall(a_case())


def test_another_version_of_any_installed_package_forgets_the_proof(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pytest = [one for one in importlib.metadata.distributions() if one.name != "pytest"]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: without_pytest)
    assert proofs_in(folder).recall(a_case()) == ()


@pytest.mark.parametrize(
    "edit",
    [{"proved_at": "today"}, {"proved_at": "2026-11-23T02:00:05"}, {"proved_at": None}, {"problem": ""}, {"words": 98}],
)
def test_an_edited_file_proves_nothing(folder: Path, edit: dict[str, Any]) -> None:
    document = json.loads(file_of(folder).read_text())
    document["proofs"][0].update(edit)
    file_of(folder).write_text(json.dumps(document))
    assert proofs_in(folder).recall(a_case()) == ()
    assert list(folder.rglob("*.json")) == []


def test_a_failed_proof_beside_a_good_one_is_not_remembered(tmp_path: Path) -> None:
    proofs_in(tmp_path).keep(a_case(), (*LEARNED, ProofResult("it keeps up", problem="12 %")))
    assert list(tmp_path.iterdir()) == []


# Whole runs of a project whose proof counts how often it is shown.
PROVEN = 'Optimization("quick", quick, {"cpu": 0.01}, proofs=(Proof("it learns", show),))'
CODE = f"""
from gpugate.workload import DisprovedError, Proof
{QUICK}
def show(context):
    with Path(__file__).with_name("shown").open("a") as file:
        file.write("x")
    if Path(__file__).with_name("disproved").exists():
        raise DisprovedError("12 % right")
    return "98 % right"
"""


@pytest.fixture
def project(tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> TinyProject:
    """A project with a proof and a store of its own."""
    monkeypatch.delenv(VARIABLE)
    tiny.workload(CODE, PROVEN)
    return tiny


def times_shown(project: TinyProject) -> int:
    shown = project.path / "shown"
    return len(shown.read_text()) if shown.exists() else 0


def test_the_second_night_remembers_the_proof_and_says_its_date(project: TinyProject) -> None:
    first, second = project.run("--perf-report", "one"), project.run("--perf-report", "two")
    assert (first.status, second.status, times_shown(project)) == (0, 0, 1)
    began = project.json("one/run.json")["started_at"]
    line = f"proofs: 1 proved on {began[:10]}"
    texts = [project.path / "two" / name for name in ("summary.md", "night.html")]
    assert "proofs:" not in first.text
    assert [line in text for text in (second.text, *(path.read_text(encoding="utf-8") for path in texts))] == [True] * 3
    case = project.json("two/run.json")["cases"]["tiny/quick/cpu"]
    proof = {"name": "it learns", "words": "98 % right", "problem": None}
    assert case["measurement"]["proofs"] == [{**proof, "proved_at": began}]
    reasons = {one["code"]: one["facts"] for one in case["verdicts"][0]["reasons"]}
    assert reasons["proven"] == {"proof": "it learns", "words": "98 % right", "proved_on": began[:10]}
    assert "outputs_agree" in reasons  # this run compared its outputs all the same


def test_a_folder_that_cannot_be_written_is_a_warning(project: TinyProject) -> None:
    project.write("elsewhere/proofs", "a file")
    ended = project.run("--perf-store", f"sqlite:///{project.path}/elsewhere/all.sqlite")
    assert ended.status == 0
    (line,) = [line for line in ended.text.splitlines() if line.startswith("warning: proofs are not remembered: ")]
    assert re.search(
        r"elsewhere/proofs cannot be written \(.*\): give another --perf-store, or --perf-store off$", line
    )


def test_an_edit_during_a_run_is_not_proved_by_it(project: TinyProject) -> None:
    """The run proves the code that it loaded, not the code in the file at the end of the proof."""
    project.workload(CODE.replace('"98 % right"', 'edit() or "98 % right"') + EDIT, PROVEN)
    for shown in (1, 2):
        assert project.run().status == 0
        assert times_shown(project) == shown


EDIT = """
def edit():
    path = Path(__file__)
    path.write_text(path.read_text().replace("98 % right", "99 % right"))
"""
