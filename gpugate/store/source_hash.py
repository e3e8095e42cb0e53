"""A hash of the code of a workload's functions: it distinguishes an edited workload from a slower machine."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpugate.store.source_code import collect_code
from gpugate.workload import Workload

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def source_hash(workload: Workload) -> str:
    """Computes 16 hex digits of SHA-256 over the work of a workload, wherever in its package the code stands.

    The work is the code of the workload's functions (see `gpugate.store.source_code`), their arguments in
    `functools.partial`, and the items per step. Promises, contracts, comments, docstrings and module names are no work.
    """
    functions = _functions(workload)
    code = collect_code(roots(workload))
    parts = [*sorted(code.statements), *sorted(code.imported), repr([_words(function) for function in functions])]
    parts.append(repr(sorted((kind, size.items) for kind, size in workload.sizes.items())))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def roots(workload: Workload) -> list[tuple[str, str, Path]]:
    """Lists the functions and classes of the workload's own packages, each as module, top-level name and file."""
    functions = _functions(workload)
    packages = {_package(_unwrap_partial(function)) for function in functions}
    found = {one for one in map(_place, _within(functions)) if one is not None and one[0].split(".")[0] in packages}
    return sorted(found)


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
