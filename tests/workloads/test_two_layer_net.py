"""The two-layer net: its size, and the length of the ring that its CUDA sides share."""

from pathlib import Path

import torch

from gpugate.workload import Context
from workloads.two_layer_net import SLOTS, host_inputs, net, size

CONTEXT = Context(torch.device("cpu"), items=64, seed=7, cache_dir=Path())


def test_a_slot_meets_another_input_set_every_turn() -> None:
    assert SLOTS % 2, "the engine alternates between two sets: an even ring would hide a stale output"


def test_the_stated_bytes_are_those_of_all_tensors() -> None:
    model, inputs = net(CONTEXT), host_inputs(CONTEXT, 0)
    assert size(64).bytes == sum(tensor.nbytes for tensor in (inputs, model(inputs), *model.parameters()))
