"""The decoder of a context: with seeded weights, or with those of a folder in Hugging Face's format."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpugate.workload import Context
from workloads.llm import tokens
from workloads.llm.model import Decoder, Shape, make_decoder

CHECKPOINT_SETTING = {"llm-checkpoint": "a folder with config.json and *.safetensors of a Llama of the same shape"}
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"


def decoder(context: Context, context_tokens: int = tokens.CONTEXT_TOKENS, dtype: torch.dtype | None = None) -> Decoder:
    """A new decoder on the context's device, in its precision or in `dtype`.

    Raises ValueError, in one sentence that names the folder, for a checkpoint that does not fit.
    """
    own, precision = context.settings.get("llm-checkpoint"), dtype or tokens.dtype(context)
    if own is None:
        return make_decoder(tokens.shape(context), context_tokens, context.seed, precision, context.device)
    return load(Path(own), tokens.shape(context), context_tokens, precision, context.device)


def load(folder: Path, wanted: Shape, context_tokens: int, dtype: torch.dtype, device: torch.device) -> Decoder:
    """Reads a checkpoint of the shape `wanted`; raises ValueError, in one sentence, where something does not fit."""
    read = _shape(folder, wanted, context_tokens)
    with device:
        model = Decoder(read, context_tokens)
    expected = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    weights = _weights(folder, expected.keys())
    for name, value in expected.items():
        found = weights[name]
        if found.shape != value.shape:
            raise _error(folder, f"{name} has the shape {tuple(found.shape)}, not {tuple(value.shape)}")
        if found.dtype not in FLOATS:
            raise _error(folder, f"{name} has the type {found.dtype}, not one of {', '.join(map(str, FLOATS))}")
        value.copy_(found)
    return model.to(dtype).eval().requires_grad_(False)


def _shape(folder: Path, wanted: Shape, context_tokens: int) -> Shape:
    config = _json(folder / CONFIG, folder)
    kind = config.get("architectures")
    if kind != ["LlamaForCausalLM"]:
        raise _error(folder, f"{CONFIG} is of the architecture {kind}, not LlamaForCausalLM")
    if not config.get("tie_word_embeddings"):
        raise _error(folder, f"{CONFIG} has no tie_word_embeddings, and this decoder has one table of embeddings")
    numbers = {
        "vocab_size": wanted.vocabulary,
        "hidden_size": wanted.width,
        "num_hidden_layers": wanted.layers,
        "num_attention_heads": wanted.heads,
        "num_key_value_heads": wanted.kv_heads,
        "intermediate_size": wanted.hidden,
    }
    for name, number in numbers.items():
        if config.get(name) != number:
            raise _error(folder, f"{CONFIG} has {name} {config.get(name)}, and the workload's sizes are of {number}")
    fixed = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
    for name, value in fixed.items():
        if config.get(name, value) != value:
            raise _error(folder, f"{CONFIG} has {name} {config[name]}, and this decoder has {value}")
    most = config.get("max_position_embeddings")
    if not isinstance(most, int) or most < context_tokens:
        raise _error(folder, f"{CONFIG} allows {most} tokens, and the workload needs {context_tokens}")
    base, factor = _rope(folder, config)
    return replace(wanted, rope_base=base, rope_factor=factor, norm_eps=config.get("rms_norm_eps", 1e-6))


def _rope(folder: Path, config: dict[str, Any]) -> tuple[float, float]:
    """The base of rotary positions and the factor of their stretching.

    Older configs have `rope_theta` and `rope_scaling`, newer ones `rope_parameters` with both.
    """
    found = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise _error(folder, f"{CONFIG} has rope_scaling {found!r}, which is no JSON object")
    base = found.get("rope_theta", config.get("rope_theta"))
    if not isinstance(base, int | float):
        raise _error(folder, f"{CONFIG} has no rope_theta")
    kind = found.get("rope_type", found.get("type", "default"))
    if kind == "default":
        return float(base), 1.0
    if kind != "llama3":
        raise _error(folder, f"{CONFIG} has the rope_type {kind}, not default or llama3")
    for name, value in LLAMA3_ROPE.items():
        if found.get(name) != value:
            raise _error(folder, f"{CONFIG} has {name} {found.get(name)}, and this decoder has {value}")
    return float(base), float(found.get("factor", 1.0))


def _weights(folder: Path, names: Collection[str]) -> dict[str, Tensor]:
    """The tensors of these names, without the prefix `model.` that they have in the files, on the CPU."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise _error(folder, "safetensors is not installed", "run pip install 'gpugate[workloads]'") from error

    if (folder / INDEX).exists():
        file_of = _json(folder / INDEX, folder).get("weight_map")
        if not isinstance(file_of, dict):
            raise _error(folder, f"{INDEX} has no weight_map")
    else:
        file_of = {f"model.{name}": SINGLE for name in names}
    names_of: dict[str, list[str]] = {}
    for name in names:
        shard = file_of.get(f"model.{name}")
        if not isinstance(shard, str):
            raise _error(folder, f"{INDEX} names no file for model.{name}")
        names_of.setdefault(Path(shard).name, []).append(name)
    weights = {}
    for shard, own in names_of.items():
        if not (folder / shard).is_file():
            raise _error(folder, f"{shard} is missing")
        try:
            with safe_open(folder / shard, framework="pt") as tensors:
                weights.update({name: tensors.get_tensor(f"model.{name}") for name in own})
        except (SafetensorError, OSError) as error:
            raise _error(folder, f"{shard} cannot be read: {' '.join(str(error).split())[:120]}") from error
    return weights


def _json(path: Path, folder: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _error(folder, f"{path.name} cannot be read ({type(error).__name__})") from error
    if not isinstance(read, dict):
        raise _error(folder, f"{path.name} is no JSON object")
    return read


def _error(folder: Path, problem: str, advice: str = "name the folder of a Llama of this shape") -> ValueError:
    return ValueError(f"--perf-set llm-checkpoint={folder} cannot be used: {problem}; {advice}")
