"""The two-layer net: its size, and the ring that its CUDA sides share."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from gpugate.workload import Context
from workloads.two_layer_net import SLOTS, Ring, host_inputs, net, size

CONTEXT = Context(torch.device("cpu"), items=64, seed=7, cache_dir=Path())


@dataclass
class FakeSlot:
    busy: bool = False


def finish_use(slot: FakeSlot) -> None:
    slot.busy = False


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


def test_the_stated_bytes_are_those_of_all_tensors() -> None:
    model, inputs = net(CONTEXT), host_inputs(CONTEXT, 0)
    assert size(64).bytes == sum(tensor.nbytes for tensor in (inputs, model(inputs), *model.parameters()))
