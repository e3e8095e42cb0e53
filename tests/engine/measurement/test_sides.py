"""Building, running and releasing a side: who is blamed, what it cost, and that it is left as it was."""

import copy
import gc
import itertools
import re
import runpy
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from gpugate.errors import SideError
from gpugate.measurement.difference import numbers_of
from gpugate.measurement.sides import BuiltSide, allocated_bytes, blame, build_side, fingerprint
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.workload import Context, Side

CPU = torch.device("cpu")
CONTEXT = Context(CPU, items=2, seed=0, cache_dir=Path())
INPUTS = [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)]


@pytest.fixture(autouse=True)
def flags_as_found() -> Iterator[None]:
    yield
    TorchFlags().apply()


def built(step: Callable[[Any], Any], **more: Any) -> BuiltSide:
    return build_side("fast", lambda context: Side(step, **more), CONTEXT, INPUTS[0])


def raise_(error: BaseException) -> Any:
    raise error


def place_of(function: Callable[..., Any]) -> str:
    """The pattern of the place of a function's first line."""
    name = function.__name__
    return rf"\((tests/engine/measurement/)?test_sides.py:{function.__code__.co_firstlineno + 1} {name}\)"


def test_whatever_goes_wrong_is_the_innermost_sides_in_one_line_with_its_cause() -> None:
    with pytest.raises(SideError) as caught, blame("slow", "being run"), blame("fast", "being built"):
        raise_(ValueError("no such layer\nand a long story"))
    place = place_of(raise_)
    assert re.fullmatch(f"fast failed while being built: ValueError: no such layer {place}", str(caught.value))
    assert isinstance(caught.value.__cause__, ValueError)
    loader = iter(DataLoader(Broken(), num_workers=1))
    with pytest.raises(SideError) as caught, blame("fast", "running timed steps"):
        next(loader)
    loader._shutdown_workers()  # the garbage collector would wait five seconds for them
    said = r"ValueError: picture 0 is broken: fetch it again \(DataLoader worker process 0\)"
    place = place_of(Broken.__getitem__)
    assert re.fullmatch(f"fast failed while running timed steps: {said} {place}", str(caught.value))


def test_an_error_in_a_folder_that_is_gone_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(SideError, match=f"{place_of(raise_)}$"), blame("fast", "being built"):
        raise_(ValueError("no such layer"))


def call_library(path: Path) -> None:
    runpy.run_path(str(path))


def test_an_error_in_a_library_of_another_python_names_the_line_that_calls_it(tmp_path: Path) -> None:
    path = tmp_path / "dist-packages" / "layers.py"
    path.parent.mkdir()
    path.write_text("raise ValueError('no such layer')", encoding="utf-8")
    with pytest.raises(SideError, match=f"{place_of(call_library)}$"), blame("fast", "being built"):
        call_library(path)


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory\nSearch for"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling it"), True),
        (RuntimeError("err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("CUDA error: an illegal memory access"), False),
    ],
)
def test_running_out_of_memory_is_known_by_its_kind_and_by_words_of_libraries(error: Exception, short: bool) -> None:
    assert SideError("fast", "being built", error).out_of_memory is short


@pytest.mark.parametrize(
    ("side", "sentence"),
    [
        (None, "being built: TypeError: its build function returned None: return a gpugate.workload.Side"),
        (Side(None), "running its first step: TypeError: 'NoneType' object is not callable"),
        (Side(abs, engaged=lambda: False), "calling engaged(): TypeError: engaged() returned False: return None where"),
        (Side(abs, engaged=lambda: " "), "calling engaged(): TypeError: engaged() returned ' ': return None where the"),
    ],
)
def test_a_side_that_is_none_is_named_with_what_to_give(side: Any, sentence: str) -> None:
    with pytest.raises(SideError) as caught:
        build_side("fast", lambda context: side, CONTEXT, INPUTS[0]).why_not_engaged()
    assert str(caught.value).startswith(f"fast failed while {sentence}")
    assert ".py:" not in str(caught.value)  # gpugate itself raises: no line of a user's is to blame


class Broken(Dataset[Tensor]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Tensor:
        raise ValueError(f"picture {index} is broken: fetch it again")


def test_a_side_whose_first_step_fails_is_closed_and_one_that_cannot_be_closed_is_blamed() -> None:
    closed: list[bool] = []
    with pytest.raises(SideError):
        built(lambda inputs: raise_(ValueError("bad")), close=lambda: closed.append(True))
    assert closed == [True]
    side = built(lambda inputs: inputs, close=lambda: raise_(OSError("still busy")))
    side.run_steps(INPUTS, 1)
    with pytest.raises(SideError, match="fast failed while being closed: OSError: still busy"):
        side.close()
    assert side.last_output is None


def test_a_side_is_built_under_the_defaults_and_keeps_what_it_chose() -> None:
    torch.backends.cudnn.allow_tf32 = False  # of somebody before
    seen: list[TorchFlags] = []

    def build(context: Context) -> Side:
        seen.append(TorchFlags.current())
        torch.backends.cudnn.benchmark = True
        torch.set_default_dtype(torch.float64)
        return Side(lambda inputs: seen.append(TorchFlags.current()))

    side = build_side("fast", build, CONTEXT, INPUTS[0])
    assert seen[0] == TorchFlags()
    assert (side.flags.cudnn_benchmark, side.flags.cudnn_allow_tf32) == (True, True)
    assert side.flags.default_dtype is torch.float64
    TorchFlags().apply()
    side.timed_block(INPUTS, lambda run: (run(), 1.0)[1])
    assert seen[-1].cudnn_benchmark
    TorchFlags().apply()
    side.output_for(INPUTS[0])
    assert seen[-1].cudnn_benchmark


@pytest.mark.parametrize("stock_steps", [0, 4])
def test_a_block_takes_the_stock_untimed_is_joined_in_its_time_and_goes_on_with_the_inputs(
    stock_steps: int,
) -> None:
    events: list[Any] = []

    def step(inputs: torch.Tensor) -> torch.Tensor:
        events.append(float(inputs))
        return 10 * inputs

    side = built(step, finish=lambda: events.append("finish"), stock_steps=stock_steps)
    side.steps_per_block = 5
    del events[:]

    def time_ms(run: Callable[[], None]) -> float:
        events.append("start")
        run()
        events.append("stop")
        return 10.0

    assert [side.timed_block(INPUTS, time_ms), side.timed_block(INPUTS, time_ms, steps=1)] == [2.0, 10.0]
    rotating = itertools.cycle([1.0, 2.0, 3.0])
    blocks = [[*("step" for _ in range(stock_steps)), "start", *["step"] * steps, "finish", "stop"] for steps in (5, 1)]
    assert events == [next(rotating) if event == "step" else event for event in itertools.chain(*blocks)]
    assert torch.equal(side.last_output, 10 * INPUTS[side.last_input])


def test_a_block_is_led_in_on_the_sets_before_its_own_and_its_window_has_its_steps_alone() -> None:
    events: list[Any] = []
    side = built(lambda inputs: events.append(float(inputs)), finish=lambda: events.append("finish"))
    del events[:]
    side.timed_block(INPUTS, lambda run: (run(), 18.0)[1], 3, 2, lambda: events.append("begin"), events.append)
    assert events == [2.0, 3.0, "finish", "begin", 1.0, 2.0, 3.0, "finish", 6.0]


def test_an_output_is_joined_and_a_copy_that_no_later_step_overwrites() -> None:
    buffer, pending = torch.zeros(1), []

    def step(inputs: torch.Tensor) -> torch.Tensor:
        pending.append(inputs)
        return buffer

    side = built(step, finish=lambda: buffer.fill_(float(pending[-1])))
    first, second = side.output_for(INPUTS[1]), side.output_for(INPUTS[2])
    assert (float(first[""]), float(second[""])) == (2.0, 3.0)
    side.flags = TorchFlags(inference_mode=True)
    assert not side.output_for(INPUTS[0])[""].is_inference()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    model[0].bias.data.copy_(torch.tensor([-2.0, -1.0, 1.0, 2.0]))
    return model


CHANGES: dict[str, Callable[[nn.Sequential], object]] = {
    "a weight": lambda model: model[0].weight.data.mul_(1.001),
    "a weight of sum zero": lambda model: model[0].bias.data.mul_(2.0),
    "a statistic": lambda model: model[1].running_mean.fill_(1.0),
    "an integer": lambda model: model[1].num_batches_tracked.add_(1),
    "precision": lambda model: model.half(),
    "memory format": lambda model: model.to(memory_format=torch.channels_last),
    "a fused layer": lambda model: model.__setitem__(1, nn.Identity()),
    "a new buffer": lambda model: model[0].register_buffer("new", torch.ones(1)),
    "a removed layer": lambda model: model.__delitem__(2),
    "compiled in place": lambda model: model.compile(),
    "another forward": lambda model: setattr(model[0], "forward", lambda inputs: inputs),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_model_has_another_fingerprint_and_a_used_or_copied_one_the_same(
    change: Callable[[nn.Sequential], object],
) -> None:
    model = network().eval()
    before = fingerprint(model)
    model(torch.ones(1, 3, 8, 8))
    copy.deepcopy(model).half()
    assert fingerprint(model) == before == fingerprint(network())
    change(model)
    assert fingerprint(model) != before


@pytest.mark.parametrize("pools", [[], ["16 workers"]])
def test_a_build_waits_for_the_compilers_workers_that_were_started(
    monkeypatch: pytest.MonkeyPatch, pools: list[str]
) -> None:
    from torch._inductor import async_compile

    assert iter(async_compile._pool_set)
    assert callable(async_compile.AsyncCompile.wait_pool_ready)
    waited: list[float] = []
    compiling = SimpleNamespace(wait_pool_ready=waited.append)
    workers = SimpleNamespace(_pool_set=pools, AsyncCompile=compiling)
    monkeypatch.setitem(sys.modules, "torch._inductor.async_compile", workers)
    built(lambda inputs: inputs)
    assert len(waited) == len(pools)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_memory_that_a_side_never_wrote_holds_no_older_output(dtype: torch.dtype) -> None:
    """The allocator hands out the memory of the reference's output, in which the right values still stand."""
    inputs = torch.arange(200_000 // dtype.itemsize).to(dtype)
    reference = build_side("baseline", lambda context: Side(torch.clone), CONTEXT, inputs)
    lucky = build_side("fast", lambda context: Side(torch.empty_like), CONTEXT, inputs)
    for _ in range(3):
        expected, output = (numbers_of(side.output_for(inputs)[""]) for side in (reference, lucky))
        assert float((output == expected).double().mean()) < 0.01
        assert float((output - expected).norm() / expected.norm()) > 1e3


def test_memory_of_a_closed_side_in_a_reference_cycle_is_not_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be freed in the middle of the next side's measurement, whose peak would be too low, or negative."""
    left = nn.Module()
    left.__dict__["itself"], alive = left, weakref.ref(left)
    del left
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0 if alive() is None else 4096)
    gc.disable()
    try:
        assert allocated_bytes(CPU) == 0
    finally:
        gc.enable()
