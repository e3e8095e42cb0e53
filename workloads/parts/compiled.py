"""torch.compile of a function whose compiled code belongs to one side alone."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import torch


def compile_anew(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compiles a copy of the function, by the options of torch.compile.

    Dynamo keeps compiled code with the code object, finds it again for the next side, and gives up after eight
    compilations of one code object. A copy has a code object of its own, so that each build compiles what it runs.
    """
    copied = cast(FunctionType, function)
    parts = copied.__globals__, copied.__name__, copied.__defaults__, copied.__closure__
    return torch.compile(FunctionType(copied.__code__.replace(), *parts), **options)
