"""Hashes of code: of a workload's functions, so that an edit is no slower machine, and of an optimization's proofs."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import CellType
from typing import Any

from gpugate.store.source_code import Code, collect_code
from gpugate.workload import Case, Workload

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_INSTALLED = ("site-packages", "dist-packages")


def source_hash(workload: Workload) -> str:
    """Computes 16 hex digits of SHA-256 over the work of a workload, wherever in its package the code stands.

    The work is the code of the workload's functions (see `gpugate.store.source_code`), their arguments in
    `functools.partial`, and the items per step. Promises, contracts, comments, docstrings and module names are no work.
    """
    return _hash(collect_code(roots(workload)), _functions(workload), workload)


def proof_hash(case: Case, run_proofs: Callable[..., Any]) -> str:
    """Computes the hash of the work of the case's workload, of its proofs, and of `run_proofs`, which runs them.

    A missed edit would be a wrong proof, not only a wrong note. So the code is followed into every package that is not
    installed, since a version does not show its edits, and functions count with the values that they captured.
    """
    functions = [*_functions(case.workload), *(proof.show for proof in case.optimization.proofs), run_proofs]
    packages, values = _packages(functions), _with_captured(functions)
    places = _places(values, lambda package: package in packages or _find_uninstalled(package) is not None)
    return _hash(collect_code(places, _find_uninstalled), values, case.workload)


def _hash(code: Code, values: Sequence[Any], workload: Workload) -> str:
    parts = [*sorted(code.statements), *sorted(code.imported), repr([_words(value) for value in values])]
    parts.append(repr(sorted((kind, size.items) for kind, size in workload.sizes.items())))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _find_uninstalled(package: str) -> Path | None:
    """The parent folder of a top-level package that is neither installed nor a part of Python; None for the others."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = spec.submodule_search_locations
    path = Path(folders[0]) if folders else Path(spec.origin or "")
    return None if is_installed(path) or not path.exists() else path.parent


def is_installed(path: Path) -> bool:
    """True for a file of an installed package or of Python."""
    return path.is_relative_to(sysconfig.get_path("stdlib")) or bool(set(_INSTALLED) & set(path.parts))


def roots(workload: Workload) -> list[tuple[str, str, Path]]:
    """Lists the functions and classes of the workload's own packages, each as module, top-level name and file."""
    functions = _functions(workload)
    packages = _packages(functions)
    return _places(functions, packages.__contains__)


def _places(values: Sequence[Any], is_own: Callable[[str], bool]) -> list[tuple[str, str, Path]]:
    found = {one for one in map(_place, _within(values)) if one is not None and is_own(one[0].split(".")[0])}
    return sorted(found)


def _packages(functions: Sequence[Any]) -> set[str]:
    return {_package(_unwrap_partial(function)) for function in functions}


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


def _package(function: Any) -> str:
    return str(function.__module__).split(".")[0]


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
