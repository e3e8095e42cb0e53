"""Each rung decodes the same tokens, and each check catches the faults that it is for."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpugate.catalogue import check
from gpugate.errors import DisprovedError
from gpugate.workload import Context, Optimization, Side, Workload
from workloads import llm
from workloads.llm import caches, rungs
from workloads.llm.proofs import compare_with_fp32
from workloads.llm.quantized import QuantizedLinear
from workloads.llm.tokens import Token, token, token_at

SMALL = next(workload for workload in llm.WORKLOADS if workload.name == "llm-decode-small")
STATIC, INT8 = SMALL.optimization("static"), SMALL.optimization("int8")


@pytest.mark.parametrize("workload", llm.WORKLOADS, ids=lambda workload: workload.name)
def test_can_be_measured_as_declared(workload: Workload) -> None:
    check(workload)


def difference(context: Context, build: Callable[[Context], Side]) -> float:
    """The relative L2 difference of logits from the growing cache's, over four tokens in another order."""
    alone, side = rungs.growing(context), build(context)
    inputs = [token(context, index) for index in (0, 3, 1, 2)]
    expected, logits = (torch.stack([one.step(token).clone() for token in inputs]) for one in (alone, side))
    return float((logits - expected).norm() / expected.norm())


@pytest.mark.parametrize("rung", SMALL.optimizations, ids=lambda rung: rung.name)
def test_a_rung_gives_the_logits_of_the_growing_cache(tiny: Context, rung: Optimization) -> None:
    built: list[Side] = []

    def build(context: Context) -> Side:
        built.append(rung.build(context))
        return built[0]

    assert difference(tiny, build) <= rung.tolerated.relative_l2
    assert built[0].engaged() is None


@pytest.mark.parametrize("rung", [rung for rung in SMALL.optimizations if rung.proofs], ids=lambda rung: rung.name)
def test_the_proof_compares_a_rung_with_the_whole_text(tiny: Context, rung: Optimization) -> None:
    assert rung.proofs[0].show(tiny).startswith("logits within ")


def no_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "index_copy_", lambda tensor, dim, index, source: tensor)


def next_position(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rungs.token_at

    def wrong(context: Context, position: int) -> Token:
        return real(context, position)._replace(position=torch.tensor([(position + 1) % 256]))

    monkeypatch.setattr(rungs, "token_at", wrong)


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


@pytest.mark.parametrize(
    "fault", [no_writes, next_position, mask_without_the_token_itself, mask_with_a_token_too_many, dropped_head]
)
def test_the_comparison_and_the_proof_see_a_fault_of_a_cache(
    tiny: Context, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]
) -> None:
    def broken(context: Context) -> Side:
        with monkeypatch.context() as patch:
            fault(patch)
            side = rungs.static(context)
            tokens = [token(context, index) for index in range(4)]
            logits = {int(one.host_position): side.step(one).clone() for one in tokens}
        return Side(lambda one: logits.get(int(one.host_position), side.step(one)))

    assert difference(tiny, broken) > 10 * STATIC.tolerated.relative_l2
    with pytest.raises(DisprovedError, match="logits differ from those of the whole text in FP32"):
        compare_with_fp32(broken, llm.ROUNDING, tiny)


def test_a_cache_that_grows_twice_is_seen(tiny: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    real = caches.GrowingCache.attend

    def twice(cache: caches.GrowingCache, queries: Tensor, keys: Tensor, values: Tensor, positions: Tensor) -> Tensor:
        real(cache, queries, keys, values, positions)
        cache.length += 1
        return real(cache, queries, keys, values, positions + 1)

    monkeypatch.setattr(caches.GrowingCache, "attend", twice)
    assert difference(tiny, rungs.static) > 10 * STATIC.tolerated.relative_l2


def test_a_wrong_scale_of_int8_is_seen(tiny: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(context: Context) -> Side:
        real = QuantizedLinear.__init__

        def wrong(part: QuantizedLinear, linear: torch.nn.Linear, dtype: torch.dtype) -> None:
            real(part, linear, dtype)
            part.scale *= 1 + 0.3 * (torch.arange(len(part.scale)) % 2)

        with monkeypatch.context() as patch:
            patch.setattr(QuantizedLinear, "__init__", wrong)
            return rungs.int8(context)

    assert difference(tiny, scaled) > 2 * INT8.tolerated.relative_l2


def test_a_step_that_runs_eagerly_in_secret_is_named(tiny: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda work, **options: work)
    assert rungs.compiled(tiny).engaged() == "0 graphs were compiled, not 1: the step ran eagerly or again"


def test_int8_names_matrices_that_kept_their_type(tiny: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rungs, "quantize", lambda model, dtype: None)
    problem = rungs.int8(tiny).engaged()
    assert problem is not None
    assert problem.startswith("layers.0.self_attn.q_proj, ")
    assert problem.endswith("lm_head: the weights are not torch.int8")


def test_the_likeliest_tokens_are_equal_in_one_precision(tiny: Context) -> None:
    def likeliest(side: Side) -> list[int]:
        tokens = [side.step(token_at(tiny, position)).argmax(dim=-1) for position in range(128, 192)]
        return torch.cat(tokens).tolist()

    found = likeliest(rungs.growing(tiny))
    assert found == likeliest(rungs.static(tiny)) == likeliest(rungs.paged(tiny))
    assert len(set(found)) > 32


def test_the_page_about_workloads_shows_the_code_that_runs() -> None:
    page = Path(__file__).parents[3] / "docs/workload.md"
    shown = re.search(r"# workloads/llm/rungs.py\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    source = Path(rungs.__file__).read_text(encoding="utf-8")
    for part in shown[1].strip().split("\n\n\n"):
        assert part in source
