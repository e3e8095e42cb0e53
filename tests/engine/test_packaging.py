"""A fresh clone installs what pyproject.toml says, in the versions that constraints.txt says, by make alone."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
REQUIREMENTS = [
    Requirement(words)
    for words in (
        *PROJECT["project"]["dependencies"],
        *(words for extra in PROJECT["project"]["optional-dependencies"].values() for words in extra),
    )
]
# Stands in for python: writes down how it was called, and makes an environment whose python is itself. A value of
# PYTHONDONTWRITEBYTECODE, by which Python keeps no bytecode, comes first.
FAKE_PYTHON = """#!/bin/sh
echo "$PYTHONDONTWRITEBYTECODE$*" >> "$CALLS"
case "$1 $2" in
  "-c "*) exit {too_old} ;;
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
esac
"""


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_every_direct_dependency_has_one_pin_inside_its_range_which_is_open_upwards(python: str) -> None:
    here = {"python_version": python}
    pins = [(canonicalize_name(pin.name), pin) for pin in PINS if not pin.marker or pin.marker.evaluate(here)]
    for requirement in REQUIREMENTS:
        (pin,) = [pin for name, pin in pins if name == canonicalize_name(requirement.name)]
        (exact,) = pin.specifier
        assert exact.operator == "==", pin
        assert requirement.specifier.contains(exact.version), pin
        assert {specifier.operator for specifier in requirement.specifier} == {">="}, requirement


def test_the_plugin_is_registered_under_the_name_of_its_module() -> None:
    assert PROJECT["project"]["entry-points"]["pytest11"] == {"gpugate.plugin": "gpugate.plugin"}


def test_nothing_names_a_package_registry() -> None:
    words = "".join((ROOT / name).read_text() for name in ("Makefile", "constraints.txt", "pyproject.toml", ".ci/run"))
    assert re.findall(r"https?://\S+|--(?:extra-)?index-url|--find-links", words) == []


class Clone:
    """A folder with what make needs, and a python that only writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls_path = folder / "calls"
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            (folder / name).write_bytes((ROOT / name).read_bytes())
        self.python("bin/python3", too_old=False)

    def python(self, name: str, too_old: bool) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FAKE_PYTHON.format(too_old=int(too_old)), encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs make; only the clone's python is found by name."""
        tools = [f"{self.folder}/bin", "/usr/local/bin", "/usr/bin", "/bin"]
        environment = {"PATH": os.pathsep.join(tools), "CALLS": str(self.calls_path), "PYTHONDONTWRITEBYTECODE": "1"}
        command = ["make", *arguments]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    def calls(self, *arguments: str) -> list[str]:
        """Returns the arguments of the calls of python, apart from the question for its version."""
        self.calls_path.unlink(missing_ok=True)
        result = self.make(*arguments)
        assert result.returncode == 0, result.stderr
        return [call for call in self.calls_path.read_text(encoding="utf-8").splitlines() if not call.startswith("-c")]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


TESTS = "-m pytest tests -n 3 --dist worksteal -p no:gpugate.plugin --timeout 600 --timeout-method thread"
INSTALL = "-m pip install --disable-pip-version-check --no-compile -c constraints.txt -e"


@pytest.mark.parametrize(
    ("target", "extras", "last"),
    [
        ("perf", ".[workloads]", "-m pytest perf_tests"),
        ("test", ".[workloads,dev]", TESTS),
        ("test-slurm", ".[workloads,dev]", "-m pytest tests/engine/test_slurm_night.py -p no:gpugate.plugin"),
    ],
)
def test_each_target_works_alone_and_installs_once(clone: Clone, target: str, extras: str, last: str) -> None:
    assert clone.calls(target) == ["-m venv .venv", f"{INSTALL} {extras}", last]
    assert clone.calls(target) == [last]
    assert clone.calls("perf") == ["-m pytest perf_tests"], "what the tests need includes what measuring needs"
    for seconds, name in enumerate(("pyproject.toml", "constraints.txt"), 1):
        later = time.time() + 10 * seconds
        os.utime(clone.folder / name, (later, later))
        assert clone.calls(target) == [f"{INSTALL} {extras}", last]
        for installed in (clone.folder / ".venv").glob(".installed-*"):
            os.utime(installed, (later, later))


def test_an_old_python_is_passed_over_and_refused_where_there_is_no_newer_one(clone: Clone) -> None:
    old = clone.python("bin/python3", too_old=True)
    result = clone.make("perf", f"PYTHON={old}")
    assert result.returncode != 0
    sentence = f"no Python 3.10 or newer among: {old}; install one or run make PYTHON=/path/to/python3"
    assert result.stderr.splitlines()[0] == sentence
    assert not (clone.folder / ".venv").exists()
    clone.python("bin/python3.12", too_old=False)
    clone.python("bin/python3.13", too_old=True)
    assert clone.calls("perf")[0] == "-m venv .venv"


def test_an_environment_that_failed_half_way_is_made_again(clone: Clone) -> None:
    broken = clone.python("broken", too_old=False)
    script = Path(broken)
    script.write_text(script.read_text(encoding="utf-8").replace("cp ", "touch $3/bin/python; false; exit 3; cp "))
    assert clone.make("perf", f"PYTHON={broken}").returncode != 0
    assert clone.calls("perf")[0] == "-m venv .venv"
