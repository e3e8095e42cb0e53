"""A folder imports only from folders below it; the engine knows no workload, and a workload only what one is."""

import ast
import graphlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# From the bottom to the top; each stands on those before it. The first and the last are files of gpugate/ itself.
FLOORS = (
    ("errors", "units", "workload", "catalogue"),
    ("statistics",),
    ("machine",),
    ("faults",),
    ("measurement",),
    ("results",),
    ("store",),
    ("judging",),
    ("explaining",),
    ("report",),
    ("session",),
    ("profiling",),
    ("plugin",),
    ("commands",),
    ("__main__",),
)
FLOOR_OF = {name: number for number, floor in enumerate(FLOORS) for name in floor}
ITSELF = ("gpugate", "gpugate.__version__")
MODULES = sorted(path for path in (ROOT / "gpugate").rglob("*.py") if path != ROOT / "gpugate/__init__.py")


def parse(path: Path) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(path.read_text(encoding="utf-8")))


@cache
def imports(path: Path) -> list[str]:
    """Every module that a file names in an import, wherever it stands; relative names are made absolute."""
    package, found = path.relative_to(ROOT).parent.parts, list[str]()
    for node in parse(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


def floor(module: str) -> int:
    name = module.split(".")[1]
    assert name in FLOOR_OF, f"{module} is on no floor: give it one"
    return FLOOR_OF[name]


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def test_a_module_imports_only_from_its_own_folder_and_from_those_below() -> None:
    above = {
        (module_name(path), name)
        for path in MODULES
        for name in imports(path)
        if name.split(".")[0] == "gpugate" and name not in ITSELF and floor(name) > floor(module_name(path))
    }
    assert above == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {module_name(path): path for path in MODULES}
    arrows = {
        module: {name if name in files else name.rpartition(".")[0] for name in imports(path)} & files.keys()
        for module, path in files.items()
    }
    order = graphlib.TopologicalSorter({module: found - {module} for module, found in arrows.items()})
    assert set(order.static_order()) == files.keys()


def test_the_picture_for_contributors_has_every_folder_once() -> None:
    lines = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("| folder | ")[2].splitlines()
    rows = [line.split("|")[1] for line in lines[2:] if line.startswith("|")]
    named = [name.rstrip("/") for row in rows for name in re.findall(r"`(\w+/?)`", row)]
    assert sorted(named) == sorted(set(FLOOR_OF) - {"__main__"})


@pytest.mark.parametrize(
    ("folder", "others", "allowed"),
    [
        ("gpugate", {"workloads", "perf_tests", "tests", "tools"}, ()),
        ("workloads", {"gpugate", "perf_tests", "tests", "apps"}, ("gpugate.workload", "gpugate.errors.")),
        ("workloads/parts", {"workloads"}, ("workloads.parts.",)),
    ],
)
def test_a_folder_imports_nothing_of_others_but_what_it_may(
    folder: str, others: set[str], allowed: tuple[str, ...]
) -> None:
    names = {name for path in (ROOT / folder).rglob("*.py") for name in imports(path)}
    assert {name for name in names if name.split(".")[0] in others and not name.startswith(allowed)} == set()


def test_the_engine_takes_the_clock_by_name_so_that_no_side_can_replace_it() -> None:
    """In modules whose times decide something."""
    timed = (*ROOT.glob("gpugate/measurement/*.py"), *ROOT.glob("gpugate/faults/*.py"))
    uses = [(path.name, node) for path in timed for node in parse(path) if isinstance(node, ast.Attribute)]
    assert [(name, node.lineno) for name, node in uses if ast.unparse(node.value) == "time"] == []
