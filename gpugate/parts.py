"""The parts of an input set or of an output: each tensor and each other value in it, with the name that leads to it."""

from __future__ import annotations

import copy
import functools
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

Parts = dict[str, Any]
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
VALUES = (bool, int, float, complex, str, bytes, bytearray, type(None))
_SEQUENCES = (list, tuple, set, frozenset, deque)
# Objects of these packages have no tensors that a step could change: a lock, a date, a dtype.
_KNOWN = {"builtins", "torch", "numpy", *sys.stdlib_module_names}


def list_parts(value: object, name: str = "") -> Parts:
    """Lists the parts of a value by name, such as `hidden[1]`: tensors, numbers, texts, and what cannot be looked into.

    Tuples, lists, sets, dicts, data classes and other objects are looked into. An array of NumPy is a tensor of the
    same memory. The name of a value that is itself a tensor is `name`.
    """
    found: Parts = {}
    for path, part in _walk(value, name, frozenset()):
        while path in found:
            path += "'"
        found[path] = part
    return found


def _walk(value: Any, name: str, around: frozenset[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, np.ndarray) and value.flags.writeable:
        with suppress(TypeError, ValueError):  # of objects, texts and negative strides
            value = torch.from_numpy(value)
    children = _list_children(value)
    if children is None:
        yield name, value
    elif id(value) not in around:  # else an object that contains itself
        for step, child in children:
            path = f"{name}{step}" if name or step.startswith("[") else step.removeprefix(".")
            yield from _walk(child, path, around | {id(value)})


def _list_children(value: Any) -> list[tuple[str, Any]] | None:
    """Lists the values in a container or object, each with the last step of its name; None for any other value."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic, Iterator, type, ModuleType, Enum, PurePath, *VALUES)):
        return None
    if isinstance(value, Mapping):
        return [(f".{key}" if str(key).isidentifier() else f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return [(f".{key}", child) for key, child in value._asdict().items()]
    if isinstance(value, _SEQUENCES):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    if isinstance(value, functools.partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, (MethodType, BuiltinMethodType)):
        return [] if isinstance(value.__self__, ModuleType) else [(".__self__", value.__self__)]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return [(f".{key}", cell.cell_contents) for key, cell in cells]
    slots = {slot for kind in type(value).__mro__ for slot in vars(kind).get("__slots__", ())}
    own = {**{slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}, **getattr(value, "__dict__", {})}
    return [(f".{key}", child) for key, child in own.items()] if own else None


def opaque_part(parts: Parts) -> str | None:
    """Describes the first part that may contain tensors which nobody can find and check; None without such a part."""
    for name, part in parts.items():
        where = f"a {type(part).__qualname__}{f' in {name}' if name else ''}"
        if isinstance(part, Iterator):
            return f"{where}, which can be read only once"
        if not isinstance(part, (torch.Tensor, type, ModuleType, Enum)) and _package_of(part) not in _KNOWN:
            return f"{where}, whose tensors cannot be found"
    return None


def _package_of(part: object) -> str:
    return type(part).__module__.partition(".")[0]


def output_parts(output: object, inputs: object = None) -> Parts:
    """Lists the parts of an output, with its numbers as tensors, and those of `inputs` that the step wrote to."""
    found = {**list_parts(output), **(list_parts(inputs, "input") if inputs is not None else {})}
    return {name: _as_tensor(part) for name, part in found.items()}


def _as_tensor(part: Any) -> Any:
    if isinstance(part, np.ndarray):
        with suppress(TypeError):  # of objects and texts
            return torch.from_numpy(np.array(part))
    number = part.item() if isinstance(part, np.generic) else part
    if isinstance(number, (float, complex)):
        return torch.tensor(number, dtype=torch.complex128 if isinstance(number, complex) else torch.float64)
    return torch.tensor(number) if isinstance(number, int) and abs(number) < 2**63 else part


def list_tensors(value: object) -> list[torch.Tensor]:
    """Lists the tensors of an input set or output, however nested."""
    return [part for part in list_parts(value).values() if isinstance(part, torch.Tensor)]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the bytes of a tensor's values, uint8 in one dimension; of a quantized tensor, its integers'."""
    values = tensor.detach().resolve_conj().resolve_neg()
    values = values.int_repr() if values.is_quantized else values  # torch crashes where a quantized tensor is viewed
    return values.contiguous().reshape(-1).view(torch.uint8)


def byte_size(value: object) -> int:
    """Sums the bytes of the dense tensors in a value."""
    dense = [tensor for tensor in list_tensors(value) if not tensor.is_nested]
    return sum(tensor.numel() * tensor.element_size() for tensor in dense)


def map_tensors(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """Makes a value with the tensors that `change` returns, in the same tuples, lists, dicts and data classes."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        made = [map_tensors(change, child) for child in value]
        return type(value)(*made) if hasattr(value, "_asdict") else type(value)(made)
    copied: Any = copy.copy(value)
    if isinstance(value, Mapping):
        for key, child in value.items():
            copied[key] = map_tensors(change, child)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            object.__setattr__(copied, field.name, map_tensors(change, getattr(value, field.name)))
    return copied
