"""State of the whole process that a side must leave as it found it: functions of torch, modes, the interpreter's state.

A function that one side replaces would run in the other side and in every later case. Switches that a side may choose
for itself are in `torch_flags`. The state of random generators is in neither: inputs have generators of their own.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from operator import is_
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as all_modules
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes

from gpugate.measurement import device_timer

# Torch's compiler replaces these itself when it is first used, and `torch.set_default_dtype` the last one.
_REPLACED_BY_TORCH = {"torch.manual_seed", "torch.nn.Module.__init__", "torch.nn.Module.__setstate__", "torch.Storage"}


@contextmanager
def keep_process_state() -> Iterator[None]:
    """Inside, `restore_process_state` compares torch's functions with those at the beginning of the case.

    At the end, environment variables are restored: fresh processes inherit them, and libraries read them late. A side
    may set them, and torch's compiler does, so a changed variable is no error.
    """
    global _functions_at_start
    outer, variables = _functions_at_start, dict(os.environ)
    _functions_at_start = _Functions()
    try:
        yield
    finally:
        _functions_at_start = outer
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)


@contextmanager
def restore_process_state() -> Iterator[None]:
    """Restores what the code inside changes for the whole process, and raises ValueError that names it.

    An error of the code inside passes unchanged. Reading and comparing takes about 0.3 ms of a CPU core.
    """
    functions, settings = _functions_at_start or _Functions(), [setting.read() for setting in _SETTINGS]
    try:
        yield
    except BaseException:
        _restore(functions, settings)
        raise
    changed = _restore(functions, settings)
    if changed:
        raise ValueError(
            f"it changed {', '.join(changed)} for the whole process: keep the change inside the side, or make it at "
            "the top of the workload's module, where every side has it"
        )


def _classes(module: ModuleType) -> dict[str, type]:
    """The classes of a module by their full names; a class with two names, once."""
    named = {each: f"{module.__name__}.{name}" for name, each in vars(module).items() if isinstance(each, type)}
    return {name: each for each, name in named.items()}


_PLACES: Mapping[str, ModuleType | type] = {
    "torch": torch,
    "torch.Tensor": torch.Tensor,
    "torch.nn.functional": torch.nn.functional,
    **_classes(torch.nn),
    "torch.autograd": torch.autograd,
    "torch.linalg": torch.linalg,
    "torch.cuda": torch.cuda,
    "torch.cuda.Event": torch.cuda.Event,
    "torch.cuda.Stream": torch.cuda.Stream,
    "time": time,
    device_timer.__name__: device_timer,
    **_classes(device_timer),
}


_NAMES = [vars(place) for place in _PLACES.values()]


class _Functions:
    """The values of all names in `_PLACES` at one moment."""

    def __init__(self) -> None:
        self._by_place = [names.copy() for names in _NAMES]

    def restore(self) -> list[str]:
        """Restores all functions, and returns the names of those that had changed.

        Values are compared by identity, since a function that replaces another one may define an equality of its own.
        """
        same_size = [*map(len, _NAMES)] == [*map(len, self._by_place)]
        if same_size and all(map(is_, _values(_NAMES), _values(self._by_place))):
            return []
        changed: list[str] = []
        for (path, place), found in zip(_PLACES.items(), self._by_place, strict=True):
            changed += _restore_functions(path, place, found)
        self._by_place = [names.copy() for names in _NAMES]  # new names, which nobody restores, stay
        return changed


def _values(by_place: Sequence[Mapping[str, object]]) -> Iterator[object]:
    return chain.from_iterable([names.values() for names in by_place])


_functions_at_start: _Functions | None = None


def _restore(functions: _Functions, settings: Sequence[Any]) -> list[str]:
    """Restores all functions and settings, and returns the names of those that had changed."""
    changed = functions.restore()
    for setting, value in zip(_SETTINGS, settings, strict=True):
        if setting.read() != value:
            changed.append(setting.name)
            with suppress(TypeError, ValueError):  # no signal is set in a thread
                setting.write(value)
    return changed


def _restore_functions(path: str, place: ModuleType | type, found: Mapping[str, object]) -> list[str]:
    now, changed = dict(vars(place)), []
    for name, value in found.items():
        if _runs(value) and now.get(name) is not value and f"{path}.{name}" not in _REPLACED_BY_TORCH:
            setattr(place, name, value)
            changed.append(f"{path}.{name}")
    for name in now.keys() - found.keys():
        special = name.startswith("__") and name.endswith("__")
        if isinstance(place, type) and _runs(now[name]) and (special or hasattr(super(place, place), name)):
            delattr(place, name)
            changed.append(f"{path}.{name}")
    return changed


def _runs(value: object) -> bool:
    """True for functions, classes and descriptors; modules appear when they are first imported."""
    return callable(value) or hasattr(value, "__get__")


class _Setting(NamedTuple):
    """A value of the process that can be read and written."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _leave(modes: Callable[[], list[Any]], found: Sequence[object]) -> None:
    while len(entered := modes()) > len(found):
        entered[-1].__exit__(None, None, None)


def _stance() -> Any:
    """Reads the stance of torch.compile (`torch.compiler.set_stance`); None is the default."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return None if dynamo is None or dynamo._stance == dynamo.DynamoStance() else dynamo._stance


def _set_stance(stance: Any) -> None:
    dynamo = sys.modules["torch._dynamo.eval_frame"]
    dynamo._set_stance(stance or dynamo.DynamoStance())


_HOOKS = [hooks for name, hooks in vars(all_modules).items() if name.startswith("_global_") and isinstance(hooks, dict)]


def _set_hooks(found: Sequence[Mapping[int, object]]) -> None:
    for hooks, before in zip(_HOOKS, found, strict=True):
        hooks.clear()
        hooks.update(before)


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _collection() -> tuple[bool, tuple[int, int, int]]:
    return gc.isenabled(), gc.get_threshold()


def _set_collection(found: tuple[bool, tuple[int, int, int]]) -> None:
    enabled, threshold = found
    (gc.enable if enabled else gc.disable)()
    gc.set_threshold(*threshold)


_SETTINGS = (
    _Setting("torch's function modes", function_modes, lambda found: _leave(function_modes, found)),
    _Setting("torch's dispatch modes", dispatch_modes, lambda found: _leave(dispatch_modes, found)),
    _Setting(
        "torch's default device",
        lambda: getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
        lambda found: setattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", found),
    ),
    _Setting("the stance of torch.compile", _stance, _set_stance),
    _Setting("hooks of all modules", lambda: [dict(hooks) for hooks in _HOOKS], _set_hooks),
    _Setting(
        "signal timers",
        lambda: [timer for timer in _TIMERS if signal.getitimer(timer)[0] > 0],
        lambda found: [signal.setitimer(timer, 0) for timer in _TIMERS if timer not in found],
    ),
    _Setting(
        "signal handlers",
        lambda: [signal.getsignal(number) for number in _SIGNALS],
        lambda found: [*map(signal.signal, _SIGNALS, found)],
    ),
    _Setting("the garbage collector's state", _collection, _set_collection),
    _Setting("the switch interval of threads", sys.getswitchinterval, sys.setswitchinterval),
    _Setting("the interpreter's profile function", sys.getprofile, sys.setprofile),
)
