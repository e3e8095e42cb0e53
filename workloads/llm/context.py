"""The decoder of a context, the text that it has read, and the token that a step computes, for every rung.

The weights are seeded, or those of a folder in Hugging Face's format.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpugate.workload import Context
from workloads.llm.model import Decoder, Shape, make_decoder
from workloads.parts.random_inputs import host_generator

LLAMA_1B = Shape(vocabulary=128_256, width=2048, layers=16, heads=32, kv_heads=8, hidden=8192)  # 1.24 B weights
SMALL = Shape(vocabulary=8192, width=512, layers=6, heads=8, kv_heads=2, hidden=1408)  # 21 M weights, for a CPU

PROMPT_TOKENS, NEW_TOKENS = 128, 128
CONTEXT_TOKENS = PROMPT_TOKENS + NEW_TOKENS
MIDDLE = PROMPT_TOKENS + NEW_TOKENS // 2  # here a step reads as many keys and values as the average new token
CHECKPOINT_SETTING = {"llm-checkpoint": "a folder with config.json and *.safetensors of a Llama of the same shape"}
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def shape(context: Context) -> Shape:
    return SMALL if context.device.type == "cpu" else LLAMA_1B


def dtype(context: Context) -> torch.dtype:
    return torch.float32 if context.device.type == "cpu" else torch.bfloat16


def decoder(context: Context, context_tokens: int = CONTEXT_TOKENS, precision: torch.dtype | None = None) -> Decoder:
    """A new decoder on the context's device, in its precision or in `precision`.

    Raises ValueError, in one sentence that names the folder, for a checkpoint that does not fit.
    """
    own, size, precision = context.settings.get("llm-checkpoint"), shape(context), precision or dtype(context)
    if own is None:
        return make_decoder(size, context_tokens, context.seed, precision, context.device)
    return load(Path(own), size, context_tokens, precision, context.device)


def load(folder: Path, wanted: Shape, context_tokens: int, precision: torch.dtype, device: torch.device) -> Decoder:
    """Reads a checkpoint of the shape `wanted`; raises ValueError, in one sentence, where something does not fit."""
    try:
        from safetensors.torch import load_file

        read = _read_shape(json.loads((folder / "config.json").read_text()), wanted, context_tokens)
        files = sorted(folder.glob("*.safetensors"))
        weights = {name.removeprefix("model."): value for file in files for name, value in load_file(file).items()}
        weights["lm_head.weight"] = weights["embed_tokens.weight"]
        with device:
            model = Decoder(read, context_tokens)
        model.load_state_dict(weights)
    except ImportError as error:
        raise ValueError("--perf-set llm-checkpoint needs safetensors: pip install 'gpugate[workloads]'") from error
    except Exception as error:  # of JSON, of safetensors, or of a tensor with another name or shape
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        advice = "name the folder of a Llama of this shape"
        raise ValueError(f"--perf-set llm-checkpoint={folder} cannot be used ({said}): {advice}") from error
    return model.to(precision).eval().requires_grad_(False)


def _read_shape(config: dict[str, Any], wanted: Shape, context_tokens: int) -> Shape:
    """The wanted shape with the positions and the epsilon of the config; raises ValueError for another model.

    Older configs have `rope_theta` and `rope_scaling`, newer ones both as `rope_parameters`.
    """
    rope = {**config, **(config.get("rope_parameters") or config.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    computed = {
        **{"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True},
        **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
        **{"vocab_size": wanted.vocabulary, "hidden_size": wanted.width, "intermediate_size": wanted.hidden},
        **{"num_hidden_layers": wanted.layers, "num_attention_heads": wanted.heads},
        **{"num_key_value_heads": wanted.kv_heads},
        **(LLAMA3_ROPE if kind == "llama3" else {"rope_type": "default"}),
    }
    stated = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, **rope, "rope_type": kind}
    for name, value in computed.items():
        if stated.get(name) != value:
            raise ValueError(f"config.json has {name} {stated.get(name)}, and this decoder has {value}")
    if config["max_position_embeddings"] < context_tokens:
        raise ValueError(f"config.json allows {config['max_position_embeddings']} tokens of {context_tokens}")
    factor = float(rope["factor"]) if kind == "llama3" else 1.0
    eps = config.get("rms_norm_eps", 1e-6)
    return replace(wanted, rope_base=float(rope["rope_theta"]), rope_factor=factor, norm_eps=eps)


def draw_ids(context: Context, index: int, sequences: int, tokens: int) -> Tensor:
    """Random ids of input set `index`: int64 [sequences, tokens] on the context's device."""
    random = host_generator(context, index)
    return torch.randint(shape(context).vocabulary, (sequences, tokens), generator=random).to(context.device)


def text(context: Context, sequences: int) -> Tensor:
    """Random ids, int64 [sequences, CONTEXT_TOKENS], on the context's device, equal for all sides."""
    random = torch.Generator().manual_seed(context.seed)
    ids = torch.randint(shape(context).vocabulary, (sequences, CONTEXT_TOKENS), generator=random)
    return ids.to(context.device)


class Token(NamedTuple):
    """The tokens at one position of all sequences: ids int64 [batch, 1], and their position int64 [1].

    A growing cache needs the position on the host, other caches need it on the device.
    """

    ids: Tensor
    position: Tensor
    host_position: Tensor


def token_at(context: Context, ids: Tensor, position: int) -> Token:
    host_position = torch.tensor([position])
    return Token(ids.clone(), host_position.to(context.device, copy=True), host_position)


def token(context: Context, index: int) -> Token:
    """A random token at the position MIDDLE of each sequence: a step overwrites what the step before it has cached."""
    return token_at(context, draw_ids(context, index, context.items, 1), MIDDLE)
