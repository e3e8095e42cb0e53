"""Modules of another tree stand beside those of this one: same names, other code, one engine."""

import multiprocessing
import sys
from pathlib import Path

import pytest

import gpugate.catalogue
from gpugate.errors import CompareError
from gpugate.session.other_tree import OtherTree
from tests.support.tiny_project import alone_in_the_catalogue

WORKLOAD = """
from gpugate.workload import Optimization, Side, Size, Workload
from pieces import step

def build(context):
    return Side(step.do)

WORKLOADS = (
    Workload(
        "tiny", build, lambda context, index: 0, {"cpu": Size(1, 1, 1)}, (Optimization("fast", build, {"cpu": 1}),)
    ),
)
"""


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A tree on the search path, and another one with a module of each name."""
    files = {
        "pieces/__init__.py": "",
        "pieces/step.py": "VALUE = {value}\ndef do(x):\n    return VALUE\n",
        "pieces/deep/__init__.py": "",
        "pieces/deep/leaf.py": "from ..step import VALUE\nfrom . import __name__ as package\n",
        "user.py": (
            "import json\nimport pieces.step\nimport pieces.deep.leaf as leaf\nfrom pieces import step as named\n"
            "def late():\n    from pieces.step import VALUE\n    import pieces.deep.leaf\n"
            "    return VALUE, pieces.deep.leaf.VALUE\n"
            "def by_name():\n    import importlib\n    from importlib import import_module\n"
            "    found = [importlib.import_module('pieces.step'), import_module('.deep.leaf', 'pieces')]\n"
            "    found += [import_module('.step', leaf.package.rpartition('.')[0]), __import__('pieces.step').step]\n"
            "    found += [__import__('pieces', fromlist=['step']).step, __import__('pieces.deep.leaf').deep.leaf]\n"
            "    return {one.VALUE for one in found}, import_module('json') is json is __import__('json')\n"
        ),
    }
    here = write(tmp_path / "here", {name: text.replace("{value}", "1") for name, text in files.items()})
    there = write(tmp_path / "there", {name: text.replace("{value}", "2") for name, text in files.items()})
    monkeypatch.syspath_prepend(str(here))
    yield OtherTree(there, "another_tree")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("pieces", "user")]:
        del sys.modules[name]


def test_every_form_of_import_means_the_module_of_its_own_tree(both: OtherTree) -> None:
    import user  # type: ignore[import-not-found]

    with both.importable():
        theirs = both.import_module("user")
        assert (theirs.pieces.step.VALUE, theirs.leaf.VALUE, theirs.named.VALUE) == (2, 2, 2)
        assert theirs.late() == (2, 2)
        assert theirs.by_name() == ({2}, True)
        assert user.by_name() == ({1}, True)
        assert theirs.leaf.package == "another_tree.pieces.deep"
        assert theirs.json is user.json
    assert (user.pieces.step.VALUE, user.leaf.VALUE, user.late()) == (1, 1, (1, 1))


def test_a_worker_that_does_not_fork_finds_the_modules_too(both: OtherTree) -> None:
    with both.importable():
        late = both.import_module("user").late
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(late) == (2, 2)


def test_afterwards_no_module_is_left_and_no_bytecode_was_written(both: OtherTree, monkeypatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with both.importable():
        both.import_module("user").late()
        assert "another_tree.pieces.step" in sys.modules
    assert [name for name in sys.modules if name.startswith("another_tree")] == []
    assert not any(isinstance(one, OtherTree) for one in sys.meta_path)
    assert not any("gpugate-tree-" in folder for folder in sys.path)
    assert list(both.root.rglob("*.pyc")) == []


def test_an_error_names_the_line_of_the_file(both: OtherTree) -> None:
    write(both.root, {"wrong.py": "import pieces\n\n\nraise ValueError('here')\n"})
    tree = OtherTree(both.root, "another_tree")
    with tree.importable(), pytest.raises(ValueError, match="here") as error:
        tree.import_module("wrong")
    assert error.traceback[-1].lineno == 3  # counted from 0


@pytest.mark.parametrize("folder", ["", "src"])
def test_the_cases_are_those_that_the_conftest_registers(tmp_path: Path, folder: str) -> None:
    files = {"pieces/__init__.py": "", "pieces/step.py": "def do(x):\n    return 7\n", "catalogue_of_mine.py": WORKLOAD}
    root = write(tmp_path, {str(Path(folder, name)): text for name, text in files.items()})
    write(
        root, {"conftest.py": "from gpugate.catalogue import register_module\nregister_module('catalogue_of_mine')\n"}
    )
    tree = OtherTree(root, "another_tree")
    with alone_in_the_catalogue(), tree.importable():
        cases = tree.cases()
        assert cases["tiny/fast/cpu"].optimization.build(None).step(0) == 7
        assert gpugate.catalogue.catalogue.cases() == []


@pytest.mark.parametrize(
    ("conftest", "problem"),
    [
        ("import no_such_package", "No module named 'no_such_package'"),
        ("from gpugate.workload import Gone", "cannot import name 'Gone'"),
        ("from gpugate.catalogue import register\nregister(7)", "7 is no workload"),
        (
            "raise RuntimeError('registered before')",
            f"(registered before): give `gpugate compare` --own-engine, or "
            f"--base-python {sys.executable} for code that a process can import only once",
        ),
    ],
)
def test_a_tree_that_this_engine_cannot_drive_is_refused_with_the_reason(tmp_path, conftest: str, problem: str) -> None:
    tree = OtherTree(write(tmp_path, {"conftest.py": conftest}), "another_tree")
    with alone_in_the_catalogue(), tree.importable(), pytest.raises(CompareError) as error:
        tree.cases()
    assert str(error.value).startswith(f"this gpugate cannot drive the workloads of {tmp_path} (")
    assert problem in str(error.value)
