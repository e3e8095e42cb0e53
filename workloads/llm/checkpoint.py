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
from workloads.llm.model import Decoder, Shape, seeded

CHECKPOINT_SETTING = {"llm-checkpoint": "a folder with config.json and *.safetensors of a Llama of the same shape"}
CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"


def decoder(context: Context, context_tokens: int = tokens.CONTEXT_TOKENS, dtype: torch.dtype | None = None) -> Decoder:
    """A new decoder on the context's device, in its precision or in `dtype`.

    Raises ValueError, in one sentence that names the folder, for a checkpoint that does not fit.
    """
    own, precision = context.settings.get("llm-checkpoint"), dtype or tokens.dtype(context)
    if own is None:
        return seeded(tokens.shape(context), context_tokens, context.seed, precision, context.device)
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
        if not found.is_floating_point():
            raise _error(folder, f"{name} has the type {found.dtype}, not a floating-point type")
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
    if config.get("max_position_embeddings", 0) < context_tokens:
        most = config.get("max_position_embeddings")
        raise _error(folder, f"{CONFIG} allows {most} tokens, and the workload needs {context_tokens}")
    scaling = config.get("rope_scaling") or {"rope_type": "default"}
    if scaling.get("rope_type") not in ("default", "llama3"):
        raise _error(folder, f"{CONFIG} has the rope_type {scaling.get('rope_type')}, not default or llama3")
    return replace(
        wanted,
        rope_base=config.get("rope_theta", 10_000.0),
        rope_factor=scaling.get("factor", 1.0),
        norm_eps=config.get("rms_norm_eps", 1e-6),
    )


def _weights(folder: Path, names: Collection[str]) -> dict[str, Tensor]:
    """The tensors of these names, without the prefix `model.` that they have in the files, on the CPU."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise _error(folder, "safetensors is not installed", "run pip install safetensors") from error

    if (folder / INDEX).exists():
        file_of = _json(folder / INDEX, folder).get("weight_map", {})
    else:
        file_of = {f"model.{name}": SINGLE for name in names}
    weights = {}
    for name in names:
        shard = file_of.get(f"model.{name}")
        if shard is None:
            raise _error(folder, f"{INDEX} does not name model.{name}")
        if not (folder / Path(shard).name).is_file():
            raise _error(folder, f"{shard} is missing")
        try:
            with safe_open(folder / Path(shard).name, framework="pt") as tensors:
                weights[name] = tensors.get_tensor(f"model.{name}")
        except SafetensorError as error:
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
