"""The counting pass on a real GPU: programs whose launches, graphs, kernels and copies are known by construction."""

from collections.abc import Callable
from pathlib import Path

import torch

from gpugate.measurement import counters
from gpugate.measurement.device_timer import timer_for
from gpugate.measurement.sides import build_side
from gpugate.workload import Context, Side

STEPS = 5
VALUES = 1024
STEP_MS = 0.1  # about the time of a step here: it bounds how many steps a round has


def count_sides(*builds: Callable[[Context], Side]) -> list[dict[str, float]]:
    """Returns the counters of each side, from one profile."""
    torch.cuda.set_device(0)
    context = Context(torch.device("cuda", 0), items=1, seed=0, cache_dir=Path())
    inputs = [torch.randn(VALUES) for _ in range(2)]
    sides = [build_side(build.__name__, build, context, inputs[0]) for build in builds]
    seen = counters.count(sides, inputs, [STEPS] * len(sides))
    timer, pairs = timer_for(context.device, "device"), zip(sides, seen, strict=True)
    return [counters.collect(side, activity, inputs, timer, STEP_MS) for side, activity in pairs]


def three_kernels(context: Context) -> Side:
    value = torch.randn(VALUES, device=context.device)
    return Side(lambda inputs: value.add_(1.0).mul_(0.5).sub_(0.25))


def three_kernels_in_a_graph(context: Context) -> Side:
    value = torch.randn(VALUES, device=context.device)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        value.add_(1.0).mul_(0.5).sub_(0.25)

    def step(inputs: torch.Tensor) -> torch.Tensor:
        graph.replay()
        return value

    return Side(step)


def pageable_round_trip(context: Context) -> Side:
    return Side(lambda inputs: inputs.to(context.device).cpu())


def pinned_round_trip(context: Context) -> Side:
    there = torch.empty(VALUES, pin_memory=True)
    back = torch.empty(VALUES, pin_memory=True)

    def step(inputs: torch.Tensor) -> torch.Tensor:
        there.copy_(inputs)
        return back.copy_(there.to(context.device, non_blocking=True), non_blocking=True)

    return Side(step, finish=torch.cuda.synchronize)


def test_a_graph_launches_once_what_eager_launches_kernel_by_kernel() -> None:
    eager, graph = count_sides(three_kernels, three_kernels_in_a_graph)
    assert (eager["kernel_launches"], eager["graph_launches"], eager["kernels"]) == (3, 0, 3)
    assert (graph["kernel_launches"], graph["graph_launches"], graph["kernels"]) == (0, 1, 3)
    assert min(eager["kernel_ms"], graph["kernel_ms"]) > 0


def test_copies_are_told_apart_by_direction_and_by_memory() -> None:
    pageable, pinned = count_sides(pageable_round_trip, pinned_round_trip)
    for found in (pageable, pinned):
        assert (found["host_to_device_copies"], found["device_to_host_copies"]) == (1, 1)
        assert (found["host_to_device_bytes"], found["device_to_host_bytes"]) == (4 * VALUES, 4 * VALUES)
        assert (found["kernels"], found["kernel_ms"], found["device_to_device_ms"]) == (0, 0, 0)
        assert min(found["host_to_device_ms"], found["device_to_host_ms"]) > 0
    assert (pageable["pageable_copies"], pinned["pageable_copies"]) == (2, 0)
    assert pageable["synchronizing_calls"] == 2
    assert pinned["synchronizing_calls"] == 0


def test_counts_repeat_exactly_from_profile_to_profile() -> None:
    """A second profile right after the first sees everything, though the profiler detaches in between."""
    names = ("kernel_launches", "graph_launches", "kernels", "host_to_device_copies", "synchronizing_calls")
    first, second = (count_sides(three_kernels, pageable_round_trip) for _ in range(2))
    for before, after in zip(first, second, strict=True):
        assert {name: before[name] for name in names} == {name: after[name] for name in names}
