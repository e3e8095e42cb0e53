"""One child that measures: what becomes of one that ends early or not at all."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpugate.errors import FreshProcessError
from gpugate.session.confirm import run_fresh
from tests.engine.session.test_xdist_workers import OPTIONS

CPU = torch.device("cpu")


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """An interpreter that runs `script` whatever it is told; returns where a run would be written."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{script}\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return tmp_path / "run-1.json"


@pytest.mark.parametrize("status", [0, 3])
def test_one_that_writes_no_run_is_told_by_its_last_words(tmp_path: Path, monkeypatch, status: int) -> None:
    path = child(tmp_path, monkeypatch, f"print('no such test')\nraise SystemExit({status})")
    with pytest.raises(
        FreshProcessError, match=rf"^a fresh process ended with status {status}: no such test$"
    ) as caught:
        run_fresh(OPTIONS, CPU, tmp_path, ["test.py"], path)
    assert caught.value.printed == "no such test"


def test_it_is_told_what_this_process_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = child(tmp_path, monkeypatch, "import sys\nprint(*sys.argv[1:])\nraise SystemExit(3)")
    from gpugate.faults.fault import Fault

    options = replace(OPTIONS, budget_s=2.5, fault=Fault.parse("slow:5"), settings={"data": "a=b"})
    with pytest.raises(FreshProcessError) as caught:
        run_fresh(options, CPU, tmp_path, ["a.py::b"], path)
    words = caught.value.printed.split()
    assert words[words.index("pytest") + 1] == "a.py::b"
    for wanted in (
        "--perf-mutate=slow:5",
        "--perf-set=data=a=b",
        "2.5",
        f"--rootdir={tmp_path}",
        f"--perf-json={path}",
        "gpugate.plugin",
    ):
        assert wanted in words
