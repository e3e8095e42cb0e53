"""Checkpoints of a training run in one safetensors file, which is read without running code.

A run that resumes from a checkpoint is bit for bit the uninterrupted run. So the checkpoint contains everything that
decides the next iteration: weights and running averages, momentum, the scale of the gradients, the state of the random
numbers (dropout), and the position in the data.
"""

from __future__ import annotations

import json
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

    random = {RANDOM + "cpu": torch.get_rng_state()}
    if trainer.device.type == "cuda":
        random[RANDOM + "cuda"] = torch.cuda.get_rng_state(trainer.device)  # cuda only
    tensors = {name: value.contiguous() for name, value in {**trainer.state(), **random}.items()}
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
    trainer is then of no use.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # the file is no mapping
            beside = {name: json.loads(value) for name, value in (file.metadata() or {}).items()}
    except (OSError, SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"checkpoint {path} cannot be read ({error}): name one of this workload") from error
    try:
        return _put_back(stored, beside["position"], beside["scaler"], trainer)
    except (KeyError, RuntimeError) as error:
        said = f"checkpoint {path} is of another run ({' '.join(str(error).split())})"
        raise ValueError(f"{said}: name one of this model and precision") from error


def _put_back(stored: dict[str, Tensor], position: int, scaler: dict[str, float], trainer: Trainer) -> int:
    if scaler.keys() != trainer.scaler.state_dict().keys():
        raise KeyError("its gradients are scaled otherwise")
    momentum = {
        number: {"momentum_buffer": torch.empty_like(parameter).copy_(stored[MOMENTUM + name])}
        for number, (name, parameter) in enumerate(trainer.model.named_parameters())
        if MOMENTUM + name in stored  # before the first step there is none
    }
    trainer.model.load_state_dict({name: stored[name] for name in trainer.model.state_dict()})
    trainer.optimizer.load_state_dict({**trainer.optimizer.state_dict(), "state": momentum})
    trainer.scaler.load_state_dict(scaler)
    torch.set_rng_state(stored[RANDOM + "cpu"])
    if trainer.device.type == "cuda":
        torch.cuda.set_rng_state(stored[RANDOM + "cuda"], trainer.device)  # cuda only
    return position
