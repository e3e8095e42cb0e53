"""The decoder of a context: with seeded weights, or with those of a folder in Hugging Face's format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gpugate.workload import Context
from workloads.llm import model as llm_model
from workloads.llm.model import CONTEXT_TOKENS, Decoder, Shape, make_decoder

CHECKPOINT_SETTING = {"llm-checkpoint": "a folder with config.json and *.safetensors of a Llama of the same shape"}
# What this decoder computes: a config with other values is of another model.
FIXED = {
    "architectures": ["LlamaForCausalLM"],
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
}
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def decoder(context: Context, context_tokens: int = CONTEXT_TOKENS, dtype: torch.dtype | None = None) -> Decoder:
    """A new decoder on the context's device, in its precision or in `dtype`.

    Raises ValueError, in one sentence that names the folder, for a checkpoint that does not fit.
    """
    own, precision = context.settings.get("llm-checkpoint"), dtype or llm_model.dtype(context)
    if own is None:
        return make_decoder(llm_model.shape(context), context_tokens, context.seed, precision, context.device)
    return load(Path(own), llm_model.shape(context), context_tokens, precision, context.device)


def load(folder: Path, wanted: Shape, context_tokens: int, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Reads a checkpoint of the shape `wanted`; raises ValueError, in one sentence, where something does not fit."""
    try:
        from safetensors.torch import load_file

        read = _shape(json.loads((folder / "config.json").read_text()), wanted, context_tokens)
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
    return model.to(dtype).eval().requires_grad_(False)


def _shape(config: dict[str, Any], wanted: Shape, context_tokens: int) -> Shape:
    """The shape of a config: older ones have `rope_theta` and `rope_scaling`, newer ones both as `rope_parameters`."""
    rope = {**config, **(config.get("rope_parameters") or config.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    read = Shape(
        vocabulary=config["vocab_size"],
        width=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        hidden=config["intermediate_size"],
        rope_base=float(rope["rope_theta"]),
        rope_factor=float(rope["factor"]) if kind == "llama3" else 1.0,
        norm_eps=config.get("rms_norm_eps", 1e-6),
    )
    stated = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, **rope, "rope_type": kind}
    for name, value in {**FIXED, **(LLAMA3_ROPE if kind == "llama3" else {"rope_type": "default"})}.items():
        if stated.get(name) != value:
            raise ValueError(f"config.json has {name} {stated.get(name)}, and this decoder has {value}")
    if config["max_position_embeddings"] < context_tokens:
        raise ValueError(f"config.json allows {config['max_position_embeddings']} tokens of {context_tokens}")
    expected = replace(wanted, rope_base=read.rope_base, rope_factor=read.rope_factor, norm_eps=read.norm_eps)
    if read != expected:
        raise ValueError(f"config.json is of {read}, and the workload's sizes are of {expected}")
    return read
