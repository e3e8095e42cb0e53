"""A change of the whole process is an error of the side that made it; it is named, and undone for later sides."""

import gc
import operator
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from gpugate.errors import SideError
from gpugate.measurement import device_timer, process_state
from gpugate.measurement.process_state import keep_process_state, restore_process_state
from gpugate.measurement.sides import build_side
from gpugate.workload import Context, Side
from tests.support.code_in_child import run_code

CONTEXT = Context(torch.device("cpu"), items=2, seed=0, cache_dir=Path())
INPUT = torch.ones(2, 2)


class SlowFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class SlowOperators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class EqualToAll:
    """A function that calls itself equal to the one that it replaces."""

    def __call__(self, *args: object) -> None:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


def slowly(function: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.001)
        return function(*args, **kwargs)

    return slow


def replace(place: Any, name: str, by: Callable[..., Any] | None = None) -> Callable[[], object]:
    return lambda: setattr(place, name, by or slowly(getattr(place, name)))


# What is named in the error -> what a side does, and how its effect can be seen.
FUNCTIONS: dict[str, tuple[Any, str]] = {
    "torch.matmul": (torch, "matmul"),
    "torch.Tensor.add": (torch.Tensor, "add"),  # of the base class: it is shadowed
    "torch.nn.functional.relu": (nn.functional, "relu"),
    "torch.nn.Module.__call__": (nn.Module, "__call__"),
    "torch.nn.ReLU.__call__": (nn.ReLU, "__call__"),
    "torch.cuda.Event.elapsed_time": (torch.cuda.Event, "elapsed_time"),
    "time.perf_counter_ns": (time, "perf_counter_ns"),
    "gpugate.measurement.device_timer.HostTimer.time_ms": (device_timer.HostTimer, "time_ms"),
}
SETTINGS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "torch's function modes": (lambda: SlowFunctions().__enter__(), torch._C._len_torch_function_stack),
    "torch's dispatch modes": (lambda: SlowOperators().__enter__(), torch._C._len_torch_dispatch_stack),
    "torch's default device": (lambda: torch.set_default_device("meta"), torch.get_default_device),
    "hooks of all modules": (
        lambda: nn.modules.module.register_module_forward_hook(lambda module, inputs, output: None),
        lambda: len(nn.modules.module._global_forward_hooks),
    ),
    "signal timers": (
        lambda: signal.setitimer(signal.ITIMER_REAL, 600),
        lambda: signal.getitimer(signal.ITIMER_REAL),
    ),
    "signal handlers": (
        lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        lambda: signal.getsignal(signal.SIGINT),
    ),
    "the garbage collector's state": (lambda: gc.set_threshold(1), gc.get_threshold),
    "the switch interval of threads": (lambda: sys.setswitchinterval(1e-6), sys.getswitchinterval),
    "the interpreter's profile function": (lambda: sys.setprofile(lambda *args: None), sys.getprofile),
    "the stance of torch.compile": (
        lambda: torch.compiler.set_stance("force_eager"),
        lambda: torch._dynamo.eval_frame._stance.stance,
    ),
}


@pytest.fixture(autouse=True)
def as_found() -> Iterator[None]:
    """Restores the process's state, so that a failed test disturbs no other test."""
    functions, settings = process_state._Functions(), [setting.read() for setting in process_state._SETTINGS]
    yield
    process_state._restore(functions, settings)


DOING = {0: "being built", 1: "running its first step", 2: "running timed steps"}


def measured(change: Callable[[], object], at_call: int = 0, closed: Callable[[], None] = lambda: None) -> str:
    """The error of a side that makes the change while it is built (0), or in a later step."""
    calls = iter(range(1, 9))

    def step(inputs: torch.Tensor) -> torch.Tensor:
        if next(calls) == at_call:
            change()
        return inputs

    def build(context: Context) -> Side:
        if at_call == 0:
            change()
        return Side(step, close=closed)

    with pytest.raises(SideError) as caught:
        build_side("fast", build, CONTEXT, INPUT).timed_block([INPUT], lambda run: (run(), 1.0)[1])
    assert caught.value.doing == DOING[at_call]
    return str(caught.value)


@pytest.mark.parametrize(
    ("named", "at_call"), [*((named, 0) for named in FUNCTIONS), ("time.perf_counter_ns", 1), ("torch.matmul", 2)]
)
def test_a_function_that_a_side_replaces_is_named_and_restored(named: str, at_call: int) -> None:
    place, name = FUNCTIONS[named]
    usual, own = getattr(place, name), name in vars(place)
    assert f" {named} " in measured(replace(place, name), at_call)
    assert (getattr(place, name), name in vars(place)) == (usual, own)


@pytest.mark.parametrize("named", SETTINGS)
def test_a_setting_of_the_process_that_a_side_changes_is_named_and_restored(named: str) -> None:
    change, read = SETTINGS[named]
    usual = read()
    assert named in measured(change)
    assert read() == usual
    assert {setting.name for setting in process_state._SETTINGS} == {*SETTINGS}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: delattr(torch, "relu"), "torch.relu"),
        (replace(torch, "matmul", EqualToAll()), "torch.matmul"),
        (lambda: setattr(torch.Tensor, "__del__", lambda self: None), "torch.Tensor.__del__"),
    ],
    ids=["removed", "calls itself equal", "added"],
)
def test_any_other_change_of_a_function_is_seen_and_undone(change: Callable[[], object], named: str) -> None:
    relu, matmul = torch.relu, torch.matmul
    assert f" {named} " in measured(change)
    assert (torch.relu is relu, torch.matmul is matmul, hasattr(torch.Tensor, "__del__")) == (True, True, False)


@pytest.mark.parametrize("fails", [True, False])
def test_a_refused_build_leaves_nothing_behind_and_names_its_own_error_or_all_its_changes(fails: bool) -> None:
    usual, closed = torch.matmul, list[bool]()

    def change() -> None:
        torch.matmul = slowly(usual)
        gc.disable()
        if fails:
            raise KeyError("weights")

    changes = "ValueError: it changed torch.matmul, the garbage collector's state for the whole process"
    words = "KeyError: 'weights'" if fails else changes
    assert measured(change, 0, lambda: closed.append(True)).startswith(f"fast failed while being built: {words}")
    assert (torch.matmul is usual, gc.isenabled(), closed) == (True, True, [] if fails else [True])


def test_new_names_and_what_is_changed_and_restored_inside_are_the_sides_own_matter() -> None:
    usual = torch.matmul
    with restore_process_state():
        torch.matmul = slowly(usual)
        torch.matmul = usual
        with SlowFunctions(), SlowOperators(), torch.device("meta"):
            torch.ones(2)
        torch.my_helper, torch.Tensor.my_method = operator.add, operator.neg
    assert torch.my_helper is operator.add
    del torch.my_helper, torch.Tensor.my_method


def test_the_functions_at_the_beginning_of_a_case_come_back_block_after_block(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch.matmul
    with keep_process_state():
        for _ in range(2):
            torch.new_name = operator.add  # which no block restores
            with pytest.raises(ValueError, match=r"torch\.matmul"), restore_process_state():
                torch.matmul = slowly(original)
            assert torch.matmul is original
            del torch.new_name
    monkeypatch.setattr(torch, "matmul", ours := slowly(original))
    with keep_process_state(), restore_process_state():
        pass
    assert torch.matmul is ours


@pytest.mark.usefixtures("warm_children")
def test_what_torch_itself_replaces_is_no_change() -> None:
    """In a process of its own: torch's compiler, tracer and profiler are imported and used for the first time."""
    program = """
        import torch
        from gpugate.measurement.process_state import keep_process_state, restore_process_state
        with restore_process_state():
            model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
            optimizer = torch.optim.SGD(model.parameters())
            torch.compile(model, backend="eager")(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            torch.jit.trace(model, torch.ones(2, 4))
            torch.fx.symbolic_trace(model)
            with torch.profiler.profile():
                model(torch.ones(2, 4))
        assert torch.manual_seed.__module__ == "torch.random"
        print("nothing changed")
    """
    assert run_code(program).splitlines()[-1] == "nothing changed"
