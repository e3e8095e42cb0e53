"""A run under Nsight Compute: its command, the report that is kept, and the sentence where there is none."""

import json
import os
from pathlib import Path

import pytest

from gpugate.profiling import nsight_tools
from gpugate.profiling.ncu_report import run_under_ncu
from gpugate.session.options import Profiling
from tests.support.fake_ncu import install
from tests.support.fake_nsys import NVTX

SECRET = "hunter2-of-a-ci-job"
CAPTURE = {
    "number": 1,
    "case_id": "a/fused/cuda",
    "label": "reference",
    "side": "baseline",
    "steps": 1,
    "items": 64,
    "complete": True,
}
LEFT = [".gitignore", ".lock"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nvtx.py").write_text(NVTX, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def under_ncu(project: Path, log: str = "", reports: bool = True, captured: bool = True) -> tuple[int, str, list[str]]:
    """Runs a stand-in; returns the exit status, the printed lines, and the files that are kept."""
    index = {"captures": [CAPTURE] if captured else [], "status": 0 if captured else 5}
    install(project, log, reports, index)
    said: list[str] = []
    status = run_under_ncu(Profiling("ncu", project / "found", kernels=30), ["-k", "x"], said.append)
    return status, "\n".join(said), sorted(path.name for path in (project / "found").iterdir())


def test_a_run_under_ncu_keeps_its_report_without_a_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI_JOB_TOKEN", SECRET)
    status, said, kept = under_ncu(project)
    assert (status, kept) == (0, [*LEFT, "kernels.ncu-rep"]), said
    assert said == f"ncu: open {project / 'found/kernels.ncu-rep'} in Nsight Compute; under a profiler: not judged"
    report = (project / "found/kernels.ncu-rep").read_text(encoding="utf-8")
    assert f'"PATH": "{project}:' in report  # so that a secret in it would be seen
    assert SECRET not in report
    words = json.loads((project / "words").read_text(encoding="utf-8"))
    assert {"--nvtx", "--import-sass=no", "--clock-control=none", "--profile-from-start=off"} <= set(words)
    assert "--launch-count=30" in words
    assert words[-4:] == ["-m", "pytest", "-k", "x"]


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM: no permission", f"(ERR_NVGPUCTRPERM): {nsight_tools.PERMISSION}"),
        ("==ERROR== Unknown section", "ncu made no report (Unknown section): run it by hand to see more"),
        ("==PROF== a\n==WARNING== No kernels were profiled.", "no report (No kernels were profiled.): run it by hand"),
        ("", "ncu made no report (it said no error): run it by hand to see more"),
    ],
)
def test_without_a_report_it_says_how_to_get_one(project: Path, log: str, sentence: str) -> None:
    status, said, kept = under_ncu(project, log, reports=False)
    assert (status, kept) == (1, LEFT)
    assert sentence in said


def test_where_no_side_was_captured_nothing_is_looked_for(project: Path) -> None:
    status, said, kept = under_ncu(project, reports=False, captured=False)
    assert (status, said, kept) == (5, "", LEFT)
