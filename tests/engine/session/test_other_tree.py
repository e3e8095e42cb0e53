"""Modules of another tree stand beside those of this one: same names, other code, one engine."""

import importlib
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpugate.catalogue
import gpugate.workload
from gpugate.errors import CompareError
from gpugate.session.other_tree import Layout, OtherTree, find_tops
from gpugate.store.version import git
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


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forgets the other tree, as the end of a process of duets does."""
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "meta_path", sys.meta_path.copy())
    monkeypatch.setattr(importlib, "import_module", importlib.import_module)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "another_tree"]:
        del sys.modules[name]


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
            "    found += [import_module('.step', leaf.package.rpartition('.')[0])]\n"
            "    return {one.VALUE for one in found}, import_module('json') is json\n"
        ),
    }
    here = write(tmp_path / "here", {name: text.replace("{value}", "1") for name, text in files.items()})
    there = write(tmp_path / "there", {name: text.replace("{value}", "2") for name, text in files.items()})
    monkeypatch.syspath_prepend(str(here))
    yield OtherTree(Layout(str(there)), "another_tree")
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


def test_an_import_inside_compiled_code_means_the_module_of_its_own_tree(both: OtherTree) -> None:
    source = (
        "import torch\n"
        "def late(x):\n    from pieces.step import VALUE\n    import pieces.deep.leaf\n"
        "    return x * VALUE * pieces.deep.leaf.VALUE\n"
        "compiled = torch.compile(late, backend='eager', fullgraph=True)\n"
    )
    write(Path(both.layout.top), {"compiled.py": source})
    tree = OtherTree(both.layout, "another_tree")
    with tree.importable():
        theirs = tree.import_module("compiled")
        one = theirs.torch.ones(1)
        assert theirs.compiled(one) == theirs.late(one) == 4
        theirs.torch.compiler.reset()


def test_a_worker_that_does_not_fork_finds_the_modules_too(both: OtherTree) -> None:
    with both.importable():
        late = both.import_module("user").late
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(late) == (2, 2)


def test_no_bytecode_is_written(both: OtherTree, monkeypatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with both.importable():
        both.import_module("user").late()
    assert list(Path(both.layout.top).rglob("*.pyc")) == []


def test_an_error_names_the_line_of_the_file(both: OtherTree) -> None:
    write(Path(both.layout.top), {"wrong.py": "import pieces\n\n\nraise ValueError('here')\n"})
    tree = OtherTree(both.layout, "another_tree")
    with tree.importable(), pytest.raises(ValueError, match="here") as error:
        tree.import_module("wrong")
    assert error.traceback[-1].lineno == 3  # counted from 0


@pytest.mark.parametrize(
    ("conftest", "problem"),
    [
        ("import no_such_package", "No module named 'no_such_package'"),
        ("raise RuntimeError('twice')", "(twice): measure each version by pytest --perf-report DIR, and compare both"),
    ],
)
def test_a_tree_that_this_engine_cannot_drive_is_refused_with_the_reason(tmp_path, conftest: str, problem: str) -> None:
    write(tmp_path, {"conftest.py": conftest})
    tree = OtherTree(Layout(str(tmp_path)), "another_tree")
    with alone_in_the_catalogue(), tree.importable(), pytest.raises(CompareError) as error:
        tree.cases()
    assert str(error.value).startswith(f"this version of gpugate cannot drive the workloads of {tmp_path} (")
    assert problem in str(error.value)


def test_a_proof_of_an_older_version_finds_its_error(tmp_path: Path) -> None:
    """Workloads imported it from there when most records were made."""
    write(tmp_path, {"conftest.py": "from gpugate.errors import DisprovedError\n"})
    with alone_in_the_catalogue(), (tree := OtherTree(Layout(str(tmp_path)), "another_tree")).importable():
        assert tree.cases() == {}
    assert gpugate.errors.DisprovedError is gpugate.workload.DisprovedError


def suite(name: str, value: int) -> dict[str, str]:
    """A folder of tests with a conftest.py, and a module beside it that the conftest.py imports."""
    workload = WORKLOAD.replace('"tiny"', f'"{name}"').replace(
        "from pieces import step", "import pieces_of_mine as step"
    )
    register = "from gpugate.catalogue import register\nregister(WORKLOADS[0])\n"
    return {
        f"{name}/conftest.py": workload + register,
        f"{name}/pieces_of_mine.py": f"def do(x):\n    return {value}\n",
    }


def package(name: str) -> dict[str, str]:
    """The same as a package, with a relative import."""
    files = suite(name, 3)
    files[f"{name}/conftest.py"] = files[f"{name}/conftest.py"].replace(
        "import pieces_of_mine", "from . import pieces_of_mine"
    )
    return {**files, f"{name}/__init__.py": ""}


def test_every_conftest_of_the_layout_registers_its_workloads(tmp_path: Path) -> None:
    """By module from the folder `src`, or in itself."""
    by_module = "from gpugate.catalogue import register_module\nregister_module('catalogue_of_mine')\n"
    pieces = {"pieces/__init__.py": "", "pieces/step.py": "def do(x):\n    return 7\n"}
    write(tmp_path / "src", {**pieces, "catalogue_of_mine.py": WORKLOAD})
    write(tmp_path, {"conftest.py": by_module, **suite("first", 1), **package("second")})
    conftests = ("conftest.py", "first/conftest.py", "second/conftest.py", "gone/conftest.py")
    tree = OtherTree(Layout(str(tmp_path), conftests, (".", "src")), "another_tree")
    with alone_in_the_catalogue(), tree.importable():
        built = {name: case.optimization.build(None).step(0) for name, case in tree.cases().items()}
        assert built == {"tiny/fast/cpu": 7, "first/fast/cpu": 1, "second/fast/cpu": 3}
        assert gpugate.catalogue.catalogue.cases() == []


def test_a_project_in_a_subfolder_is_compared_by_its_repository(tmp_path: Path) -> None:
    head, worktree, copy = (tmp_path / name for name in ("head/services/x", "worktree/services/x", "copy_of_x"))
    for folder in (head, worktree, copy):
        folder.mkdir(parents=True)
    assert git(tmp_path / "head", "init", "-q") is not None
    assert find_tops(worktree, head) == (tmp_path / "worktree", tmp_path / "head")
    assert find_tops(copy, head) == (copy, head), "what is beside it has no counterpart"
    assert find_tops(copy, tmp_path / "head") == (copy, tmp_path / "head")
