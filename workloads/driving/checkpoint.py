"""Checkpoints of a training run in one safetensors file: read without running code, and compared with the run first.

A run that resumes from a checkpoint is bit for bit the uninterrupted run. So the checkpoint contains everything that
decides the next iteration: weights and running averages, momentum, the scale of the gradients, the state of the random
numbers (dropout), and the position in the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from workloads.driving.training import Trainer

MOMENTUM, RANDOM = "momentum of ", "random numbers of "


def save(path: Path, trainer: Trainer, position: int) -> None:
    """Writes the run as it stands, `position` frames into its order.

    Raises OSError naming the path where it cannot be written; an earlier file at the path then stays as it was.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = {name: value.contiguous() for name, value in {**trainer.state(), **_random(trainer.device)}.items()}
    beside = {"position": json.dumps(position), "scaler": json.dumps(trainer.scaler.state_dict())}
    unfinished = path.with_name(f".{path.name}")
    try:
        save_file(tensors, unfinished, beside)
        unfinished.replace(path)
    except SafetensorError as error:
        raise OSError(f"checkpoint {path} cannot be written ({error}): make room or name another place") from error
    finally:
        unfinished.unlink(missing_ok=True)


def resume(path: Path, trainer: Trainer) -> int:
    """Puts the run back as it was saved, random numbers included, and returns its position.

    Raises ValueError, in one sentence that names the file, for one that cannot be read or is of another run; the
    trainer and the random numbers are then as they were before.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # the file is no mapping
            beside = {name: json.loads(value) for name, value in (file.metadata() or {}).items()}
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"checkpoint {path} cannot be read ({error}): name one of this workload") from error
    if difference := _difference(stored, beside, trainer):
        raise ValueError(f"checkpoint {path} is of another run ({difference}): name one of this model and precision")
    parameters = dict(trainer.model.named_parameters())
    momentum = {
        number: {"momentum_buffer": torch.empty_like(parameter).copy_(stored[MOMENTUM + name])}
        for number, (name, parameter) in enumerate(parameters.items())
        if MOMENTUM + name in stored  # before the first step there is none
    }
    trainer.model.load_state_dict({name: stored[name] for name in trainer.model.state_dict()})
    trainer.optimizer.load_state_dict({**trainer.optimizer.state_dict(), "state": momentum})
    trainer.scaler.load_state_dict(beside["scaler"])
    _set_random(stored, trainer.device)
    position: int = beside["position"]
    return position


def _random(device: torch.device) -> dict[str, Tensor]:
    states = {RANDOM + "cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states[RANDOM + "cuda"] = torch.cuda.get_rng_state(device)  # cuda only
    return states


def _set_random(stored: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(stored[RANDOM + "cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(stored[RANDOM + "cuda"], device)  # cuda only


def _difference(stored: Mapping[str, Tensor], beside: Mapping[str, object], trainer: Trainer) -> str | None:
    """A sentence about the first value that is missing, superfluous or of another kind; None where all match."""
    weights = {MOMENTUM + name: value for name, value in trainer.model.named_parameters()}
    wanted = {**trainer.model.state_dict(), **_random(trainer.device)}
    for name in (*wanted, *stored):
        here = wanted.get(name, weights.get(name))
        if (found := _kind(stored.get(name))) != (expected := _kind(here)):
            return f"{name} is {found} there and {expected} here"
    scaler = beside.get("scaler")
    if not isinstance(scaler, dict) or scaler.keys() != trainer.scaler.state_dict().keys():
        return "its gradients are scaled otherwise"
    return None if isinstance(beside.get("position"), int) else "it has no position"


def _kind(value: Tensor | None) -> str:
    return "missing" if value is None else f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
