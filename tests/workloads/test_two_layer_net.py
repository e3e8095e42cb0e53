"""The two-layer net's CPU sides, its sizes, and the bookkeeping of the ring that its CUDA sides share."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpugate.catalogue import check
from gpugate.faults.fault import Fault
from gpugate.faults.mutate import apply
from gpugate.workload import TOLERANCE_BY_DTYPE, Context
from workloads.two_layer_net import SLOTS, WORKLOADS, Ring, baseline, bf16, host_inputs, inductor, net, size

CONTEXT = Context(torch.device("cpu"), items=64, seed=7, cache_dir=Path())
(WORKLOAD,) = WORKLOADS


@dataclass
class FakeSlot:
    busy: bool = False


def finish_use(slot: FakeSlot) -> None:
    slot.busy = False


def relative_l2(output: torch.Tensor, reference: torch.Tensor) -> float:
    return float((output - reference).norm() / reference.norm())


def test_can_be_measured_as_declared() -> None:
    check(WORKLOAD)


@pytest.mark.parametrize("count", [1, 2, SLOTS])
def test_ring_never_hands_out_a_busy_slot(count: int) -> None:
    ring = Ring([FakeSlot() for _ in range(count)], finish_use)
    for _ in range(3 * count):
        slot = ring.take()
        assert not slot.busy
        slot.busy = True


def test_ring_waits_for_the_slot_that_it_hands_out_and_for_no_other() -> None:
    waited: list[str] = []
    ring = Ring(["a", "b", "c"], waited.append)
    taken = [ring.take() for _ in range(7)]
    assert taken == waited == ["a", "b", "c", "a", "b", "c", "a"]


def test_a_slot_meets_another_input_set_every_turn() -> None:
    assert SLOTS % 2, "the engine alternates between two sets: an even ring would hide a stale output"


def test_ring_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="ring of 0 slots"):
        Ring([], finish_use)


@pytest.fixture
def no_compiler(monkeypatch) -> None:
    """Graphs run as they are, which keeps tests away from the C++ compiler; perf_tests compiles for real."""
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, examples, config_patches: graph)


@pytest.mark.parametrize(("build", "dtype"), [(inductor, "float32"), (bf16, "bfloat16")])
def test_cpu_side_agrees_with_the_baseline(build, dtype, no_compiler) -> None:
    inputs = host_inputs(CONTEXT, 0)
    before = inputs.clone()
    side = build(CONTEXT)
    reference, output = baseline(CONTEXT).step(inputs), side.step(inputs)
    assert side.engaged() is None
    assert output.shape == (64, 10)
    assert output.dtype == torch.float32
    assert relative_l2(output, reference) <= TOLERANCE_BY_DTYPE[dtype].relative_l2
    assert torch.equal(inputs, before)


def test_a_graph_break_is_noticed(no_compiler) -> None:
    side = apply(Fault("graph-break"), inductor)(CONTEXT)
    side.step(host_inputs(CONTEXT, 0))
    assert "2 graphs were compiled, not 1" in side.engaged()


def test_inputs_are_seeded_random_and_differ_from_set_to_set() -> None:
    first = host_inputs(CONTEXT, 0)
    assert first.shape == (64, 1024)
    assert first.count_nonzero() == first.numel()
    assert torch.equal(first, host_inputs(CONTEXT, 0))
    assert not torch.equal(first, host_inputs(CONTEXT, 1))
    assert not torch.equal(first, host_inputs(replace(CONTEXT, seed=8), 0))


def test_sides_share_weights_by_value_only_and_leave_the_global_seed_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first, second = net(CONTEXT), net(CONTEXT)
    assert torch.equal(torch.rand(1), expected)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
        assert one.data_ptr() != other.data_ptr()


def test_size_is_what_pytorch_counts() -> None:
    model, inputs = net(CONTEXT), host_inputs(CONTEXT, 0)
    with FlopCounterMode(display=False) as counter:
        output = model(inputs)
    tensors = [inputs, output, *model.parameters()]
    assert size(64).flops == counter.get_total_flops()
    assert size(64).bytes == sum(tensor.nbytes for tensor in tensors)
