"""The parts of an input set or of an output: each tensor and each other value in it, with the name that leads to it."""

from __future__ import annotations

import copy
import functools
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from logging import Logger
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


def list_parts(value: object, name: str = "", attributes: bool = True) -> Parts:
    """Lists the parts of a value by name, such as `hidden[1]`: tensors, numbers, texts, and what cannot be looked into.

    Tuples, lists, sets, dicts, data classes, closures and other objects are looked into, and with `attributes` the
    gradient and the attributes of a tensor. An array of NumPy is a tensor of the same memory. The name of a value that
    is itself a tensor is `name`.
    """
    found: Parts = {}
    for path, part in _walk(value, name, frozenset(), set(), attributes):
        while path in found:
            path += "'"
        found[path] = part
    return found


def _walk(
    value: Any, name: str, around: frozenset[int], objects: set[int], attributes: bool
) -> Iterator[tuple[str, Any]]:
    """Walks through the containers in a value, but not into one inside itself, and once through each other object."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        with suppress(TypeError, ValueError):  # of objects, texts and negative strides
            value = torch.from_numpy(value)
    children = _list_children(value)
    if children is None:
        yield name, value
        children = _list_attributes(value) if attributes and isinstance(value, torch.Tensor) else []
    elif id(value) in around or id(value) in objects:
        return
    elif not isinstance(value, (Mapping, *_SEQUENCES)):
        objects.add(id(value))
    for step, child in children:
        path = f"{name}{step}" if name or step.startswith("[") else step.removeprefix(".")
        yield from _walk(child, path, around | {id(value)}, objects, attributes)


def _list_attributes(tensor: torch.Tensor) -> list[tuple[str, Any]]:
    grad = {"grad": tensor.grad} if tensor.is_leaf and tensor.grad is not None else {}
    return [(f".{key}", child) for key, child in {**grad, **vars(tensor)}.items()]


def _list_children(value: Any) -> list[tuple[str, Any]] | None:
    """Lists the values in a container or object, each with the last step of its name; None for any other value."""
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic, Iterator, type, ModuleType, Enum, PurePath, *VALUES)):
        return None
    if isinstance(value, functools.partial):
        return [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, (MethodType, BuiltinMethodType)):
        return [] if isinstance(value.__self__, ModuleType) else [(".__self__", value.__self__)]
    if isinstance(value, memoryview):
        return [(".obj", value.obj)]
    own = [] if isinstance(value, Logger) else [(f".{key}", child) for key, child in fields_of(value).items()]
    if isinstance(value, FunctionType):
        defaults = [(".__defaults__", value.__defaults__), (".__kwdefaults__", value.__kwdefaults__)]
        return [*own, *defaults, *_list_cells(value)]
    if isinstance(value, Mapping):
        items = value.items()
        return [(f".{key}" if str(key).isidentifier() else f"[{key!r}]", child) for key, child in items] + own
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return [(f".{key}", child) for key, child in value._asdict().items()] + own
    if isinstance(value, _SEQUENCES):
        return [(f"[{index}]", child) for index, child in enumerate(value)] + own
    return own if own or hasattr(value, "__dict__") else None


def _list_cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for key, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # of a variable that is not assigned yet
            yield f".{key}", cell.cell_contents


def fields_of(value: object) -> dict[str, Any]:
    """Returns the attributes of an object by name, those in slots included."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for slot in [slots] if isinstance(slots, str) else slots:
            name = f"_{kind.__name__.lstrip('_')}{slot}" if slot.startswith("__") and slot[-2:] != "__" else slot
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def opaque_part(parts: Parts) -> str | None:
    """Describes the first part that may contain tensors which nobody can find and check; None without such a part."""
    for name, part in parts.items():
        where = f"a {type(part).__qualname__}{f' in {name}' if name else ''}"
        if isinstance(part, Iterator):
            return f"{where}, which can be read only once"
        is_array = isinstance(part, np.ndarray) and part.flags.writeable and part.dtype.kind in "biufc"
        package = type(part).__module__.partition(".")[0]
        known = package in _KNOWN or isinstance(part, (torch.Tensor, type, ModuleType, Enum))
        if is_array or not known:
            return f"{where}, {'whose memory torch cannot share' if is_array else 'whose tensors cannot be found'}"
    return None


def output_parts(output: object, inputs: object = None) -> Parts:
    """Lists the parts of an output, with its numbers as tensors, and those of `inputs` that the step wrote to."""
    found = {**list_parts(output, attributes=False), **(list_parts(inputs, "input") if inputs is not None else {})}
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
    """Makes a value with the tensors that `change` returns, in the same tuples, lists, dicts and objects."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        made = [map_tensors(change, child) for child in value]
        return type(value)(*made) if hasattr(value, "_asdict") else type(value)(made)
    if isinstance(value, np.ndarray):
        return change(torch.from_numpy(np.array(value))).numpy()
    if isinstance(value, (Iterator, type, ModuleType, *VALUES)):
        return value
    copied: Any = copy.copy(value)
    if isinstance(value, Mapping):
        for key, child in value.items():
            copied[key] = map_tensors(change, child)
    for name, child in fields_of(value).items():
        object.__setattr__(copied, name, map_tensors(change, child))
    return copied
