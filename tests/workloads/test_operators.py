"""Each operator by hand is the operator, and the fused one gives its result."""

from pathlib import Path

import pytest
import torch

from gpugate.catalogue import check
from gpugate.workload import Context, Workload
from workloads import operators

BY_NAME = {workload.name: workload for workload in operators.WORKLOADS}
ATTENTION, LAYER_NORM = BY_NAME["operator-attention"], BY_NAME["operator-layer-norm"]
EMBEDDING_BAG = BY_NAME["operator-embedding-bag"]


def context(workload: Workload) -> Context:
    return Context(torch.device("cpu"), items=3, seed=workload.seed, cache_dir=Path())


@pytest.mark.parametrize("workload", operators.WORKLOADS, ids=lambda workload: workload.name)
def test_the_fused_operator_agrees_with_the_one_by_hand(workload: Workload) -> None:
    check(workload)
    (fused,) = workload.optimizations
    inputs = workload.inputs(context(workload), 0)
    by_hand = workload.baseline(context(workload)).step(inputs)
    output = fused.build(context(workload)).step(inputs)
    assert float((output - by_hand).norm() / by_hand.norm()) <= fused.tolerated.relative_l2
    assert not output.equal(workload.baseline(context(workload)).step(workload.inputs(context(workload), 1)))


def test_a_token_does_not_attend_to_later_ones() -> None:
    inputs = operators.heads(context(ATTENTION), 0)
    changed = inputs.clone()
    changed[:, :, :, -1] = 0
    for attend in (operators.attention_by_hand, operators.attention_fused):
        assert attend(changed)[:, :, :-1].equal(attend(inputs)[:, :, :-1])


def test_rows_are_normalized() -> None:
    normalized = operators.layer_norm_by_hand(5 + 3 * operators.rows(context(LAYER_NORM), 0))
    assert normalized.mean(dim=-1).abs().max() < 1e-5
    assert torch.allclose(normalized.std(dim=-1, correction=0), torch.ones(3), atol=1e-4)


def test_a_bag_is_the_sum_of_its_vectors() -> None:
    workload = EMBEDDING_BAG
    side = workload.baseline(context(workload))
    same = torch.full((1, operators.IDS_PER_BAG), 7)
    other = same.clone()
    other[0, 0] = 8
    one_vector = side.step(same) - side.step(other)
    all_vectors = side.step(same) - side.step(other.fill_(8))
    assert torch.allclose(one_vector, all_vectors / operators.IDS_PER_BAG, atol=1e-3)


def test_the_shares_of_a_row_are_one_together() -> None:
    shares = operators.softmax_by_hand(operators.rows(context(LAYER_NORM), 0))
    assert torch.allclose(shares.sum(dim=-1), torch.ones(3))


def test_cross_entropy_is_small_for_the_largest_score() -> None:
    scores = torch.zeros(2, operators.CLASSES)
    scores[0, 5] = 30
    small, large = operators.cross_entropy_by_hand((scores, torch.tensor([5, 5]))).flatten().tolist()
    assert small < 1e-3 < large
