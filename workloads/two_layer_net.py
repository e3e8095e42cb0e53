"""The two-layer net 1024 -> 512 -> 10: little work, so launches, copies and synchronizations dominate the step.

Inputs come from pageable host memory and outputs go back to host memory, so the whole pipeline is timed with the host
clock. The cost of a step on CUDA is the host's: an optimization removes calls and waits, never arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from gpugate.workload import Context, Contract, Limit, Needs, Optimization, Side, Size, Workload
from workloads.parts.compiled import COMPILER, compile_counted, miscount
from workloads.parts.graph_capture import recorded
from workloads.parts.random_inputs import host_generator

FEATURES, HIDDEN, CLASSES = 1024, 512, 10
BATCH = 64
# Device time of one step is two to three times the host time of the fastest side, so a few steps must be in flight at
# once. The number is odd because inputs alternate between few sets: with an even one each slot would always meet the
# same set, and an output left over from its last turn would look right.
SLOTS = 7
# The host's copy of one input is two grains of PyTorch's parallel copy; any further thread would only add waiting.
STAGING_THREADS = 2


def size(batch: int) -> Size:
    """The least work of one step.

    FLOPs: 2 per multiply-add, batch x (1024 x 512 + 512 x 10); bias and ReLU (0.1 %) are left out. Bytes: the FP32
    inputs, outputs, weights and biases, each once; the hidden activations need not leave the chip.
    """
    weights = FEATURES * HIDDEN + HIDDEN * CLASSES
    values = weights + HIDDEN + CLASSES + batch * (FEATURES + CLASSES)
    return Size(items=batch, flops=2.0 * batch * weights, bytes=4.0 * values)


def net(context: Context) -> nn.Module:
    """The seeded FP32 net on the context's device; without gradients, so no side pays for recording them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        layers = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    return layers.eval().requires_grad_(False).to(context.device)


def host_inputs(context: Context, index: int) -> Tensor:
    """Input set `index`: float32 [items, 1024] in pageable host memory, random, never zeros."""
    generator = host_generator(context, index)
    return torch.randn(context.items, FEATURES, generator=generator)


def _stream(context: Context) -> torch.cuda.Stream:
    return torch.cuda.Stream(context.device)  # type: ignore[no-untyped-call]


def _pinned(context: Context, width: int) -> Tensor:
    return torch.empty(context.items, width, pin_memory=True)


class Slot:
    """A turn of a ring: page-locked host buffers, and the event after which the device uses neither of them."""

    def __init__(self, context: Context) -> None:
        self.inputs, self.output = _pinned(context, FEATURES), _pinned(context, CLASSES)
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def take(self, inputs: Tensor) -> None:
        """Waits until the device uses the buffers of the last turn no more, and fills the input."""
        # A finished event costs a query; only an unfinished one costs a synchronizing call.
        if not self.done.query():  # type: ignore[no-untyped-call]
            self.done.synchronize()
        self.inputs.copy_(inputs)


class StagedSlot(Slot):
    """A slot whose copies run on streams of their own, with the events that order them around the compute stream."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.on_device = torch.empty(context.items, FEATURES, device=context.device)
        self.arrived, self.computed = (torch.cuda.Event() for _ in range(2))  # type: ignore[no-untyped-call]
        self.result: Tensor | None = None


class GraphSlot(Slot):
    """A slot with its whole step, copy in to copy out, on a stream of its own: `run` is one graph launch.

    Each slot captures on its own stream. cuBLAS keeps one workspace per stream, and its address is baked into a graph:
    slots captured on a shared stream would overwrite each other's partial sums when they run at once.
    """

    def __init__(self, context: Context, model: nn.Module) -> None:
        super().__init__(context)
        self.stream, inputs, output = _stream(context), self.inputs, self.output

        def whole_step() -> Tensor:
            result = model(inputs.to(context.device, non_blocking=True))
            return output.copy_(result, non_blocking=True)

        self.run = _captured(context, whole_step, self.stream)


def _captured(context: Context, work: Callable[[], object], stream: torch.cuda.Stream) -> Callable[[], object]:
    """A function that replays `work`, warmed up and captured on `stream`; `work` itself where nothing is captured."""
    if not context.capture_graphs:
        return work
    graph, _ = recorded(work, stream)
    return graph.replay


def _never_waiting(context: Context, step: Callable[[Tensor], Tensor], model: nn.Module) -> Side:
    """The side of a step that leaves waiting to `finish()`. An output is overwritten by the SLOTS-th step after it."""
    join = partial(torch.cuda.synchronize, context.device)
    return Side(step, model, finish=join, close=join)


def baseline(context: Context) -> Side:
    """Pageable copy in, eager compute, pageable copy out, a device synchronization every step."""
    model = net(context)
    if context.device.type == "cpu":
        return Side(model, model)

    def step(inputs: Tensor) -> Tensor:
        output: Tensor = model(inputs.to(context.device)).cpu()
        torch.cuda.synchronize(context.device)
        return output

    return Side(step, model)


def cuda_graph(context: Context) -> Side:
    """The compute is one graph launch; copies stay pageable and every step synchronizes."""
    model = net(context)
    device_inputs = torch.empty(context.items, FEATURES, device=context.device)
    result = torch.empty(0)

    def compute() -> None:
        nonlocal result  # captured last, it is the tensor that every replay fills
        result = model(device_inputs)

    run = _captured(context, compute, _stream(context))

    def step(inputs: Tensor) -> Tensor:
        device_inputs.copy_(inputs)
        run()
        output = result.cpu()
        torch.cuda.synchronize(context.device)
        return output

    return Side(step, model)


def no_sync(context: Context) -> Side:
    """No step waits for the device: the copies are non-blocking and only `finish()` synchronizes.

    Inputs stay pageable, which is safe: the call returns once they are staged (CUDA Runtime API, "API synchronization
    behavior"); the driver may still wait for the stream before it stages, and that cannot be removed here. Outputs go
    to page-locked buffers, since a copy to pageable memory always waits.
    """
    model = net(context)
    outputs = itertools.cycle([_pinned(context, CLASSES) for _ in range(SLOTS)])

    def step(inputs: Tensor) -> Tensor:
        result = model(inputs.to(context.device, non_blocking=True))
        output: Tensor = next(outputs).copy_(result, non_blocking=True)
        return output

    return _never_waiting(context, step, model)


def pinned_async(context: Context) -> Side:
    """A ring of page-locked buffers, a stream for each copy direction, eager compute on the caller's stream."""
    torch.set_num_threads(STAGING_THREADS)
    model = net(context)
    ring = itertools.cycle([StagedSlot(context) for _ in range(SLOTS)])
    copy_in, copy_out = _stream(context), _stream(context)

    def step(inputs: Tensor) -> Tensor:
        slot = next(ring)
        slot.take(inputs)
        compute = torch.cuda.current_stream(context.device)
        with copy_in:
            slot.on_device.copy_(slot.inputs, non_blocking=True)
        slot.arrived.record(copy_in)
        compute.wait_event(slot.arrived)
        # The slot keeps the result until its next turn, when the copy out is known to be over: the allocator cannot
        # give the memory to a later step while another stream still reads it, which is the purpose of record_stream.
        slot.result = model(slot.on_device)
        slot.computed.record(compute)
        copy_out.wait_event(slot.computed)
        with copy_out:
            slot.output.copy_(slot.result, non_blocking=True)
        slot.done.record(copy_out)
        return slot.output

    return _never_waiting(context, step, model)


def all_three(context: Context) -> Side:
    """Page-locked ring, one graph per slot with both copies inside, no synchronization per step.

    Per step the host pays one memcpy into the slot, one graph launch and one event: copies outside the graph would add
    two calls, two events and two waits. The slots' streams let several steps run on the device at once, which a
    single stream would put in a row: six small kernels fill a few of its multiprocessors for longer than the host
    needs to launch the next step. The memcpy is the largest part left.
    """
    torch.set_num_threads(STAGING_THREADS)
    model = net(context)
    ring = itertools.cycle([GraphSlot(context, model) for _ in range(SLOTS)])

    def step(inputs: Tensor) -> Tensor:
        slot = next(ring)
        slot.take(inputs)
        with slot.stream:
            slot.run()
        slot.done.record(slot.stream)
        return slot.output

    return _never_waiting(context, step, model)


def inductor(context: Context) -> Side:
    """torch.compile, with the ReLU between the matrix products fused into one loop over the hidden layer."""
    model = net(context)
    graphs: list[bool] = []
    # A parallel region costs more than the 32,768-element ReLU gains; this is the grain that eager PyTorch uses.
    step = compile_counted(lambda inputs: model(inputs), graphs, {"cpp.min_chunk_size": 32768})
    return Side(step, model, engaged=partial(miscount, graphs))


def bf16(context: Context) -> Side:
    """Weights and activations in bfloat16; inputs and outputs stay float32."""
    model = net(context).to(torch.bfloat16)
    return Side(lambda inputs: model(inputs.to(torch.bfloat16)).float(), model)


def _engaged(*limits: Limit) -> dict[str, Contract]:
    return {"cuda": Contract(engaged=limits)}


GRAPH = Limit("graph_launches", at_least=1)
PINNED = Limit("pageable_copies", at_most=0)
NO_SYNC = Limit("synchronizing_calls", at_most=0)  # the baseline waits three times a step
RARE_SYNC = Limit("synchronizing_calls", at_most=0.5)  # a ring waits only when every slot is in flight
BOTH_COPIES = (Limit("host_to_device_copies", at_least=1), Limit("device_to_host_copies", at_least=1), PINNED)
# Alone, each change leaves the other two thirds of the host's time in place. Asynchronous copies gain 1.22x to 1.30x on
# an H100, and 1.05x to 1.09x on an H200.
FEWER_CALLS = {"sm_90": 1.2, "cuda": 1.0}
H100 = "nvidia-h100-80gb-hbm3"
AVX512_BF16 = Needs(cpu_flags=("avx512_bf16",), install="run it on a CPU with AVX-512 BF16 instructions")

LIBRARY_IS_FASTER = (
    "two matrix products leave a compiler nothing to win, and where a CPU has matrix instructions its library uses them"
)

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="two-layer-net",
        baseline=baseline,
        inputs=host_inputs,
        sizes={"cuda": size(BATCH), "cpu": size(BATCH)},
        timing="pipeline",
        cold=False,  # inputs arrive over the bus in every step: enough sets to flush L2 would only time the CPU's DRAM
        optimizations=(
            Optimization("cuda-graph", cuda_graph, {H100: 1.2, "sm_90": 1.5, "cuda": 1.0}, contract=_engaged(GRAPH)),
            Optimization("no-sync", no_sync, FEWER_CALLS, contract=_engaged(NO_SYNC)),
            Optimization(
                "pinned-async",
                pinned_async,
                {H100: 1.04, "cuda": 1.0},
                contract=_engaged(*BOTH_COPIES, Limit("streams", at_least=3), RARE_SYNC),
            ),
            Optimization(
                "all", all_three, {"sm_90": 4.64, "cuda": 2.0}, contract=_engaged(GRAPH, *BOTH_COPIES, RARE_SYNC)
            ),
            # 0.95x on two idle cores without matrix instructions, 0.77x to 0.83x on two with AMX.
            Optimization("inductor", inductor, {"cpu": 0.6}, needs=COMPILER, why=LIBRARY_IS_FASTER),
            Optimization("bf16", bf16, {"cpu": 1.2}, dtype="bfloat16", needs=AVX512_BF16),
        ),
    ),
)
