"""Prompts and batches give the logits of their first side."""

from dataclasses import replace

import pytest

from gpugate.workload import Context, Optimization
from workloads import llm

BY_NAME = {workload.name: workload for workload in llm.WORKLOADS}
PROMPT, BATCHES = BY_NAME["llm-prefill-small"], BY_NAME["llm-batch-small"]


def relative_l2(context: Context, workload_name: str, rung: Optimization) -> float:
    workload = BY_NAME[workload_name]
    inputs, others = (workload.inputs(context, index) for index in (0, 1))
    first, side = workload.baseline(context), rung.build(context)
    expected = first.step(inputs).clone()
    assert float((first.step(others) - expected).norm() / expected.norm()) > 0.1
    side.step(others)
    assert side.engaged() is None
    return float((side.step(inputs) - expected).norm() / expected.norm())


@pytest.mark.parametrize("rung", PROMPT.optimizations, ids=lambda rung: rung.name)
def test_a_prompt_has_the_logits_of_attention_by_hand(tiny: Context, rung: Optimization) -> None:
    assert relative_l2(replace(tiny, items=24), PROMPT.name, rung) <= rung.tolerated.relative_l2


@pytest.mark.parametrize("rung", BATCHES.optimizations, ids=lambda rung: rung.name)
def test_a_batch_has_the_logits_of_its_sequences_alone(tiny: Context, rung: Optimization) -> None:
    assert relative_l2(tiny, BATCHES.name, rung) <= rung.tolerated.relative_l2
