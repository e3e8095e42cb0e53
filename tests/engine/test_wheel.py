"""The wheel works outside the checkout: `gpugate init` and pytest, without network."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*words: str | Path, folder: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHONPATH"))}
    command = [sys.executable, *map(str, words)]
    ended = subprocess.run(
        command, cwd=folder, env={**kept, **environment}, capture_output=True, text=True, check=False
    )
    # 1 is a speedup below its promise, beside other work: no time decides this test.
    assert ended.returncode in (0, 1 if "pytest" in words else 0), ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the sources, so that no `build/` is left beside them."""
    pytest.importorskip("setuptools", minversion="77")
    sources, built = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for path in [ROOT / "pyproject.toml", ROOT / "README.md", *(ROOT / "gpugate").rglob("*")]:
        if path.is_file() and "__pycache__" not in path.parts:
            copied = sources / path.relative_to(ROOT)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(path.read_bytes())
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"  # as pip calls it
    run("-c", build, built, folder=sources)
    (path,) = built.glob("gpugate-*.whl")
    return path


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "gpugate").rglob("*") if path.is_file()}
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in wanted - packed if "__pycache__" not in name} == set()


def test_init_and_a_first_run_work_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    site, project = tmp_path / "site", tmp_path / "project"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    code = "import gpugate; from gpugate.commands.cli import main; main(['init', 'project']); print(gpugate.__file__)"
    _, _, step, where = run("-c", code, folder=tmp_path, PYTHONPATH=str(site)).splitlines()
    assert step.startswith("next: OMP_NUM_THREADS=1 pytest project")
    assert Path(where).is_relative_to(site)
    words = ("-m", "pytest", "--perf-device=cpu", "--perf-budget=0.3", "-p", "no:cacheprovider", "--perf-json=run.json")
    text = run(*words, folder=project, PYTHONPATH=str(site), OMP_NUM_THREADS="1")
    assert "1 case measured" in text
    verdicts = json.loads((project / "run.json").read_text(encoding="utf-8"))["cases"]["projection/fused-qkv/cpu"][
        "verdicts"
    ]
    assert {one["check"]: one["outcome"] for one in verdicts}["equivalence"] == "PASS"
    made = sorted(path.name for path in project.iterdir() if path.name not in ("__pycache__", ".benchmarks"))
    assert made == [".gpugate-cache", "conftest.py", "run.json", "test_my_workload.py"]
    assert (project / ".gpugate-cache/.gitignore").read_text(encoding="utf-8") == "*\n"
