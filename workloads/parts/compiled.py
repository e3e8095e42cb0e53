"""torch.compile of a function whose compiled code belongs to one side alone, and what it needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import torch

from gpugate.workload import Needs

COMPILER = Needs(cpp_compiler=True, install="install a C++ compiler, such as g++")
_NUMBERS = itertools.count()


def compile_anew(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compiles a copy of the function, by the options of torch.compile.

    Dynamo keeps compiled code with the code object, finds it again for the next side, and gives up after eight
    compilations of one code object. By the name it also remembers which sizes varied before. A copy has a code object
    and a name of its own, so that each build compiles what it runs, and as the first one does.
    """
    given = cast(FunctionType, function)
    code = given.__code__.replace(co_name=f"{given.__name__.strip('<>')}_{next(_NUMBERS)}")
    copy = FunctionType(code, given.__globals__, code.co_name, given.__defaults__, given.__closure__)
    copy.__kwdefaults__ = given.__kwdefaults__
    return torch.compile(copy, **options)
