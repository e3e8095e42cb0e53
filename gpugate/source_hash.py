"""A hash of what a workload's functions are made of: it tells an edited workload from a slower machine."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from gpugate.workload import Workload


def source_hash(workload: Workload) -> str:
    """16 hex digits of SHA-256 over the sources that define the workload's functions, wherever the checkout lies.

    These are the modules of the functions themselves and what those import from their own top-level package, and so on;
    what the package itself imports is left out, since it may name every workload.
    """
    functions = [workload.baseline, workload.inputs, *(entry.build for entry in workload.optimizations)]
    found = dict(filter(None, map(_defined_in, functions)))
    to_read = list(found.items())
    while to_read:
        name, path = to_read.pop()
        new = {other: where for other, where in _imported(name, path) if other not in found}
        found.update(new)
        to_read.extend(entry for entry in new.items() if "." in entry[0])
    digest = hashlib.sha256()
    for name, path in sorted(found.items()):
        digest.update(f"{name}\0{path.read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()[:16]


def _defined_in(function: Any) -> tuple[str, Path] | None:
    """The module of a build function and its file; None for one that was typed in and has none."""
    while isinstance(function, partial):
        function = function.func
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
    """What an import statement may import below the top-level package `top`; `from a import b` may mean `a.b`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.split(".")[0] == top)
    if isinstance(node, ast.ImportFrom) and (node.level or str(node.module).split(".")[0] == top):
        base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        yield base
        spec = _spec(base)
        if spec is not None and spec.submodule_search_locations is not None:
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
