"""A hash of what a workload's functions are made of: it tells an edited workload from a slower machine."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from gpugate.workload import Workload

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def source_hash(workload: Workload) -> str:
    """16 hex digits of SHA-256 over what defines the workload's work, wherever the checkout lies.

    These are the modules of its functions and what those import from their own top-level package, and so on; what the
    package itself imports is left out, since it may name every workload. And they are what the functions are given by
    `functools.partial`, and how many items a step has. Promises and contracts are not: they change no work.
    """
    functions = [workload.baseline, workload.inputs, *(entry.build for entry in workload.optimizations)]
    found = dict(filter(None, map(_defined_in, _within(functions))))
    to_read = list(found.items())
    while to_read:
        name, path = to_read.pop()
        new = {other: where for other, where in _imported(name, path) if other not in found}
        found.update(new)
        to_read.extend(entry for entry in new.items() if "." in entry[0])
    digest = hashlib.sha256()
    for name, path in sorted(found.items()):
        digest.update(f"{name}\0{path.read_text(encoding='utf-8')}\0".encode())
    digest.update(repr([_words(function) for function in functions]).encode())
    digest.update(repr(sorted((kind, size.items) for kind, size in workload.sizes.items())).encode())
    return digest.hexdigest()[:16]


def _within(value: Any) -> Iterator[Any]:
    """The functions in what a function is given, and itself."""
    if isinstance(value, partial):
        yield from _within([value.func, *value.args, *value.keywords.values()])
    elif isinstance(value, Mapping):
        yield from _within(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _within(one)
    elif callable(value) and hasattr(value, "__module__"):
        yield value


def _words(value: Any) -> Any:
    """What tells a value from another one in every process: no addresses."""
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


def _defined_in(function: Any) -> tuple[str, Path] | None:
    """The module of a function and its file; None for one that was typed in and has none."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    module = sys.modules.get(function.__module__)
    path = Path(code.co_filename if code else getattr(module, "__file__", None) or "")
    return (function.__module__, path) if path.is_file() else None


def _imported(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    """Modules of the same top-level package that a module imports, at its top or inside functions."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for imported in _names(node, package, name.split(".")[0]):
            spec = _spec(imported)
            if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
                yield imported, Path(spec.origin)


def _names(node: ast.AST, package: str, top: str) -> Iterator[str]:
    """What an import statement may import below the top-level package `top`; `from a import b` may mean `a.b`.

    Where all that is taken of a package are modules, its own file is left out: it may name every workload, too.
    """
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == top)
    if isinstance(node, ast.ImportFrom) and (node.level or str(node.module).split(".")[0] == top):
        base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        spec = _spec(base)
        is_package = spec is not None and spec.submodule_search_locations is not None
        below = [f"{base}.{alias.name}" for alias in node.names] if is_package else [base]
        modules = [name for name in below if _spec(name) is not None]
        yield from modules if len(modules) == len(below) else [base, *modules]


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
