"""Workloads of another tree of the same project, imported beside those of this one.

Every module of the other tree gets a name of its own, `PREFIX.workloads.ring` for `workloads.ring`, and is an ordinary
module under that name. Its import statements, also those inside functions, are rewritten when it is compiled, so that
the names of its tree mean its own modules; so do those that it gives to `importlib.import_module`.
All other names, such as torch and gpugate, mean those of this process.
"""

from __future__ import annotations

import ast
import importlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from gpugate.catalogue import CONFTEST, Catalogue, catalogue
from gpugate.errors import CompareError
from gpugate.store.version import git
from gpugate.workload import Case

_import_module = importlib.import_module
ENGINE = "gpugate"  # the one of this process drives both trees
_TWO_RUNS = "measure each version by pytest --perf-report DIR, and compare both nights by gpugate diff"
_PACKAGE = """
from gpugate.session.other_tree import Layout, OtherTree
__path__ = OtherTree({!r}, {!r}).install()
"""


@dataclass(frozen=True)
class Layout:
    """The places of the code in a version, relative to the folder `top`: the conftest.py files, outer ones first, and
    the import paths. Another version may lack some of them."""

    top: str = "."
    conftests: Sequence[str] = (CONFTEST,)
    paths: Sequence[str] = (".", "src")

    def find_conftests(self) -> dict[Path, str]:
        """The conftest.py files, each with the import path that pytest gives it."""
        found = [path for name in self.conftests if (path := Path(self.top, name).absolute()).is_file()]
        return {path: str(next(one for one in path.parents if not (one / "__init__.py").exists())) for path in found}

    def find_paths(self) -> list[str]:
        folders = [str(path.absolute()) for name in self.paths if (path := Path(self.top, name)).is_dir()]
        return list(dict.fromkeys([*folders, *self.find_conftests().values()]))


def find_tops(base: Path, head: Path) -> tuple[Path, Path]:
    """The folders of both versions that have one layout: those of the repositories, where a project in a subfolder may
    import what is beside it, or `base` and `head` themselves."""
    within = head.relative_to(git(head, "rev-parse", "--show-toplevel") or head).parts
    same = within and base.parts[-len(within) :] == within
    return (base.parents[len(within) - 1], head.parents[len(within) - 1]) if same else (base, head)


def find_below(top: Path, path: str) -> Path | None:
    """An import path, relative to `top`; None for one that is not below it, or has installed packages."""
    found = Path(path).resolve()
    below = found.relative_to(top) if found.is_relative_to(top) else None
    return None if below is None or "site-packages" in below.parts else below


class OtherTree(MetaPathFinder):
    """The modules of a layout; `prefix` is a name that no module of this process has."""

    def __init__(self, layout: Layout, prefix: str) -> None:
        self.layout, self.prefix = layout, prefix
        self._folders = layout.find_paths()
        self._names = {path.stem for folder in self._folders for path in Path(folder).iterdir() if _is_module(path)}

    def find_name(self, name: str) -> str:
        """The name by which this process imports the tree's own module of this name, or any other module."""
        top = name.partition(".")[0]
        return f"{self.prefix}.{name}" if top in self._names and top != ENGINE else name

    def import_module(self, name: str) -> ModuleType:
        return _import_module(self.find_name(name))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Finds the modules below `prefix`, for Python's import system."""
        if not fullname.startswith(f"{self.prefix}."):
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = _Loader(found.loader.name, found.loader.path, self)
        return found

    @contextmanager
    def importable(self) -> Iterator[None]:
        """The modules can be imported inside the block, after which this process ends.

        The package `prefix` is a file on the search path, so that worker processes which do not fork find it, too.
        """
        with tempfile.TemporaryDirectory(prefix="gpugate-tree-") as folder:
            package = Path(folder, self.prefix)
            package.mkdir()
            package.joinpath("__init__.py").write_text(_PACKAGE.format(self.layout, self.prefix), encoding="utf-8")
            sys.path.append(folder)
            importlib.invalidate_caches()
            yield

    def install(self) -> list[str]:
        """Lets this process import the modules; returns the folders of the package `prefix`."""
        sys.meta_path.insert(0, self)
        importlib.import_module = self._import_for_caller
        return self._folders

    def _import_for_caller(self, name: str, package: str | None = None) -> ModuleType:
        """`importlib.import_module`, which imports the tree's own modules where one of them calls it."""
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if caller.startswith(f"{self.prefix}."):
            name, package = self.find_name(name), package and self.find_name(package)
        return _import_module(name, package)

    def cases(self) -> dict[str, Case]:
        """The cases that the conftest.py files register, by id.

        Raises CompareError for workloads that this engine cannot import or measure.
        """
        own, before = Catalogue(self.import_module), dict(vars(catalogue))
        vars(catalogue).update(vars(own))  # for the conftest.py files
        try:
            for conftest, folder in self.layout.find_conftests().items():
                name = ".".join([self.prefix, *conftest.relative_to(folder).with_suffix("").parts])
                vars(_import_module(self.prefix))["__path__"].insert(0, folder)
                sys.modules.pop(name, None)  # several have the name `conftest`
                _import_module(name)
            own.load()
        except Exception as error:
            problem = f"the workloads of {self.layout.top} ({str(error) or type(error).__name__})"
            raise CompareError(f"this version of gpugate cannot drive {problem}: {_TWO_RUNS}") from error
        finally:
            vars(catalogue).update(before)
        return {case.id: case for case in own.cases()}


class _Loader(SourceFileLoader):
    """Compiles a module with the imports of its tree; keeps no bytecode, which is of no use under another name."""

    def __init__(self, name: str, path: str, tree: OtherTree) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        parsed = _OwnImports(self._tree).visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(parsed), path, "exec", dont_inherit=True)


class _OwnImports(ast.NodeTransformer):
    """Rewrites the import statements that name modules of the tree.

    An `__import__` of its own for each module would not do: PyTorch's compiler runs the import statements of a function
    by itself, and a compiled side of the base would call the head's code.
    """

    def __init__(self, tree: OtherTree) -> None:
        self._tree = tree

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        if not node.level and node.module:
            node.module = self._tree.find_name(node.module)
        return node

    def visit_Import(self, node: ast.Import) -> list[ast.stmt]:
        return [statement for alias in node.names for statement in self._rewrite(alias, node)]

    def _rewrite(self, alias: ast.alias, node: ast.Import) -> Iterator[ast.stmt]:
        """`import a.b` binds `a`: it becomes `import PREFIX.a.b` and `from PREFIX import a`."""
        name = self._tree.find_name(alias.name)
        yield ast.copy_location(ast.Import([ast.alias(name, alias.asname)]), node)
        if name != alias.name and alias.asname is None:
            top = ast.alias(alias.name.partition(".")[0], None)
            yield ast.copy_location(ast.ImportFrom(self._tree.prefix, [top], 0), node)


def _is_module(path: Path) -> bool:
    return path.suffix == ".py" if path.is_file() else path.is_dir() and path.name.isidentifier()
