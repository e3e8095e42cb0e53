"""One child that measures: what becomes of one that ends early or not at all."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpugate.errors import FreshProcessError
from gpugate.session.fresh_process import run_fresh
from tests.engine.session.test_xdist_workers import OPTIONS
from tests.support.patience import started_once
from tests.support.tiny_project import TinyProject

CPU = torch.device("cpu")


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """An interpreter that runs `script` whatever it is told; returns where a run would be written."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{script}\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return tmp_path / "run-1.json"


def test_one_that_hangs_is_killed_at_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = "import time\nprint('waiting', flush=True)\ntime.sleep(600)"
    path = child(tmp_path, monkeypatch, waiting)
    started_once(lambda: path.with_suffix(".log").read_text(encoding="utf-8") == "waiting\n", monkeypatch)
    with pytest.raises(FreshProcessError, match=r"^a fresh process did not end within 0\.1 s$") as caught:
        run_fresh(OPTIONS, CPU, tmp_path, ["test.py"], path, timeout_s=0.1)
    assert caught.value.printed == "waiting"


@pytest.mark.parametrize("status", [0, 3])
def test_one_that_writes_no_run_is_told_by_its_last_words(tmp_path: Path, monkeypatch, status: int) -> None:
    path = child(tmp_path, monkeypatch, f"print('no such test')\nraise SystemExit({status})")
    with pytest.raises(FreshProcessError, match=rf"^a fresh process ended with status {status}$") as caught:
        run_fresh(OPTIONS, CPU, tmp_path, ["test.py"], path)
    assert caught.value.printed == "no such test"


def test_it_is_told_what_this_process_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = child(tmp_path, monkeypatch, "import sys\nprint(*sys.argv[1:])\nraise SystemExit(3)")
    from gpugate.faults.fault import Fault

    options = replace(OPTIONS, budget_s=2.5, fault=Fault.parse("slow:5"), settings={"data": "a=b"})
    with pytest.raises(FreshProcessError) as caught:
        run_fresh(options, CPU, tmp_path, ["a.py::b"], path)
    words = caught.value.printed.split()
    assert words[words.index("pytest") + 1] == "-p"
    for wanted in ("a.py::b", "--perf-mutate=slow:5", "--perf-set=data=a=b", "2.5", f"--rootdir={tmp_path}", str(path)):
        assert wanted in words


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("\nno tests ran in 0.00s\nERROR: file or directory not found: a.py\n", "file or directory not found: a.py"),
        ("a.py:1: in <module>\nE   ValueError: bad value\nERROR a.py\n1 error in 0.06s", "ValueError: bad value"),
        ("INTERNALERROR>   raise it\nINTERNALERROR> m.BadError: no\n\nno tests ran in 0.02s", "m.BadError: no"),
        (
            "ERROR: usage: pytest [options]\npytest: error: unrecognized: -x\n  rootdir: /",
            "pytest: error: unrecognized: -x",
        ),
        ("Fatal Python error: Aborted\n\nThread 0x7:\n  File a.py", "Fatal Python error: Aborted"),
        ("compiling\nstill compiling", "still compiling"),
        ("", ""),
    ],
)
def test_its_own_error_is_the_cause(said: str, cause: str) -> None:
    assert FreshProcessError("ended with status 4", said).cause == cause


def test_a_folder_named_as_the_package_hides_nothing(tiny: TinyProject) -> None:
    """Such as a checkout of gpugate in the rootdir."""
    tiny.write("gpugate/__init__.py", "raise ImportError('not the package of this process')")
    result = tiny.run("--update-baselines", "-operf_processes=2")
    assert result.status == 0, result.text
    assert tiny.baseline.exists()
