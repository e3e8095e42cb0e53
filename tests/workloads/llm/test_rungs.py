"""Each check of the ladder catches the faults that it is for."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gpugate.errors import DisprovedError
from gpugate.workload import Context, Optimization, Side
from tests.support.code_in_child import interpret
from tests.support.small_models import TINY
from workloads import llm
from workloads.llm import caches, rungs
from workloads.llm.model import CONTEXT_TOKENS, MIDDLE, Decoder, token
from workloads.llm.quantized import quantize
from workloads.llm.rungs import compare_with_fp32

SMALL = next(workload for workload in llm.WORKLOADS if workload.name == "llm-decode-small")


def logits(context: Context, side: Side) -> Tensor:
    return torch.stack([side.step(token(context, index)).clone() for index in (0, 3, 1, 2)])


def difference(context: Context, side: Side, expected: Tensor) -> float:
    """The relative L2 difference over four tokens."""
    return float((logits(context, side) - expected).norm() / expected.norm())


@pytest.mark.parametrize("rung", [rung for rung in SMALL.optimizations if rung.proofs], ids=lambda rung: rung.name)
def test_the_proof_compares_a_rung_with_the_whole_text(tiny: Context, rung: Optimization) -> None:
    assert rung.proofs[0].show(tiny).startswith("logits within ")


def no_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps write nothing; the text before them is cached."""
    real = torch.Tensor.index_copy_

    def wrong(tensor: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
        return tensor if len(index) == 1 else real(tensor, dim, index, source)

    monkeypatch.setattr(torch.Tensor, "index_copy_", wrong)


def next_position(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Decoder.forward

    def wrong(model: Decoder, ids: Tensor, positions: Tensor, *others: Any, **named: Any) -> Tensor:
        return real(model, ids, positions + (ids.shape[1] == 1), *others, **named)

    monkeypatch.setattr(Decoder, "forward", wrong)


def mask_without_the_token_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    real = caches.grouped_attention

    def wrong(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        narrower = seen & seen.roll(-1, dims=1)  # the last token that is seen is hidden
        return real(queries, keys, values, narrower | (seen.sum(dim=1, keepdim=True) == 1) & seen)

    monkeypatch.setattr(caches, "grouped_attention", wrong)


def mask_with_a_token_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    real = caches.grouped_attention

    def wrong(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        return real(queries, keys, values, seen | seen.roll(1, dims=1))

    monkeypatch.setattr(caches, "grouped_attention", wrong)


def dropped_head(monkeypatch: pytest.MonkeyPatch) -> None:
    real = caches.grouped_attention

    def wrong(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        attended = real(queries, keys, values, seen)
        attended[:, 1] = 0
        return attended

    monkeypatch.setattr(caches, "grouped_attention", wrong)


# The least precise type in which the comparison sees the fault.
SEEN_IN = {
    no_writes: "fp8",
    next_position: "fp8",
    mask_without_the_token_itself: "bfloat16",
    mask_with_a_token_too_many: "fp8",
    dropped_head: "fp8",
}


@pytest.mark.parametrize("fault", SEEN_IN)
def test_the_comparison_and_the_proof_see_a_fault_of_a_cache(
    tiny: Context, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    expected = logits(tiny, rungs.growing(tiny))
    fault(monkeypatch)
    assert difference(tiny, rungs.static(tiny), expected) > llm.TOLERANCE[SEEN_IN[fault]].relative_l2
    with pytest.raises(DisprovedError, match="logits differ from those of the whole text in FP32"):
        compare_with_fp32(rungs.static, llm.ROUNDING, tiny)


def test_a_step_that_runs_eagerly_in_secret_is_named(tiny: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda work, **options: work)
    assert rungs.compiled(tiny).engaged() == "0 graphs were compiled, not 1: the step ran eagerly or again"


def test_the_bytes_of_a_token_are_those_of_the_matrices_and_the_cache(tiny: Context) -> None:
    def stored(narrow: bool) -> int:
        model, caches_of_text = rungs.decoder(tiny), rungs.make_static_caches(tiny, tiny.items)
        if narrow:
            quantize(model)
            del model.embed_tokens  # a token reads one row of it
        read = sum(part.nbytes for name, part in model.state_dict().items() if name != "embed_tokens.weight")
        cached = sum(cache.keys.nbytes + cache.values.nbytes for cache in caches_of_text)
        return read + cached * MIDDLE // CONTEXT_TOKENS

    scales = 2 * (TINY.layers * (2 * TINY.width + 2 * TINY.kv_width + 2 * TINY.hidden + TINY.width) + TINY.vocabulary)
    norms = 4 * TINY.width * (2 * TINY.layers + 1)
    assert stored(narrow=False) == llm.bytes_of_step(TINY, 4, tiny.items) + norms
    assert stored(narrow=True) == llm.bytes_of_step(TINY, 4, tiny.items, narrow=TINY.weights) + norms + scales


def test_int8_names_matrices_that_kept_their_type(tiny: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rungs, "quantize", lambda model: None)
    problem = rungs.int8(tiny).engaged()
    assert problem is not None
    assert problem.startswith("layers.0.self_attn.q_proj, ")
    assert problem.endswith("lm_head: the weights are not in int8")


# One process for both: Triton's interpreter must be chosen before Triton is imported, which takes seconds.
INTERPRETED = """
from dataclasses import replace
from pathlib import Path
import torch
from gpugate.machine import children
from gpugate.workload import Context
from tests.support.small_models import small_models
from torch.nn.functional import scaled_dot_product_attention
from workloads.llm import gemv, model, rungs
from workloads.llm.model import token
from workloads.llm.paged_attention import attend

context = Context(torch.device("cpu"), items=1, seed=5, cache_dir=Path(), capture_graphs=False)
with small_models():
    model.SMALL = replace(model.SMALL, layers=1)
    expected = rungs.growing(context)
    wanted = [expected.step(token(context, index)).clone() for index in (0, 1)]  # the second one in one type alone
    for narrow in (None, torch.int8, torch.float8_e4m3fn):
        side = gemv.in_triton(context, narrow)
        found = [side.step(token(context, index)).clone() for index in range(1 if narrow else 2)]
        errors = [float((one - other).norm() / other.norm()) for one, other in zip(found, wanted)]
        other_types = gemv.describe_types(*side.engaged.args[:2], torch.int32)
        children.parent.send([max(errors), side.engaged(), other_types])

random = torch.Generator().manual_seed(3)
queries = torch.randn(2, 4, 1, 16, generator=random)
keys, values = (torch.randn(16, 2, 16, 16, generator=random) for _ in range(2))
table, position = torch.randperm(16, generator=random).view(2, 8), torch.tensor([70])
found = attend(queries, keys, values, table, position, splits=4)
own = [pages[table].transpose(1, 2).flatten(2, 3)[:, :, : int(position) + 1] for pages in (keys, values)]
children.parent.send(float((found - scaled_dot_product_attention(queries, *own, enable_gqa=True)).abs().max()))
"""


@pytest.mark.usefixtures("warm_children")
def test_the_kernels_in_triton_compute_what_the_reference_does() -> None:
    """Attention reads pages where they lie, up to the newest token: the last of four parts of the text is empty, and
    the one before it ends in a page."""
    pytest.importorskip("triton")
    *of_types, attention_off = interpret(INTERPRETED)
    for dtype, (error, engaged, other_types) in zip(("float32", "int8", "fp8"), of_types, strict=True):
        assert error < llm.TOLERANCE[dtype].relative_l2
        assert engaged is None
        assert re.fullmatch(r"\d matrices have weights that are not torch.int32", other_types)
    assert attention_off < 1e-5
