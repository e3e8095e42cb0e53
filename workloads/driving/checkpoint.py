"""Checkpoints of a training run: written whole or not at all, read without running what they hold, checked before use.

A run that goes on from one is bit for bit the run that was never interrupted. So everything that decides the next
iteration is in it: weights and running averages, momentum, the gradients' scale, the random numbers to come (dropout),
and how far the data had been read.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workloads.driving.training import Trainer

FORMAT = "gpugate driving checkpoint 1"
PARTS = {"format": str, "model": dict, "optimizer": dict, "scaler": dict, "random": dict, "position": int}


def save(path: Path, trainer: Trainer, position: int) -> None:
    """Writes the run as it stands, `position` frames into its order.

    Raises OSError naming the path where it cannot be written; what was there before then stays as it was.
    """
    content = {
        "format": FORMAT,
        "model": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "scaler": trainer.scaler.state_dict(),
        "random": _random_states(trainer.device),
        "position": position,
    }
    # In memory first: PyTorch's own writer ends in a C++ exception of its own when a disk is full.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    try:
        _replace(path, buffer.getbuffer())
    except OSError as error:
        reason = f"cannot be written ({error.strerror}, {buffer.tell() / 1e6:.0f} MB)"
        raise OSError(f"checkpoint {path} {reason}: make room or name another place") from error


def _replace(path: Path, content: memoryview) -> None:
    """The whole content under `path`, or what was there before."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def resume(path: Path, trainer: Trainer) -> int:
    """Puts the run back as it was saved, random numbers included, and returns its position.

    Raises ValueError, in one sentence that names the file, for one that is missing, truncated, no such checkpoint or of
    another model; the trainer is then as it was before.
    """
    content = _read(path, trainer.device)
    _check_model(path, content["model"], trainer.model.state_dict())
    _check_momentum(path, content["optimizer"], trainer)
    _check_random_states(path, content["random"], trainer.device)
    if trainer.scaler.is_enabled() and not content["scaler"]:
        raise ValueError(f"checkpoint {path} was saved without gradient scaling: name one of a run in FP16")
    trainer.model.load_state_dict(content["model"])
    trainer.optimizer.load_state_dict(content["optimizer"])
    trainer.scaler.load_state_dict(content["scaler"])
    _set_random_states(content["random"], trainer.device)
    position: int = content["position"]
    return position


def _read(path: Path, device: torch.device) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"checkpoint {path} cannot be read ({error.strerror}): name one that is there") from error
    except Exception as error:  # a truncated file raises what it likes: RuntimeError, EOFError, UnpicklingError ...
        reason = f"is truncated or no checkpoint ({type(error).__name__})"
        raise ValueError(f"checkpoint {path} {reason}: save it again or name another") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        said = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise ValueError(f"checkpoint {path} is {said!r} and not {FORMAT!r}: name one that this workload has saved")
    for name, kind in PARTS.items():
        if not isinstance(content.get(name), kind):
            raise ValueError(f"checkpoint {path} has no usable {name!r}: save it again or name another")
    return content


def _check_model(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> None:
    for name in (*wanted, *stored):
        found, here = _kind(stored.get(name)), _kind(wanted.get(name))
        if found != here:
            difference = f"{name} is {found} there and {here} here"
            raise ValueError(f"checkpoint {path} is of another model ({difference}): name one of this model")


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return "nothing" if value is None else type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _check_momentum(path: Path, stored: Mapping[str, Any], trainer: Trainer) -> None:
    """Momentum buffers are kept by number of the parameter; before the first step there are none."""
    state, shapes = stored.get("state"), [parameter.shape for parameter in trainer.model.parameters()]
    buffers = state.items() if isinstance(state, dict) else ()
    fits = isinstance(state, dict) and all(
        number in range(len(shapes)) and getattr(each.get("momentum_buffer"), "shape", None) == shapes[number]
        for number, each in buffers
    )
    groups = stored.get("param_groups")
    if not fits or not isinstance(groups, list) or [len(group["params"]) for group in groups] != [len(shapes)]:
        raise ValueError(f"checkpoint {path} has the momentum of another model: name one of this model")


def _random_states(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)  # cuda only
    return states


def _check_random_states(path: Path, stored: Mapping[str, Any], device: torch.device) -> None:
    for name, here in _random_states(device).items():
        if _kind(stored.get(name)) != _kind(here):
            reason = f"has no state of the {name} random numbers"
            raise ValueError(f"checkpoint {path} {reason}: name one that was saved on {name}")


def _set_random_states(stored: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(stored["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(stored["cuda"], device)  # cuda only
