"""The decoder computes what its formulas say, and its numbers are those of its weights."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.small_models import TINY
from workloads import llm
from workloads.llm.caches import PromptByHand
from workloads.llm.model import LLAMA_1B, SMALL, Block, Decoder, Shape, frequencies, make_decoder

CPU = torch.device("cpu")


def normed(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + TINY.norm_eps).sqrt()


def block_by_loops(block: Block, x: torch.Tensor) -> torch.Tensor:
    """One block for one sequence [tokens, width], head by head and token by token."""
    attention, mlp = block.self_attn, block.mlp
    angles = torch.outer(torch.arange(len(x)), TINY.rope_base ** -(torch.arange(0, TINY.head, 2) / TINY.head))
    waves = torch.polar(torch.ones_like(angles), angles)  # [tokens, head / 2]

    def rotated(part: torch.Tensor) -> torch.Tensor:
        pairs = torch.complex(part[:, : TINY.head // 2], part[:, TINY.head // 2 :]) * waves
        return torch.cat((pairs.real, pairs.imag), dim=1)

    heads = []
    for head in range(TINY.heads):
        shared = head // (TINY.heads // TINY.kv_heads)
        rows, shared_rows = (slice(number * TINY.head, (number + 1) * TINY.head) for number in (head, shared))
        q = rotated(normed(x) @ attention.q_proj.weight[rows].T)
        k = rotated(normed(x) @ attention.k_proj.weight[shared_rows].T)
        v = normed(x) @ attention.v_proj.weight[shared_rows].T
        shares = [torch.softmax(k[: at + 1] @ q[at] / TINY.head**0.5, dim=0) for at in range(len(x))]
        heads.append(torch.stack([share @ v[: len(share)] for share in shares]))
    x = x + torch.cat(heads, dim=1) @ attention.o_proj.weight.T
    hidden = F.silu(normed(x) @ mlp.gate_proj.weight.T) * (normed(x) @ mlp.up_proj.weight.T)
    return x + hidden @ mlp.down_proj.weight.T


def test_the_logits_are_those_of_the_formulas() -> None:
    model = make_decoder(TINY, 12, 3, torch.float32, CPU)
    ids = torch.randint(TINY.vocabulary, (1, 12), generator=torch.Generator().manual_seed(1))
    x = model.embed_tokens.weight[ids[0]]
    for block in model.layers:
        x = block_by_loops(block, x)
    expected = normed(x) @ model.embed_tokens.weight.T
    logits = model(ids, torch.arange(12), [PromptByHand()] * TINY.layers)
    assert torch.allclose(logits[0], expected, rtol=1e-4, atol=1e-5)
    last = model(ids, torch.arange(12), [PromptByHand()] * TINY.layers, last_only=True)
    assert torch.allclose(last[:, 0], logits[:, -1], atol=1e-6)


def test_stretched_positions_keep_short_waves_and_lengthen_long_ones() -> None:
    plain, stretched = (frequencies(Shape(97, 128, 1, 1, 1, 48, rope_factor=factor)) for factor in (1.0, 32.0))
    assert stretched[0] == plain[0] == 1
    assert float(stretched[-1]) == pytest.approx(float(plain[-1]) / 32)
    ratios = plain / stretched
    assert ratios.diff().min() >= 0


@pytest.mark.parametrize(("shape", "bytes_per_value", "tokens"), [(SMALL, 4, 192), (LLAMA_1B, 2, 192)])
def test_the_size_of_a_step_counts_weights_and_cache_once(shape: Shape, bytes_per_value: int, tokens: int) -> None:
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in Decoder(shape, 8).parameters())
    cached = 2 * shape.layers * tokens * shape.kv_heads * shape.head
    one, sixteen = (llm.decoding_size(shape, bytes_per_value, batch) for batch in (1, 16))
    assert one.bytes == pytest.approx(bytes_per_value * (weights + cached), rel=1e-3)
    assert sixteen.bytes == pytest.approx(bytes_per_value * (weights + 16 * cached), rel=1e-3)
    assert sixteen.flops == 16 * one.flops
    assert one.flops == pytest.approx(2 * weights + 4 * shape.layers * tokens * shape.width, rel=1e-3)
    prompt = llm.prompt_size(shape, bytes_per_value, 256)
    assert prompt.flops < 256 * one.flops
    assert prompt.flops > 256 * 2 * (weights - shape.vocabulary * shape.width)
