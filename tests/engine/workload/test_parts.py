"""The parts of inputs and outputs: every tensor is found by a name, and what cannot be looked into is named."""

import functools
import logging
import threading
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpugate.workload.parts import bytes_of, list_parts, list_tensors, map_tensors, opaque_part, output_parts

ONE, TWO = torch.ones(2), torch.full((3,), 2.0)
Pair = namedtuple("Pair", ("left", "right"))


@dataclass
class Batch:
    pixels: torch.Tensor
    more: Any = None
    names: list[str] = field(default_factory=list)


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Private:
    __slots__ = ("__value",)

    def __init__(self, value: Any) -> None:
        self.__value = value


class Empty:
    """An object without attributes."""


def with_defaults(first: Any = ONE, *, second: Any = TWO) -> None:
    """A function whose defaults are tensors."""


def with_gradient() -> torch.Tensor:
    weight = torch.ones(2, requires_grad=True)
    weight.grad, weight.mask = torch.ones(2), TWO  # type: ignore[attr-defined]
    return weight


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (ONE, [""]),
        ((ONE, [TWO]), ["[0]", "[1][0]"]),
        ({"image": ONE, 3: TWO, "no name": ONE}, ["image", "[3]", "['no name']"]),
        (OrderedDict(a=deque([ONE])), ["a[0]"]),
        (Pair(ONE, (TWO, ONE)), ["left", "right[0]", "right[1]"]),
        (Batch(ONE, more={"mask": TWO}), ["pixels", "more.mask"]),
        ([Batch(ONE), Plain(Slotted(TWO))], ["[0].pixels", "[1].value.value"]),
        (functools.partial(len, ONE), ["args[0]"]),
        (Plain(ONE).value.add, ["__self__"]),
        (Plain(torch.nn.Linear(1, 1, bias=False)), ["value._parameters.weight"]),
        ({"a": ONE, "b": np.ones(3)}, ["a", "b"]),
        (with_defaults, ["__defaults__[0]", "__kwdefaults__.second"]),
        (Private(ONE), ["_Private__value"]),
        ({"weight": with_gradient()}, ["weight", "weight.grad", "weight.mask"]),
        (memoryview(np.ones(3)), ["obj"]),
    ],
)
def test_every_tensor_has_a_name_however_nested(value: Any, names: list[str]) -> None:
    tensors = {name: part for name, part in list_parts(value).items() if isinstance(part, torch.Tensor)}
    assert [*tensors] == names
    assert len(list_tensors(value)) == len(names)
    assert opaque_part(list_parts(value)) is None


def test_attributes_of_an_output_are_no_part_of_it() -> None:
    assert [*output_parts(with_gradient())] == [""]


def test_an_array_of_an_input_is_a_tensor_of_its_memory_and_one_of_an_output_a_copy() -> None:
    array, texts, fixed = np.zeros(3), np.array(["a", "b"]), np.broadcast_to(2.0, (3,))
    (tensor,) = list_tensors([array])
    tensor.fill_(1.0)
    assert array.tolist() == [1.0, 1.0, 1.0]
    assert output_parts({"made": np.arange(3.0)[::-1]})["made"].tolist() == [2.0, 1.0, 0.0]
    assert (output_parts([texts])["[0]"] is texts, list_parts([fixed])["[0]"] is fixed) == (True, True)
    assert opaque_part(list_parts([texts, fixed])) is None


def test_objects_that_refer_to_each_other_are_walked_once() -> None:
    """Each of 40 objects has all others: paths through them are countless."""
    nodes = [Plain(torch.ones(1)) for _ in range(40)]
    for node in nodes:
        node.others = nodes  # type: ignore[attr-defined]
    assert len(list_tensors(nodes[0])) == 40
    assert len(list_tensors(lambda: nodes)) == 40, "in a closure, too"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ((tensor for tensor in (ONE,)), "a generator, which can be read only once"),
        ({"rows": [iter([ONE])]}, "a list_iterator in rows[0], which can be read only once"),
        (Plain(map(abs, [ONE])), "a map in value, which can be read only once"),
    ],
)
def test_what_can_be_read_only_once_is_named(value: Any, problem: str) -> None:
    assert opaque_part(list_parts(value)) == problem


def test_an_object_of_an_extension_that_shows_no_fields_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    opaque = object()
    monkeypatch.setattr("gpugate.workload.parts._KNOWN", set())
    assert opaque_part(list_parts([opaque])) == "a object in [0], whose tensors cannot be found"


@pytest.mark.parametrize(
    "value",
    [
        logging.getLogger(),
        3,
        "a label",
        None,
        Path("a"),
        Colour.RED,
        threading.Lock(),
        torch.float16,
        len,
        {1},
        Empty(),
    ],
)
def test_what_contains_no_tensor_is_no_problem(value: Any) -> None:
    assert opaque_part(list_parts(value)) is None
    assert list_tensors(value) == []


def test_numbers_of_an_output_are_tensors_and_texts_stay() -> None:
    found = output_parts({"loss": 0.5, "steps": 3, "right": True, "name": "net", "cache": None, "share": np.float32(2)})
    assert {name: getattr(part, "dtype", part) for name, part in found.items()} == {
        "loss": torch.float64,
        "steps": torch.int64,
        "right": torch.bool,
        "name": "net",
        "cache": None,
        "share": torch.float64,
    }


@pytest.mark.parametrize(
    "value", [(ONE, [TWO]), {"a": ONE}, Pair(ONE, TWO), Batch(ONE, more=(TWO,)), ONE, Plain([ONE]), Slotted(ONE)]
)
def test_the_same_containers_get_other_tensors(value: Any) -> None:
    doubled = map_tensors(lambda tensor: 2 * tensor, value)
    assert type(doubled) is type(value)
    assert [*list_parts(doubled)] == [*list_parts(value)]
    for ours, theirs in zip(list_tensors(doubled), list_tensors(value), strict=True):
        assert torch.equal(ours, 2 * theirs)
    assert torch.equal(ONE, torch.ones(2)), "the value itself stays"


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (torch.tensor(1, dtype=torch.int16), [1, 0]),
        (torch.tensor([1, 2], dtype=torch.uint8)[::1].flip(0), [2, 1]),
        (torch.tensor([1 + 2j]).conj(), [*torch.tensor([1.0, -2.0]).view(torch.uint8).tolist()]),
        (torch.quantize_per_tensor(torch.tensor([0.2, 0.3]), 0.1, 0, torch.qint8), [2, 3]),
        (torch.tensor([True]), [1]),
    ],
    ids=["scalar", "flipped", "conjugated", "quantized", "bool"],
)
def test_the_bytes_of_any_dense_tensor_can_be_read(tensor: torch.Tensor, found: list[int]) -> None:
    assert bytes_of(tensor).tolist() == found
