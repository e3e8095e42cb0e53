"""Hashes of code: of a workload's functions, so that an edit is no slower machine, and of an optimization's proofs.

A hash is of the top-level statements that the functions may need: of their modules and of all modules of the project
that these import, also inside functions, a statement counts that binds a name which a counted one mentions. Scopes are
not looked at, so a name may bring more than one statement, and never less than the needed one. Promises, comments,
docstrings and the order of statements do not count; nor do names that are looked up as texts, gpugate itself, and
installed packages. The packages of the project are those that Python imports from no folder of installed ones.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import CellType
from typing import TYPE_CHECKING, Any, NamedTuple

import gpugate

if TYPE_CHECKING:
    from gpugate.workload import Case, Workload

_ENGINE = Path(gpugate.__file__).parent
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_INSTALLED = {"site-packages", "dist-packages"}
_STDLIB = sysconfig.get_path("stdlib")  # which takes 0.4 ms
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class _Statement(NamedTuple):
    """A statement of a module. One that binds no name counts always: it does something when the module is imported,
    unless it registers workloads, whose promises it mentions."""

    text: str
    binds: frozenset[str]
    mentions: frozenset[str]


class _Module(NamedTuple):
    statements: tuple[_Statement, ...]
    imports: frozenset[tuple[str, ...]]  # of each import the names that may be a module, the longest first

    @property
    def binds(self) -> set[str]:
        return set().union(*(one.binds for one in self.statements))


def source_hash(workload: Workload) -> str:
    """Computes 16 hex digits of SHA-256 over the work of a workload, wherever in the project the code stands.

    The work is the code of the workload's functions, their arguments in `functools.partial`, and the items per step.
    """
    return _hash(_functions(workload), workload)


def proof_hash(case: Case) -> str:
    """Computes the hash of the work of the case's workload and of its proofs.

    A missed edit would be a wrong proof, not only a wrong note: functions count with the values that they captured.
    """
    functions = [*_functions(case.workload), *(proof.show for proof in case.optimization.proofs)]
    return _hash(_with_captured(functions), case.workload)


def _hash(values: Sequence[Any], workload: Workload) -> str:
    own = {str(getattr(_unwrap_partial(one), "__module__", "")).split(".")[0] for one in _functions(workload)}
    parts = [*sorted(_collect(values, own)), repr([_words(value) for value in values])]
    parts.append(repr(sorted((kind, size.items) for kind, size in workload.sizes.items())))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _collect(values: Sequence[Any], own: set[str]) -> set[str]:
    """Collects the texts of the statements that functions and classes in the values may need."""
    roots, modules, names = dict[str, Path | None](), dict[Path, _Module](), set[str]()
    places = [one for one in map(_place, _within(values)) if one is not None]
    places = [one for one in places if one[0].split(".")[0] in own or _is_of_project(one[2])]
    for module, _, path in places:
        above = path.parent if path.name == "__init__.py" else path
        roots.setdefault(module.split(".")[0], above.parents[module.count(".")])
    for module, name, path in places:
        bound = _import_closure(path, module, roots, modules).binds
        names |= {name} if name in bound else bound  # a lambda stands for its whole module
    statements = {one for module in modules.values() for one in module.statements}
    counted = set[_Statement]()
    while more := {one for one in statements - counted if not one.binds or not names.isdisjoint(one.binds)}:
        counted |= more
        names.update(*(one.mentions for one in more))
    return {one.text for one in counted}


def _import_closure(path: Path, module: str, roots: dict[str, Path | None], modules: dict[Path, _Module]) -> _Module:
    """Reads a module, and the modules of the project that it imports, into `modules`; returns the module."""
    if path not in modules:
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        modules[path] = parse_module(path.read_text(encoding="utf-8"), package)
        for folder in list(path.parents)[: len(package.split(".")) if package else 0]:
            around = folder / "__init__.py"  # runs before the module, and may set a flag of torch
            if around != path and around.is_file():
                statements = parse_module(around.read_text(encoding="utf-8"), "").statements
                modules[folder] = _Module(tuple(one for one in statements if not one.binds), frozenset())
        for candidates in modules[path].imports:
            files = ((one, file) for one in candidates if (file := _find_file(one, roots)) is not None)
            for name, file in islice(files, 1):
                _import_closure(file, name, roots, modules)
    return modules[path]


def _find_file(module: str, roots: dict[str, Path | None]) -> Path | None:
    """Finds the file of a module of the project; None for any other module, and for a name.

    A package beside those of `roots` comes first, then the one that Python imports, such as from `src/`.
    """
    first, *further = module.split(".")
    if first not in roots:
        beside = [root for root in roots.values() if root is not None and _is_of_project(root / first)]
        there = (root for root in beside if (root / first).is_dir() or (root / f"{first}.py").is_file())
        roots[first] = next(there, None) or _find_root(first)
    if (root := roots[first]) is None:
        return None
    path = root.joinpath(first, *further)
    return next((one for one in (path / "__init__.py", path.with_name(f"{path.name}.py")) if one.is_file()), None)


def _find_root(package: str) -> Path | None:
    """The folder from which Python imports a package of the project; None for an installed one."""
    with suppress(ImportError, ValueError):  # of a module without a specification
        spec = importlib.util.find_spec(package)
        places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin or ""]
        root = Path(places[0]).parent if places else Path()
        return root if root.is_absolute() and _is_of_project(root / package) else None
    return None


def _is_of_project(path: Path) -> bool:
    return not is_installed(path) and not path.is_relative_to(_ENGINE)


def is_installed(path: Path) -> bool:
    """True for a file of Python or of an installed package, in whatever folder `pip install --target` wrote it."""
    return path.is_relative_to(_STDLIB) or _holds_packages(path.parent)


@cache
def _holds_packages(folder: Path) -> bool:
    """True for a folder into which an installer wrote packages, and for all folders in it."""
    if folder.name in _INSTALLED or any(folder.glob("*.dist-info")):
        return True
    return folder != folder.parent and _holds_packages(folder.parent)


@cache
def parse_module(text: str, package: str) -> _Module:
    """Reads the statements of a module and its imports."""
    tree = ast.parse(text)
    imports = [one for node in ast.walk(tree) for one in _list_imports(node, package)]
    top = package.split(".")[0]
    outside = {
        alias.asname or alias.name.split(".")[0]
        for node in tree.body
        for alias in (node.names if isinstance(node, ast.Import | ast.ImportFrom) else ())
        if not any(name.split(".")[0] == top for names in _list_imports(node, package) for name in names)
    }
    catalogue = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "gpugate.catalogue")
    registering = {alias.asname or alias.name for node in catalogue for alias in node.names}
    working = (node for node in tree.body if not _calls(node, registering))
    return _Module(tuple(one for node in working for one in _read_statements(node, outside)), frozenset(imports))


def _calls(node: ast.stmt, names: set[str]) -> bool:
    """True for a statement that calls one of the names, as `register(Workload(...))` does."""
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return isinstance(called, ast.Name) and called.id in names


def _list_imports(node: ast.AST, package: str) -> Iterator[tuple[str, ...]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name,) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        around = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*around, *([node.module] if node.module else [])])
        yield from ((f"{base}.{alias.name}", base) for alias in node.names)


def _read_statements(node: ast.stmt, outside: set[str]) -> Iterator[_Statement]:
    """Yields the statement; for an import one for each of its names, and for a docstring none.

    A definition belongs also to its decorator, unless that is from `outside`: `@operator.register` to `operator`.
    """
    if isinstance(node, ast.Import | ast.ImportFrom):
        origin = f"{'.' * node.level}{node.module or ''}" if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            yield _Statement(f"{origin} {alias.name} as {name}", frozenset([name]), frozenset([alias.name]))
    elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        inner = list(ast.walk(node))
        binds = {one.name for one in inner if isinstance(one, _DEFINITIONS)}
        if isinstance(node, _DEFINITIONS):
            binds = {node.name, *(ast.unparse(one).split(".")[0] for one in node.decorator_list)} - outside
        elif any(map(_changes_more, inner)):
            binds = set()
        else:
            local = {name for one in inner if isinstance(one, ast.comprehension) for name in ast.walk(one.target)}
            stored = {one for one in inner if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
            binds |= {one.id for one in stored - local}
            binds |= {one.asname or one.name.split(".")[0] for one in inner if isinstance(one, ast.alias)}
        for one in inner:
            if isinstance(one, _DEFINITIONS) and ast.get_docstring(one) is not None:
                del one.body[0]
        mentions = {name for one in inner for name in _names(one)}
        yield _Statement(_dump(node), frozenset(binds), frozenset(mentions))


def _changes_more(node: ast.AST) -> bool:
    """True for a call for its effect and an assignment to a part, as in `for name in NAMES: TABLE[name] = 1`."""
    if isinstance(node, ast.Attribute | ast.Subscript):
        return not isinstance(node.ctx, ast.Load)
    return isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)


def _dump(value: Any) -> str:
    """Writes a node as `ast.dump` does, without its empty fields, which depend on the version of Python."""
    if isinstance(value, list):
        return f"[{', '.join(map(_dump, value))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    given = (f"{name}={_dump(one)}" for name, one in ast.iter_fields(value) if one not in (None, []))
    return f"{type(value).__name__}({', '.join(given)})"


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.alias):
        yield node.name.split(".")[-1]


def _with_captured(functions: Sequence[Any]) -> list[Any]:
    """Lists functions and, behind them, the values in their closures, their defaults and the objects of their methods,
    also those of functions among these values."""
    values, seen = list(functions), set[int]()
    for value in values:  # which grows meanwhile
        for function in _within(value):
            if id(function) not in seen:
                seen.add(id(function))
                values += _captured(function)
    return values


def _captured(function: Any) -> list[Any]:
    inner = inspect.unwrap(function)
    cells = getattr(inner, "__closure__", None) or ()
    defaults = [getattr(inner, "__defaults__", None), getattr(inner, "__kwdefaults__", None)]
    instance = getattr(inner, "__self__", None)
    captured = [cell.cell_contents for cell in cells if cell != CellType()]  # which has no contents yet
    return [*captured, *defaults, getattr(instance, "__dict__", None) if inspect.ismethod(inner) else None]


def _functions(workload: Workload) -> list[Any]:
    return [workload.baseline, workload.inputs, *(entry.build for entry in workload.optimizations)]


def _unwrap_partial(function: Any) -> Any:
    return _unwrap_partial(function.func) if isinstance(function, partial) else function


def _within(value: Any) -> Iterator[Any]:
    """Yields the functions and classes in a value, such as a partial function with its arguments."""
    if isinstance(value, partial):
        yield from _within([value.func, *value.args, *value.keywords.values()])
    elif isinstance(value, Mapping):
        yield from _within(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _within(one)
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        yield from _within([getattr(value, one.name) for one in fields(value)])
    elif callable(value):
        yield value if hasattr(value, "__qualname__") else type(value)


def _place(function: Any) -> tuple[str, str, Path] | None:
    """Returns a function's module, name and file; None for a function without a file, such as a builtin."""
    inner = inspect.unwrap(function)
    code = getattr(inner, "__code__", None)
    module = sys.modules.get(inner.__module__ or "")
    path = Path(code.co_filename if code else getattr(module, "__file__", None) or "")
    return (inner.__module__, inner.__qualname__.split(".")[0], path) if path.is_file() else None


def _words(value: Any) -> Any:
    """Describes a value by text that is equal in every process: it has no addresses."""
    if isinstance(value, partial):
        return _words([value.func, *value.args]), _words(value.keywords)
    if isinstance(value, Mapping):
        return sorted((str(name), _words(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return [_words(one) for one in value]
    if is_dataclass(value) and not isinstance(value, type):
        return [type(value).__qualname__, *(_words(getattr(value, one.name)) for one in fields(value))]
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    return _ADDRESS.sub("", repr(value))
