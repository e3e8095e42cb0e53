"""Facts of single small workloads, beyond the contract of all."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpugate.workload import Context
from workloads import diffusion_step, two_layer_net
from workloads.host_preparation import EXPENSIVE, STD, checksums, factors_of_places, sample_numbers, samples_of, threads
from workloads.parts.quantized import multiply_scaled

CONTEXT = Context(torch.device("cpu"), items=8, seed=3, cache_dir=Path())


def test_the_two_layer_net_states_the_bytes_of_all_tensors_and_its_ring_is_odd() -> None:
    model, inputs = two_layer_net.net(CONTEXT), two_layer_net.host_inputs(CONTEXT, 0)
    assert two_layer_net.size(8).bytes == sum(each.nbytes for each in (inputs, model(inputs), *model.parameters()))
    assert two_layer_net.SLOTS % 2, "the engine alternates between two sets: an even ring would hide a stale output"


def test_host_preparation_states_the_bytes_read_and_written() -> None:
    one_sample = samples_of(replace(EXPENSIVE, samples=1), 3)
    assert EXPENSIVE.size.bytes == 64 * one_sample.nbytes + 16 * EXPENSIVE.new_batch().nbytes


def test_a_checksum_counts_each_value_and_its_place() -> None:
    batch = EXPENSIVE.new_batch().normal_(generator=torch.Generator().manual_seed(3))
    factors = factors_of_places(EXPENSIVE, CONTEXT.device)
    even, odd, mirrored = batch.clone(), batch.clone(), batch.flip(3).contiguous()
    even[:, 0, 0, 0] += 1 / STD  # a level of the picture
    odd[:, 0, 0, 1] += 1 / STD
    for wrong in (even, odd, mirrored):
        assert (checksums(wrong, factors) - checksums(batch, factors)).abs().min() > 1e-4


def test_a_denoiser_without_attention_is_wrong_by_three_times_each_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    run, pictures = diffusion_step.eager(CONTEXT).step, diffusion_step.noise(CONTEXT, 0)
    right = run(pictures)
    monkeypatch.setattr(diffusion_step.F, "scaled_dot_product_attention", lambda queries, *_: torch.zeros_like(queries))
    error = (run(pictures) - right).norm() / right.norm()
    assert error > 3 * max(tolerance.relative_l2 for tolerance in diffusion_step.TOLERANCES.values())


@pytest.mark.parametrize(("batches", "engaged"), [(1, "only 1 of 2 threads prepared anything"), (40, None)])
def test_idle_threads_are_no_speedup_to_be_proud_of(batches: int, engaged: str | None) -> None:
    context = replace(CONTEXT, items=batches * EXPENSIVE.batch)
    side = threads(EXPENSIVE, 2, context)
    side.step(sample_numbers(EXPENSIVE, context, 0))
    assert side.engaged() == engaged
    side.close()


def test_a_scaled_product_of_fp8_is_one_graph_for_the_compiler() -> None:
    with torch.device("meta"):  # a CPU has no kernel for a scale of each row
        values, weight = (torch.empty(rows, 64, dtype=torch.float8_e4m3fn) for rows in (32, 48))
        scales, weight_scales = torch.empty(32, 1), torch.empty(1, 48)
    product = torch.compile(multiply_scaled, backend="eager", fullgraph=True)
    assert product(values, scales, weight, weight_scales, torch.bfloat16).shape == (32, 48)
