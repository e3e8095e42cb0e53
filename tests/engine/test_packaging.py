"""A fresh clone installs what pyproject.toml says, in the versions that constraints.txt says, by make alone."""

import shutil
import sys
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.stand_ins import run_script, write_programs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FILES = ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run")


@pytest.mark.parametrize("python", ["3.10", "3.12"])
def test_every_direct_dependency_has_one_pin_inside_its_range_which_is_open_upwards(python: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "://" not in "".join((ROOT / name).read_text() for name in FILES), "no package registry is named"
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pins = [pin for pin in pins if not pin.marker or pin.marker.evaluate({"python_version": python})]
    for words in (*project["dependencies"], *chain(*project["optional-dependencies"].values())):
        wanted = Requirement(words)
        (pin,) = [pin for pin in pins if canonicalize_name(pin.name) == canonicalize_name(wanted.name)]
        (exact,) = pin.specifier
        assert exact.operator == "==", pin
        assert wanted.specifier.contains(exact.version), pin
        assert {specifier.operator for specifier in wanted.specifier} == {">="}, wanted


def test_the_plugin_is_registered_under_the_name_of_its_module() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"gpugate.plugin": "gpugate.plugin"}, "else -p registers it twice"


# Stands in for python: writes down how it was called, and makes an environment whose python is itself. A value of
# PYTHONDONTWRITEBYTECODE, by which Python keeps no bytecode, comes first.
PYTHON = """
[ "$1" = -c ] || echo "$PYTHONDONTWRITEBYTECODE$*" >> "$CALLS"
[ "$1 $2" != "-m venv" ] || { mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; }
"""


def make(folder: Path, target: str, body: str = PYTHON) -> tuple[list[str], list[str]]:
    """Returns the calls of a python with this body but for the question for its version, and what make refuses."""
    write_programs(folder, python=body)
    calls = folder / "calls"
    calls.write_text("")
    variables = {"CALLS": str(calls), "PYTHONDONTWRITEBYTECODE": "1", "MAKEFLAGS": ""}
    words = ("make", f"--directory={ROOT}", target, f"VENV={folder}/venv", f"PYTHON={folder}/python")
    ended = run_script(folder, *words, **variables)
    return calls.read_text().splitlines(), ended.stderr.splitlines() if ended.returncode else []


def test_each_target_works_alone_and_installs_once(tmp_path: Path) -> None:
    install = "-m pip install --disable-pip-version-check --no-compile -c constraints.txt -e"
    perf = ["-m pytest perf_tests"]
    (made, installs, runs), refused = make(tmp_path, "test")
    assert (made, installs, refused) == (f"-m venv {tmp_path}/venv", f"{install} .[workloads,dev]", [])
    assert make(tmp_path, "test") == ([runs], [])
    assert make(tmp_path, "perf") == (perf, []), "what the tests need includes what measuring needs"
    shutil.rmtree(tmp_path / "venv")
    assert make(tmp_path, "perf") == ([made, f"{install} .[workloads]", *perf], [])


def test_an_old_python_is_refused_and_a_half_made_environment_is_made_again(tmp_path: Path) -> None:
    calls, refused = make(tmp_path, "perf", "exit 1")
    told = f"no Python 3.10 or newer among: {tmp_path}/python; install one or run make PYTHON=/path/to/python3"
    assert (calls, refused[0]) == ([], told)
    for body in (PYTHON.replace("cp ", "touch $3/bin/python; exit 3; cp "), PYTHON):
        calls, _ = make(tmp_path, "perf", body)
        assert calls[0] == f"-m venv {tmp_path}/venv"
