"""A checkpoint in Hugging Face's format gives its weights, or one sentence with the reason why it does not fit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gpugate.workload import Context
from tests.support.small_models import TINY
from workloads.llm.checkpoint import LLAMA3_ROPE, decoder, load
from workloads.llm.model import make_decoder

CPU = torch.device("cpu")
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


def tensors(seed: int = 9) -> dict[str, torch.Tensor]:
    model = make_decoder(TINY, 8, seed, torch.bfloat16, CPU)
    return {f"model.{name}": value for name, value in model.state_dict().items() if name != "lm_head.weight"}


def write(folder: Path, config: dict[str, Any] = CONFIG, **changed: torch.Tensor) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        {**tensors(), **{name.replace("__", "."): value for name, value in changed.items()}},
        folder / "model.safetensors",
    )
    return folder


def write_shards(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    names = sorted(tensors())
    for shard in (0, 1):
        own = {name: tensors()[name] for name in names[shard::2]}
        save_file(own, folder / f"model-{shard + 1}-of-2.safetensors")
    return folder


@pytest.mark.parametrize("written", [write, write_shards])
def test_the_weights_are_those_of_the_files(tmp_path: Path, tiny: Context, written: Callable[[Path], Path]) -> None:
    settings = {"llm-checkpoint": str(written(tmp_path))}
    model = decoder(replace(tiny, settings=settings))
    for name, value in tensors().items():
        assert model.state_dict()[name.removeprefix("model.")].equal(value.float())
    assert model.lm_head.weight is model.embed_tokens.weight
    assert not any(weight.requires_grad for weight in model.parameters())


def test_stretched_positions_and_the_epsilon_are_read(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 32.0, **LLAMA3_ROPE}
    write(tmp_path, {**CONFIG, "rope_scaling": scaling, "rms_norm_eps": 1e-3})
    model = load(tmp_path, TINY, 256, torch.float32, CPU)
    without = {name: value for name, value in CONFIG.items() if name != "rope_theta"}
    write(tmp_path, {**without, "rope_parameters": {"rope_theta": 500_000.0, **scaling}})
    assert load(tmp_path, TINY, 256, torch.float32, CPU).cosines.equal(model.cosines)
    assert not model.cosines.equal(make_decoder(TINY, 256, 0, torch.float32, CPU).cosines)
    assert model.norm.eps == 1e-3


def message(folder: Path) -> str:
    with pytest.raises(ValueError, match="cannot be used") as raised:
        load(folder, TINY, 256, torch.float32, CPU)
    said = str(raised.value)
    assert "\n" not in said
    return said.removeprefix(f"--perf-set llm-checkpoint={folder} cannot be used ")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "has architectures ['MistralForCausalLM'], and this decoder has"),
        ({"hidden_size": 64}, "width=64"),
        ({"tie_word_embeddings": False}, "has tie_word_embeddings False, and this decoder has True"),
        ({"max_position_embeddings": 128}, "allows 128 tokens of 256"),
        ({"hidden_act": "gelu"}, "has hidden_act gelu, and this decoder has silu"),
        ({"attention_bias": True}, "has attention_bias True, and this decoder has False"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8, **LLAMA3_ROPE, "high_freq_factor": 2.0}}, "factor 2.0"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "has rope_type yarn, and this decoder has default"),
    ],
)
def test_another_config_is_refused(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    assert problem in message(write(tmp_path, {**CONFIG, **changed}))


def test_a_missing_damaged_or_other_file_is_named(tmp_path: Path) -> None:
    assert "config.json" in message(tmp_path)
    write_shards(tmp_path)
    (tmp_path / "model-2-of-2.safetensors").unlink()
    assert "Missing key(s) in state_dict" in message(tmp_path)
    write(tmp_path, model__norm__weight=torch.ones(31))
    assert "size mismatch for norm.weight" in message(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    assert "SafetensorError" in message(tmp_path)
