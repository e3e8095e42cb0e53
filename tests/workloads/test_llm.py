"""Faults that the checks of the language model see, the kernels in Triton, and the weights of a checkpoint."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gpugate.workload import Context, DisprovedError, Optimization, Side
from tests.support.code_in_child import interpret
from tests.support.small_models import TINY, small_models
from workloads import llm, llm_serving
from workloads.llm import context as llm_context
from workloads.llm import model as llm_model
from workloads.llm import rungs, speculative
from workloads.llm.context import CONTEXT_TOKENS, LLAMA3_ROPE, MIDDLE, decoder, load, token
from workloads.llm.model import Decoder, PromptByHand, Shape, frequencies, make_decoder
from workloads.parts.quantized import Int8Linear, replace_linear_layers

CPU = torch.device("cpu")
SMALL = next(workload for workload in llm.WORKLOADS if workload.name == "llm-decode-small")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Context:
    """The context of two sequences, whose decoder has the shape TINY."""
    monkeypatch.setattr(llm_context, "SMALL", TINY)
    return Context(CPU, items=2, seed=5, cache_dir=Path())


def logits(context: Context, side: Side) -> Tensor:
    return torch.stack([side.step(token(context, index)).clone() for index in (0, 3, 1, 2)])


@pytest.mark.parametrize("rung", [rung for rung in SMALL.optimizations if rung.proofs], ids=lambda rung: rung.name)
def test_the_proof_compares_a_rung_with_the_whole_text(tiny: Context, rung: Optimization) -> None:
    assert rung.proofs[0].show(tiny).startswith("logits within ")


ATTENTION, INDEX_COPY, FORWARD = llm_model.grouped_attention, torch.Tensor.index_copy_, Decoder.forward


def next_position(model: Decoder, ids: Tensor, positions: Tensor, *others: Any, **named: Any) -> Tensor:
    return FORWARD(model, ids, positions + (ids.shape[1] == 1), *others, **named)


def no_write_of_a_step(memory: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return memory if len(index) == 1 else INDEX_COPY(memory, dim, index, source)


def last_token_hidden(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    narrower = seen & seen.roll(-1, dims=1)
    return ATTENTION(queries, keys, values, narrower | (seen.sum(dim=1, keepdim=True) == 1) & seen)


def a_token_too_many(queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    return ATTENTION(queries, keys, values, seen | seen.roll(1, dims=1))


# By fault, the least precise type in which the comparison sees it.
FAULTS: dict[Callable[..., Tensor], tuple[object, str, str]] = {
    no_write_of_a_step: (torch.Tensor, "index_copy_", "fp8"),
    next_position: (Decoder, "forward", "fp8"),
    last_token_hidden: (llm_model, "grouped_attention", "bfloat16"),
    a_token_too_many: (llm_model, "grouped_attention", "fp8"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_comparison_and_the_proof_see_a_fault_of_a_cache(
    tiny: Context, monkeypatch: pytest.MonkeyPatch, fault: Callable[..., Tensor]
) -> None:
    owner, name, seen_in = FAULTS[fault]
    expected = logits(tiny, rungs.growing(tiny))
    monkeypatch.setattr(owner, name, fault)
    off = logits(tiny, rungs.static(tiny)) - expected
    assert off.norm() / expected.norm() > llm.TOLERANCE[seen_in].relative_l2
    with pytest.raises(DisprovedError, match="logits differ from those of the whole text in FP32"):
        rungs.compare_with_fp32(rungs.static, llm.ROUNDING, tiny)


def test_a_rung_that_is_not_compiled_or_not_in_int8_says_so(tiny: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda work, **options: work)
    assert rungs.compiled(tiny).engaged() == "0 graphs were compiled, not 1: graph breaks or recompilations"
    monkeypatch.setattr(rungs, "replace_linear_layers", lambda *_: None)
    said = rungs.int8(tiny).engaged()
    assert re.fullmatch(r"layers.0.self_attn.q_proj, .*, lm_head: the weights are not in int8", said or "")


def test_the_bytes_of_a_token_are_those_of_the_matrices_and_the_cache(tiny: Context) -> None:
    def stored(narrow: bool) -> int:
        model, caches = decoder(tiny), rungs.make_static_caches(tiny, tiny.items)
        if narrow:
            replace_linear_layers(model, Int8Linear)
        read = sum(part.nbytes for name, part in model.state_dict().items() if name != "embed_tokens.weight")
        cached = sum(cache.keys.nbytes + cache.values.nbytes for cache in caches)
        return read + cached * MIDDLE // CONTEXT_TOKENS

    scales = 2 * (TINY.layers * (2 * TINY.width + 2 * TINY.kv_width + 2 * TINY.hidden + TINY.width) + TINY.vocabulary)
    norms = 4 * TINY.width * (2 * TINY.layers + 1)
    assert stored(narrow=False) == llm.bytes_of_step(TINY, 4, tiny.items) + norms
    assert stored(narrow=True) == llm.bytes_of_step(TINY, 4, tiny.items, narrow=TINY.weights) + norms + scales


@pytest.mark.parametrize(("right", "checks"), [(True, 2), (False, speculative.SPAN_TOKENS)])
def test_the_model_checks_all_drafts_in_one_step(
    tiny: Context, monkeypatch: pytest.MonkeyPatch, right: bool, checks: int
) -> None:
    side, counted, real = speculative.speculative(tiny), list[int](), speculative.pick_likeliest
    monkeypatch.setattr(speculative, "pick_likeliest", lambda logits: counted.append(logits.shape[1]) or real(logits))
    side.step(speculative.span(tiny, 2)._replace(right=torch.full((speculative.SPAN_TOKENS,), right)))
    assert len(counted) == checks


# One process for both: Triton's interpreter must be chosen before Triton is imported, which takes seconds.
INTERPRETED = """
from dataclasses import replace
from pathlib import Path
import torch
from gpugate.machine import children
from gpugate.workload import Context
from tests.support.small_models import small_models
from torch.nn.functional import scaled_dot_product_attention
from workloads.llm import context as llm_context, gemv, rungs
from workloads.llm.context import token
from workloads.llm.paged_attention import attend

context = Context(torch.device("cpu"), items=1, seed=5, cache_dir=Path(), capture_graphs=False)
with small_models():
    llm_context.SMALL = replace(llm_context.SMALL, layers=1)
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
table = torch.randperm(16, generator=random).view(2, 8)
own = [pages[table].transpose(1, 2).flatten(2, 3) for pages in (keys, values)]
for ends in (torch.tensor([70]), torch.tensor([70, 37])):  # of all texts, or of each text
    found = attend(queries, keys, values, table, ends, splits=4)
    seen = torch.arange(128) <= ends[:, None, None, None]
    wanted = scaled_dot_product_attention(queries, *own, attn_mask=seen, enable_gqa=True)
    children.parent.send(float((found - wanted).abs().max()))
"""


@pytest.mark.usefixtures("warm_children")
def test_the_kernels_in_triton_compute_what_the_reference_does() -> None:
    """Attention reads pages where they lie, up to the newest token: the last of four parts of the text is empty, and
    the one before it ends in a page."""
    pytest.importorskip("triton")
    *of_types, one_end_off, own_ends_off = interpret(INTERPRETED)
    for dtype, (error, engaged, other_types) in zip(("float32", "int8", "fp8"), of_types, strict=True):
        assert error < llm.TOLERANCE[dtype].relative_l2
        assert engaged is None
        assert re.fullmatch(r"\d matrices have weights that are not torch.int32", other_types)
    assert max(one_end_off, own_ends_off) < 1e-5


@pytest.mark.parametrize("plan", [{"waits_for_all": True}, {}, {"chunked": True}, {"chunked": True, "shares": True}])
def test_a_server_computes_what_the_decoder_does_with_each_text_alone(plan: dict[str, bool]) -> None:
    with small_models():
        context = Context(CPU, items=1, seed=5, cache_dir=Path())
        server = llm_serving.Server(context, **{"waits_for_all": False, "chunked": False, "shares": False, **plan})
        given = llm_serving.texts(context, 0)
        found, without_cache = server.step(given), [PromptByHand()] * TINY.layers
    for text, length, answer in zip(given, server.lengths, found, strict=True):
        ids = text[None, : server.prompt + length - 1]
        expected = server.model(ids, torch.arange(ids.shape[1]), without_cache, last_only=True)[0, 0]
        assert torch.allclose(answer, expected, atol=1e-4)


# --- a checkpoint in Hugging Face's format ----------------------------------------------------------------------------

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": True,
    "vocab_size": TINY.vocabulary,
    "hidden_size": TINY.width,
    "num_hidden_layers": TINY.layers,
    "num_attention_heads": TINY.heads,
    "num_key_value_heads": TINY.kv_heads,
    "intermediate_size": TINY.hidden,
    "max_position_embeddings": 512,
    "rope_theta": 500_000.0,
    "rms_norm_eps": 1e-5,
}


def write(folder: Path, shards: int = 1, **changed: Any) -> dict[str, Tensor]:
    """Writes a checkpoint; returns its tensors."""
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changed}))
    state = make_decoder(TINY, 8, 9, torch.bfloat16, CPU).state_dict()
    tensors = {f"model.{name}": value for name, value in state.items() if name != "lm_head.weight"}
    for shard in range(shards):
        names = sorted(tensors)[shard::shards]
        save_file({name: tensors[name] for name in names}, folder / f"model-{shard}.safetensors")
    return tensors


@pytest.mark.parametrize("shards", [1, 2])
def test_the_weights_are_those_of_the_files(tmp_path: Path, tiny: Context, shards: int) -> None:
    written = write(tmp_path, shards)
    model = decoder(replace(tiny, settings={"llm-checkpoint": str(tmp_path)}))
    for name, value in written.items():
        assert model.state_dict()[name.removeprefix("model.")].equal(value.float())
    assert model.lm_head.weight is model.embed_tokens.weight


def test_stretched_positions_keep_short_waves_and_lengthen_long_ones(tmp_path: Path) -> None:
    plain, stretched = (frequencies(Shape(97, 128, 1, 1, 1, 48, rope_factor=factor)) for factor in (1.0, 32.0))
    assert stretched[0] == plain[0] == 1
    assert float(stretched[-1]) == pytest.approx(float(plain[-1]) / 32)
    scaling = {"rope_type": "llama3", "factor": 32.0, **LLAMA3_ROPE}
    write(tmp_path, rope_scaling=scaling, rms_norm_eps=1e-3)
    model = load(tmp_path, TINY, 256, torch.float32, CPU)
    write(tmp_path, rope_theta=None, rope_parameters={"rope_theta": 500_000.0, **scaling})
    assert load(tmp_path, TINY, 256, torch.float32, CPU).cosines.equal(model.cosines)
    assert not model.cosines.equal(make_decoder(TINY, 256, 0, torch.float32, CPU).cosines)
    assert model.norm.eps == 1e-3


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            {"architectures": ["MistralForCausalLM"]},
            r"has architectures \['MistralForCausalLM'\]",
        ),
        ({"hidden_size": 64}, "has hidden_size 64, and this decoder has 32"),
        ({"tie_word_embeddings": False}, "has tie_word_embeddings False"),
        ({"max_position_embeddings": 128}, "allows 128 tokens of 256"),
        ({"hidden_act": "gelu"}, "has hidden_act gelu"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8, **LLAMA3_ROPE, "high_freq_factor": 2.0}}, "factor 2.0"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "has rope_type yarn, and this decoder has default"),
        ({}, "Missing key"),
    ],
)
def test_another_checkpoint_is_refused_in_one_sentence(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    write(tmp_path, shards=2, **changed)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(ValueError, match=f"^--perf-set llm-checkpoint={tmp_path} cannot be used .*{problem}") as raised:
        load(tmp_path, TINY, 256, torch.float32, CPU)
    assert "\n" not in str(raised.value)
