"""Files that are no checkpoint of the model that reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn


class Touches:
    """A hostile value: unpickling it calls a function, here one that leaves a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.path,)


def write_nothing(path: Path) -> None:
    """Leaves the path without a file."""


def write_text(path: Path) -> None:
    path.write_text("weights, honestly", encoding="utf-8")


def write_truncated(path: Path) -> None:
    torch.save({"fc.weight": torch.zeros(1000, 2048)}, path)
    path.write_bytes(path.read_bytes()[:1000])


def write_another_model(path: Path) -> None:
    torch.save({"fc.weight": torch.zeros(10, 2048)}, path)


def write_list(path: Path) -> None:
    torch.save([1, 2, 3], path)


def write_code(path: Path) -> None:
    torch.save(nn.Linear(2, 2), path)


def write_hostile(path: Path) -> None:
    torch.save(Touches(path.with_name("ran")), path)


WRITERS = (write_hostile, write_nothing, write_text, write_truncated, write_another_model, write_list, write_code)
