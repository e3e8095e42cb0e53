"""Every dependency has one pin, and the plugin its name; `.ci/run` installs a fresh clone by make."""

import sys
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
