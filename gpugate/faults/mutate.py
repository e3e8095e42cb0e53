"""A case whose optimized side has a known fault.

Faults are in its build (pageable buffers, no CUDA graph, a graph break), in every step (more work, memory never freed,
and outputs that are wrong, stale or half computed), and between the ranks of a job (one bucket, no overlap, no average,
a rank that skips, a rank that is slow). Each rank changes its own build of `DistributedDataParallel` alike; a fault of
one rank is in the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import partial
from time import perf_counter, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree

from gpugate.errors import SideError
from gpugate.faults.fault import KINDS, OF_RANKS, Fault
from gpugate.faults.slow import lengthen, slow_down, use_more_cpu
from gpugate.workload import Build, Case, Context, Side
from gpugate.workload.parts import list_tensors, map_tensors

LEAKED_BYTES_PER_STEP = 2**16  # so little that the watched steps seldom meet the moment at which it is freed
LEAKED_BYTES_AT_MOST = 2**31
BUCKET_OF_ALL_MB = 2**20
Hook = Callable[[Any, Any], "torch.futures.Future[torch.Tensor]"]
Change = Callable[[Any], Any]  # of an output, which may be a tuple, dict or data class of tensors


# --- in its build -----------------------------------------------------------------------------------------------------


class _PageableMemory(TorchFunctionMode):
    """A mode in which requests of page-locked memory get pageable memory; `requests` counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        arguments = dict(kwargs or {})
        if func is torch.Tensor.pin_memory:
            self.requests += 1
            return args[0].clone()
        if arguments.pop("pin_memory", False):
            self.requests += 1
        return func(*args, **arguments)


def use_pageable_memory(build: Build) -> Build:
    """Makes page-locked buffers pageable. Raises ValueError when the build pins no buffer."""

    def build_faulty(context: Context) -> Side:
        with _PageableMemory() as memory:
            side = build(context)
        if not memory.requests:
            raise ValueError("pageable needs page-locked buffers, and building this side makes none")
        return side

    return build_faulty


@dataclass(frozen=True)
class _WithoutGraphs(Context):
    """A context that records each read of `capture_graphs`."""

    reads: list[str] = field(default_factory=list)

    def __getattribute__(self, name: str) -> Any:
        if name == "capture_graphs":
            self.reads.append(name)
        return super().__getattribute__(name)


def disable_graphs(build: Build) -> Build:
    """Sets `Context.capture_graphs` to False. The first step raises ValueError when the side never read it."""

    def build_faulty(context: Context) -> Side:
        values = {each.name: getattr(context, each.name) for each in fields(context)}
        watched = _WithoutGraphs(**{**values, "capture_graphs": False})
        problem = "no-graph needs a side that reads Context.capture_graphs, and this one never does"
        return _check_first_step(build(watched), watched.reads, problem)

    return build_faulty


def break_graphs(build: Build) -> Build:
    """Adds a graph break to the end of everything that the side gives to `torch.compile`.

    The first step raises ValueError if the side compiled nothing. With `fullgraph=True`, torch itself raises an error
    at the break, in the first step.
    """

    def build_faulty(context: Context) -> Side:
        compiled: list[object] = []
        with _break_compiled_graphs(compiled):
            side = build(context)
        problem = "graph-break needs a side that calls torch.compile, and this one never does"
        return _check_first_step(side, compiled, problem, lambda: _break_compiled_graphs(compiled))

    return build_faulty


def _check_first_step(
    side: Side,
    happened: Sequence[object],
    problem: str,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Side:
    """Makes the first step, which runs inside `around`, raise ValueError where nothing has `happened` by its end: a
    side may capture or compile as late as there."""
    own_step = side.step

    def first_step(inputs: Any) -> Any:
        with around():
            output = own_step(inputs)
        if not happened:
            raise ValueError(problem)
        side.step = own_step
        return output

    side.step = first_step
    return side


@contextmanager
def _break_compiled_graphs(compiled: list[object]) -> Iterator[None]:
    compile_whole = torch.compile

    def compile_broken(model: Any = None, **how: Any) -> Any:
        if model is None:
            return partial(compile_broken, **how)  # `@torch.compile(...)`
        compiled.append(model)
        return compile_whole(_with_break(model), **how)

    torch.compile = compile_broken
    try:
        yield
    finally:
        torch.compile = compile_whole


def _with_break(model: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*args: Any, **kwargs: Any) -> Any:
        output = model(*args, **kwargs)
        torch._dynamo.graph_break()
        # The clone gives the graph behind the break some work: torch compiles no empty graph.
        return _pytree.tree_map_only(torch.Tensor, torch.clone, output)

    # Dynamo keeps compiled code with the code object, at most 8 times: every model needs a code object of its own.
    broken.__code__ = broken.__code__.replace()
    return broken


# --- in every step ----------------------------------------------------------------------------------------------------


def synchronize_every_step(context: Context, side: Side) -> Side:
    """Makes the host wait for the device after every step."""
    return _after_each_step(side, lambda output: torch.cuda.synchronize(context.device))


def launch_more(context: Context, side: Side) -> Side:
    """Launches one more kernel per step, over a single value."""
    value = torch.ones(1, device=context.device)
    return _after_each_step(side, lambda output: value.mul_(1.0))


def copy_output(context: Context, side: Side) -> Side:
    """Copies the output to the host and back, or to the device and back where the step leaves it on the host.

    The copy is dropped: the output of a pipeline may not be complete yet.
    """

    def copy(output: Any) -> None:
        for tensor in list_tensors(output):
            tensor.to("cpu" if tensor.is_cuda else context.device).to(tensor.device)

    return _after_each_step(side, copy)


def _after_each_step(side: Side, work: Callable[[Any], object]) -> Side:
    def step(inputs: Any) -> Any:
        output = side.step(inputs)
        work(output)
        return output

    return replace(side, step=step)


def return_stale_output(context: Context, side: Side) -> Side:
    """Makes every step return the output of the step before; the first step returns its own output.

    Nothing waits for an output. Where a side fills another tensor in every step, the old tensor is kept; where it fills
    one tensor again and again, as the replay of a CUDA graph does, the old values are copied in stream order.
    """
    latest, filled_again = None, False

    def step(inputs: Any) -> Any:
        nonlocal latest, filled_again
        before = map_tensors(torch.clone, latest) if filled_again else latest
        output = side.step(inputs)
        places, places_before = ([one.data_ptr() for one in list_tensors(value)] for value in (output, latest))
        filled_again = filled_again or places == places_before
        latest = output
        return output if before is None else before

    return replace(side, step=step)


def leak_memory(context: Context, side: Side) -> Side:
    """Makes every step allocate memory and keep it, up to a bound that every machine can spare.

    The memory is freed between blocks when half of the bound is reached: counted steps always have room to grow.
    """
    kept: list[torch.Tensor] = []
    most = LEAKED_BYTES_AT_MOST // LEAKED_BYTES_PER_STEP

    def keep_more(output: Any) -> None:
        if len(kept) < most:
            kept.append(torch.empty(LEAKED_BYTES_PER_STEP, dtype=torch.uint8, device=context.device))

    def finish() -> None:
        side.finish()
        if len(kept) > most // 2:
            kept.clear()

    return replace(_after_each_step(side, keep_more), finish=finish)


def _change_output(side: Side, change: Change) -> Side:
    """Makes the side return one buffer of its own, which `finish()` fills with the changed output of the last step.

    Before `finish()` the output of a pipeline may not be complete, and waiting for it would be another fault.
    """
    latest = buffer = None

    def step(inputs: Any) -> Any:
        nonlocal latest, buffer
        latest = map_tensors(torch.Tensor.detach, side.step(inputs))
        if buffer is None:
            buffer = map_tensors(torch.empty_like, change(latest))
        return buffer

    def finish() -> None:
        side.finish()
        if buffer is not None:
            for into, source in zip(list_tensors(buffer), list_tensors(change(latest)), strict=True):
                into.copy_(source)

    return replace(side, step=step, finish=finish)


def make_output_wrong(context: Context, side: Side, relative_l2: float) -> Side:
    """Adds seeded noise to the output, of `relative_l2` times its norm; to an output of zeros, of `relative_l2`.

    The steps raise ValueError for an output without a floating-point tensor.
    """
    noise: dict[torch.Size, torch.Tensor] = {}

    def add_noise(output: torch.Tensor) -> torch.Tensor:
        if not output.is_floating_point():
            return output
        if output.shape not in noise:
            drawn = torch.randn(output.shape, generator=torch.Generator().manual_seed(context.seed))
            noise[output.shape] = (drawn / drawn.norm()).to(output.device)
        exact = output.to(torch.promote_types(output.dtype, torch.float32))
        norm = exact.norm()
        error = relative_l2 * torch.where(norm > 0, norm, torch.ones_like(norm)) * noise[output.shape]
        return (exact + error).to(output.dtype)

    def add_to_all(output: Any) -> Any:
        tensors = list_tensors(output)
        if not any(tensor.is_floating_point() for tensor in tensors):
            found = ", ".join(str(tensor.dtype) for tensor in tensors) or "none"
            raise ValueError(f"wrong perturbs floating-point tensors, and those of this output are {found}")
        return map_tensors(add_noise, output)

    return _change_output(side, add_to_all)


def skip_work(build: Build) -> Build:
    """Builds the side for half of the items, gives it the first half of every batch, and repeats its output.

    The steps raise ValueError for inputs and outputs whose first dimension does not fit the items per step.
    """

    def build_faulty(context: Context) -> Side:
        items, half = context.items, context.items // 2
        side = build(replace(context, items=half))

        def step(inputs: Any) -> Any:
            return side.step(_first_half(inputs, items))

        return _change_output(replace(side, step=step), lambda output: _repeat(output, half, items))

    return build_faulty


def _first_half(inputs: Any, items: int) -> Any:
    if not any(_is_batch(tensor, items) for tensor in list_tensors(inputs)):
        raise ValueError(f"skip-work halves a batch, and no input's first dimension is the {items} items per step")
    return map_tensors(lambda tensor: tensor[: items // 2] if _is_batch(tensor, items) else tensor, inputs)


def _is_batch(tensor: torch.Tensor, items: int) -> bool:
    return tensor.dim() > 0 and tensor.shape[0] == items


def _repeat(output: Any, half: int, items: int) -> Any:
    tensors = list_tensors(output)
    if not any(_is_batch(tensor, half) for tensor in tensors):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
        raise ValueError(f"skip-work repeats half an output, and this one has shape {shapes}, not {half} rows")

    def repeat(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[torch.arange(items, device=tensor.device) % half] if _is_batch(tensor, half) else tensor

    return map_tensors(repeat, output)


# --- between ranks ----------------------------------------------------------------------------------------------------


def put_into_ranks(kind: str, build: Build, amount: float) -> Build:
    """Returns a build function whose side has the fault `kind`. Raises ValueError for a side that cannot have it."""

    def build_faulty(context: Context) -> Side:
        if kind == "slow-rank":
            return _slow_last_rank(context, build(context))
        with _change_replicas(kind) as changed:
            side = build(context)
        if not changed:
            raise ValueError(f"{kind} needs a side that uses DistributedDataParallel, and this one does not")
        return side

    return build_faulty


def _slow_last_rank(context: Context, side: Side) -> Side:
    """Makes every step of the last rank take twice its time."""
    if not _is_last_rank():
        return side

    def step(inputs: Any) -> Any:
        started = perf_counter()
        output = side.step(inputs)
        if context.device.type == "cuda":
            torch.cuda.synchronize(context.device)  # cuda only
        sleep(perf_counter() - started)
        return output

    return replace(side, step=step)


def _is_last_rank() -> bool:
    return dist.get_rank() == dist.get_world_size() - 1


@contextmanager
def _change_replicas(kind: str) -> Iterator[list[DistributedDataParallel]]:
    """Inside, each new replica has the fault; yields the replicas that were made."""
    changed: list[DistributedDataParallel] = []
    replica_class: Any = DistributedDataParallel
    make, register = replica_class.__init__, replica_class.register_comm_hook

    def make_faulty(replica: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        if kind == "one-bucket":
            kwargs["bucket_cap_mb"] = BUCKET_OF_ALL_MB
        make(replica, *args, **kwargs)
        changed.append(replica)

    def register_faulty(replica: DistributedDataParallel, state: object, hook: Hook) -> None:
        hooked.append(replica)
        register(replica, state, _change(kind, hook) if kind in _HOOKS else hook)

    hooked: list[DistributedDataParallel] = []
    replica_class.__init__, replica_class.register_comm_hook = make_faulty, register_faulty
    try:
        yield changed
        for replica in changed:
            if replica not in hooked and kind in _HOOKS:
                register(replica, None, _change(kind, _average))
    finally:
        replica_class.__init__, replica_class.register_comm_hook = make, register


def _change(kind: str, hook: Hook) -> Hook:
    changed = _HOOKS[kind](hook)
    changed.__annotations__ = {}  # torch rejects annotations that are strings, as they all are in this file
    return changed


def _average(state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """The reduction of a replica that has no hook."""
    return _sum(bucket.buffer().div_(dist.get_world_size()))


def _sum(tensor: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    work: Any = dist.all_reduce(tensor, async_op=True)
    future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return future


def _without_average(hook: Hook) -> Hook:
    """Every rank adds the gradients of all, and none divides by their number."""
    return lambda state, bucket: _sum(bucket.buffer())


def _without_last_rank(hook: Hook) -> Hook:
    """The last rank sends zeros, as `torch.distributed.algorithms.Join` does for a rank that has no input."""

    def reduce(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        if _is_last_rank():
            bucket.buffer().zero_()
        return hook(state, bucket)

    return reduce


def _without_overlap(hook: Hook) -> Hook:
    """The hook of each bucket runs when the last bucket is ready."""
    waiting: list[tuple[Any, Any, torch.futures.Future[torch.Tensor]]] = []

    def reduce(state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        device = bucket.buffer().device
        waiting.append((state, bucket, torch.futures.Future(devices=[device] if device.type == "cuda" else None)))
        promised = waiting[-1][2]
        if bucket.is_last():
            for its_state, its_bucket, future in waiting:
                future.set_result(hook(its_state, its_bucket).wait())
            waiting.clear()
        return promised

    return reduce


_HOOKS = {"no-average": _without_average, "skip-rank": _without_last_rank, "no-overlap": _without_overlap}


# --- a case with a fault ---------------------------------------------------------------------------------------------


def mutate(case: Case, fault: Fault, device: torch.device) -> Case:
    """Puts the fault into the optimized side of a case; the reference stays as it is, also where it is an optimization.

    Raises SideError with the reason when the case cannot have the fault. Building and the first step raise the problems
    that are known only then.
    """
    kind, reason = KINDS[fault.kind], None
    if device.type != "cuda" and kind.not_on_a_cpu:
        reason = kind.not_on_a_cpu
    elif kind.of_ranks and not case.spans_gpus:
        reason = f"{fault.kind} is a fault between GPUs, and this case runs on one device"
    elif fault.kind == "skip-work" and case.size.items < 2:
        reason = "there is no half of 1 item per step"
    if reason is not None:
        raise SideError(case.optimization.name, f"being mutated by {fault}", ValueError(reason))
    faulty = replace(case.optimization, build=apply(fault, case.optimization.build))
    others = case.workload.optimizations
    optimizations = tuple(faulty if each.name == faulty.name else each for each in others)
    return replace(case, workload=replace(case.workload, optimizations=optimizations), optimization=faulty)


@dataclass(frozen=True)
class FaultyBuild:
    """A build function whose side has the fault. Another rank of a job puts the fault into its own build."""

    fault: Fault
    build: Build  # without the fault
    _faulty: Build

    def __call__(self, context: Context) -> Side:
        return self._faulty(context)


def apply(fault: Fault, build: Build) -> Build:
    """Returns a build function whose side has the fault."""
    return FaultyBuild(fault, build, _FAULTS[fault.kind](build, fault.amount))


def _afterwards(change: Callable[[Context, Side], Side]) -> Callable[[Build, float], Build]:
    """Makes a fault from a change of a side that was built without a fault."""
    return lambda build, amount: lambda context: change(context, build(context))


_FAULTS: Mapping[str, Callable[[Build, float], Build]] = {
    "slow": lambda build, percent: slow_down(build, percent / 100),
    "longer-kernel": lambda build, percent: lengthen(build, percent / 100),
    "cpu-work": lambda build, percent: use_more_cpu(build, percent / 100),
    "sync": _afterwards(synchronize_every_step),
    "pageable": lambda build, _: use_pageable_memory(build),
    "launch": _afterwards(launch_more),
    "no-graph": lambda build, _: disable_graphs(build),
    "graph-break": lambda build, _: break_graphs(build),
    "copy": _afterwards(copy_output),
    "wrong": lambda build, relative_l2: lambda context: make_output_wrong(context, build(context), relative_l2),
    "stale": _afterwards(return_stale_output),
    "leak": _afterwards(leak_memory),
    "skip-work": lambda build, _: skip_work(build),
    **{kind: partial(put_into_ranks, kind) for kind in OF_RANKS},
}
