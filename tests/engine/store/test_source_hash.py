"""A source hash depends on the work of a workload and on the code that it imports, and on nothing else."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from gpugate.store import baseline
from gpugate.store.source_hash import _collect, _functions, is_installed, proof_hash, source_hash
from gpugate.workload import Case, Context, Contract, Limit, Optimization, Proof, Side, Size, Workload
from tools.machines import list_cases

ROOT = Path(__file__).parents[3]
# Records before this time have an earlier hash, and those of names that begin with RECORDED_EARLIER are of other sides.
HASHED_ANEW = "2026-11-28T18:00"
RECORDED_EARLIER = "video/"


@dataclass(frozen=True)
class Plan:
    batch: int = 8
    dtype: torch.dtype = torch.float16


def build(plan: Plan, context: Context) -> Side:
    return Side(lambda inputs: inputs * plan.batch)


def made_by(work: object, context: Context) -> Side:
    return Side(lambda inputs: inputs)


def once(inputs: torch.Tensor) -> torch.Tensor:
    return inputs


def inputs(context: Context, index: int) -> torch.Tensor:
    return torch.ones(context.items)


FAST = Optimization("fast", partial(build, Plan()), {"cpu": 1.5})
WORKLOAD = Workload("made-up", partial(build, Plan(batch=1)), inputs, {"cpu": Size(4, 1.0, 1.0)}, (FAST,))


def of(**changed: Any) -> str:
    return source_hash(replace(WORKLOAD, optimizations=(replace(FAST, **changed),)))


def test_a_hash_is_of_the_work_and_not_of_what_is_promised() -> None:
    contract = {"cpu": Contract(limits=(Limit("kernels", at_most=1),))}
    assert of(min_speedup={"cpu": 2.0}, why="it says why", contract=contract) == of()
    plans = [partial(build, plan) for plan in (Plan(batch=16), Plan(dtype=torch.bfloat16))]
    calls = [partial(made_by, work) for work in (once, subprocess.run)]
    assert of(build=calls[0]) == of(build=partial(made_by, once))
    assert len({of(), *(of(build=other) for other in (*plans, *calls))}) == 5
    assert source_hash(replace(WORKLOAD, sizes={"cpu": Size(8, 1.0, 1.0)})) != source_hash(WORKLOAD)


def test_packages_in_any_folder_that_an_installer_filled_are_not_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "vendored" / "torch-2.11.0.dist-info").mkdir(parents=True)
    assert is_installed(tmp_path / "vendored" / "torch" / "nn" / "__init__.py")
    assert not is_installed(tmp_path / "model" / "__init__.py")


def test_a_workload_of_the_command_line_has_a_hash() -> None:
    space: dict[str, Callable[..., Side]] = {}
    exec("def build(context): ...", {"__name__": "typed_in"}, space)  # noqa: S102
    fast = Optimization("fast", space["build"], {"cpu": 1.0})
    assert len(source_hash(replace(WORKLOAD, baseline=space["build"], inputs=inputs, optimizations=(fast,)))) == 16


FILES = {
    "package/__init__.py": "VERSION = 1\n",
    "package/sides.py": '''"""Both sides."""
import json
import numpy as np
from typing import TYPE_CHECKING

import elsewhere
import library
from gpugate.catalogue import register
from package.sizes import SIZE
from . import kernels


def baseline(context):
    """The reference."""
    return np.ones(SIZE)  # all of it


def fast(context):
    import math
    from package import late

    return kernels.run(math.pi, late.DELAY, library.SCALE, elsewhere.SCALE)


PROMISED = 2.0
register(("net", baseline, fast, PROMISED))
''',
    "package/sizes.py": "FACTOR = 2\nSIZE = 4 * FACTOR\nOTHER = 3\n",
    "package/kernels.py": """def run(x, y):
    return helper(x)

def helper(x):
    return x

def unused(x): ...

@run.register
def of_numbers(x): ...

for each in range(3):
    TABLE[each] = each
""",
    "package/late.py": "from package.units import *\nDELAY = SECOND\n",
    "package/units.py": "SECOND = 1\n",
    "package/neighbour.py": "def helper(x):\n    return 0\n",
    "library.py": "SCALE = 1\n",
    "src/elsewhere.py": "SCALE = 1\n",
}
NO_WORK = {
    "a comment": ("sides", "  # all of it", "  # every one of it"),
    "a docstring": ("sides", '"""The reference."""', '"""The side that it is compared with."""'),
    "the module's docstring": ("sides", '"""Both sides."""', ""),
    "the layout": ("kernels", "def helper(x):\n    return x", "def helper(x): return x\n\n"),
    "an unused import": ("sides", "import json\n", "import csv\n"),
    "a promise": ("sides", "PROMISED = 2.0", "PROMISED = 3.0"),
    "a function that is not used": ("kernels", "def unused(x): ...", "def unused(y): ..."),
    "a constant of the package": ("__init__", "VERSION = 1", "VERSION = 2"),
    "a constant that is not used": ("sizes", "OTHER = 3", "OTHER = 4"),
    "a function of that name which nothing imports": ("neighbour", "return 0", "return 1"),
}
WORK = {
    "a line of a side": ("sides", "np.ones(SIZE)", "np.zeros(SIZE)"),
    "a constant behind a constant": ("sizes", "FACTOR = 2", "FACTOR = 3"),
    "a function that a function calls": ("kernels", "    return x\n", "    return 2 * x\n"),
    "what a late import brings": ("late", "DELAY = SECOND", "DELAY = 2 * SECOND"),
    "what an import of all names brings": ("units", "SECOND = 1", "SECOND = 1000"),
    "another library of the same name": ("sides", "import numpy as np", "import cupy as np"),
    "a statement that runs at the import": ("kernels", "def unused(x): ...", "unused[0] = 1"),
    "a statement that runs at the import of the package": ("__init__", "VERSION = 1", "flags[0] = 1"),
    "a loop that fills a table": ("kernels", "TABLE[each] = each", "TABLE[each] = -each"),
    "a function that a used one registers": ("kernels", "def of_numbers(x): ...", "def of_numbers(y): ..."),
    "a library of the project": ("../library", "SCALE = 1", "SCALE = 2"),
    "a library of the project in another folder": ("../src/elsewhere", "SCALE = 1", "SCALE = 2"),
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two sides, and libraries beside it and in a folder of their own."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "src")
    return tmp_path / "package"


def hash_of_sides(package: Path) -> str:
    """The hash of a workload of two functions of `package.sides`, which is not imported: it needs what is missing."""
    space: dict[str, Any] = {"__name__": "package.sides"}
    path = package / "sides.py"
    exec(compile("def baseline(context): ...\ndef fast(context): ...", path, "exec"), space)  # noqa: S102
    build = replace(FAST, build=space["fast"])
    return source_hash(Workload("net", space["baseline"], space["fast"], {"cpu": Size(4, 1.0, 1.0)}, (build,)))


@pytest.mark.parametrize(
    ("edit", "counts"),
    [*((edit, False) for edit in NO_WORK.values()), *((edit, True) for edit in WORK.values())],
    ids=[*NO_WORK, *WORK],
)
def test_an_edit_of_its_work_changes_the_hash_of_a_workload(
    package: Path, edit: tuple[str, str, str], counts: bool
) -> None:
    before, (name, old, new) = hash_of_sides(package), edit
    path = package / f"{name}.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert (hash_of_sides(package) != before) is counts


def test_no_hash_of_a_workload_of_ours_holds_promises() -> None:
    """A value that a function uses has no workload's name: the workload's promises would then count as its work."""
    workloads = {case.workload.name: case.workload for case in list_cases("cuda")}
    texts = {name: _collect(_functions(one), {"workloads"}) for name, one in workloads.items()}
    assert {name for name, found in texts.items() if any("func=Name(id='Workload'" in text for text in found)} == set()


@pytest.mark.parametrize("machine", ["nvidia-h100-80gb-hbm3", "nvidia-h200"])
def test_every_record_is_of_the_source_as_it_is(machine: str) -> None:
    """Also where another version of Python recorded it: no address, and no order of a hash table, is in a hash."""
    workloads = {case.workload.name: case.workload for case in list_cases("cuda")}
    files = baseline.load_all(ROOT / "baselines" / machine)
    records = [(name, entry.record) for name, file in files.items() for entry in file.cases.values()]
    recorded = {(name, one.source_hash) for name, one in records if one.recorded_at >= HASHED_ANEW}
    assert all(name.startswith(RECORDED_EARLIER) for name, found in recorded if found != source_hash(workloads[name]))


PROOF = """
from functools import wraps
from learning import lessons

def remind(function):
    @wraps(function)
    def wrapped(*words):
        return function(*words)

    return wrapped

def make_show(words, *helpers):
    @remind
    def show(context, least=0.97):
        return f"{words} after {lessons()} lessons with {helpers}"  # a comment

    return show
"""
LESSONS = "def lessons():\n    return 7\n\ndef other():\n    return 1\n"


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module of a proof, and another that it uses: neither is installed."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "proving.py").write_text(PROOF)
    (tmp_path / "learning.py").write_text(LESSONS)
    return tmp_path


def hash_of(*captured: object, **promises: object) -> str:
    """The hash of a proof of `proving`, which is loaded anew, with the values that it captures."""
    for name in ("proving", "learning"):
        sys.modules.pop(name, None)
    show = importlib.import_module("proving").make_show(*captured)
    optimization = replace(FAST, proofs=(Proof("it learns", show),), **promises)  # type: ignore[arg-type]
    return proof_hash(Case(replace(WORKLOAD, optimizations=(optimization,)), optimization, "cpu"))


@pytest.mark.parametrize(
    ("module", "old", "new", "counts"),
    [
        ("proving", "after", "in", True),
        ("proving", "0.97", "0.9", True),
        ("proving", "*words", "*others", True),
        ("proving", "a comment", "another", False),
        ("learning", "7", "8", True),
        ("learning", "return 1", "return 2", False),
    ],
    ids=["its code", "a default", "a decorator", "a comment", "code that is not installed", "code that is not used"],
)
def test_an_edit_of_its_work_changes_the_hash_of_a_proof(
    modules: Path, module: str, old: str, new: str, counts: bool
) -> None:
    before, path = hash_of("98 %"), modules / f"{module}.py"
    path.write_text(path.read_text().replace(old, new))
    assert (hash_of("98 %", min_speedup={"cpu": 2.0}) != before) is counts


@pytest.mark.parametrize("other", [("99 %",), ("98 %", once), ("98 %", partial(made_by, 1)), ("98 %", Plan())])
def test_another_captured_value_changes_the_hash_of_a_proof(modules: Path, other: tuple[object, ...]) -> None:
    assert hash_of(*other) != hash_of("98 %")


def test_another_build_changes_the_hash_of_a_proof(modules: Path) -> None:
    assert hash_of("98 %", build=partial(build, Plan(batch=16))) != hash_of("98 %")
