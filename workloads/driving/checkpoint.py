"""Checkpoints of a training run: written whole or not at all, read without running code, checked before use.

A run that resumes from a checkpoint is bit for bit the uninterrupted run. So the checkpoint contains everything that
decides the next iteration: weights and running averages, momentum, the scale of the gradients, the state of the random
numbers (dropout), and the position in the data.

A file is one line with the name of its format and the SHA-256 of the rest, followed by the output of `torch.save`:
changed bytes are detected before any of them is used.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workloads.driving.training import Trainer

FORMAT = "gpugate driving checkpoint 2"  # 1 had no checksum
PARTS = {"model": dict, "optimizer": dict, "scaler": dict, "random": dict, "position": int}
SWITCH = {"nothing", "bool"}  # an option that may be left to PyTorch, and one recipe leaves it where another decides


def save(path: Path, trainer: Trainer, position: int) -> None:
    """Writes the run as it stands, `position` frames into its order.

    Raises OSError naming the path where it cannot be written; an earlier file at the path then stays as it was.
    """
    content = {
        "model": dict(trainer.model.state_dict()),
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
    """Puts the whole content under `path`, after its first line, or leaves the earlier file."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    unfinished = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_first_line(content))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _first_line(content: memoryview) -> bytes:
    return f"{FORMAT} {hashlib.sha256(content).hexdigest()}\n".encode()


def resume(path: Path, trainer: Trainer) -> int:
    """Puts the run back as it was saved, random numbers included, and returns its position.

    Raises ValueError, in one sentence that names the file, for one that is missing, truncated, damaged, no such
    checkpoint or of another model; the trainer and the random numbers are then as they were before.
    """
    content = _read(path)
    _check_model(path, content["model"], trainer.model.state_dict())
    _check_optimizer(path, content["optimizer"], trainer)
    _check_scaler(path, content["scaler"], trainer)
    _check_random_states(path, content["random"], trainer.device)
    _put_random_states(path, content["random"], trainer.device)  # only PyTorch can tell whether these states are valid
    trainer.model.load_state_dict(content["model"])
    trainer.optimizer.load_state_dict(content["optimizer"])
    trainer.scaler.load_state_dict(content["scaler"])
    position: int = content["position"]
    return position


def _read(path: Path) -> dict[str, Any]:
    stored = _intact(path)
    try:
        content: dict[str, Any] = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
    except Exception as error:  # a file made by hand can raise any error
        reason = f"holds what no checkpoint does ({type(error).__name__})"
        raise ValueError(f"checkpoint {path} {reason}: name one that this workload has saved") from error
    for name, kind in PARTS.items():
        if not isinstance(content, dict) or type(content.get(name)) is not kind:
            raise ValueError(f"checkpoint {path} has no usable {name!r}: save it again or name another")
    if content["position"] < 0:
        raise ValueError(f"checkpoint {path} has the position {content['position']}: save it again or name another")
    return content


def _intact(path: Path) -> memoryview:
    """Returns the bytes after the first line, once their SHA-256 matches."""
    try:
        whole = memoryview(path.read_bytes())
    except OSError as error:
        raise ValueError(f"checkpoint {path} cannot be read ({error.strerror}): name one that is there") from error
    length = len(_first_line(whole[:0]))
    if bytes(whole[: len(FORMAT)]) != FORMAT.encode():
        raise ValueError(f"checkpoint {path} is no {FORMAT!r}: name one that this version of the workload has saved")
    if bytes(whole[:length]) != _first_line(whole[length:]):
        reason = "is truncated or damaged (its SHA-256 is another one)"
        raise ValueError(f"checkpoint {path} {reason}: save it again or name another")
    return whole[length:]


def _check_model(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> None:
    if difference := _difference(stored, wanted):
        raise ValueError(f"checkpoint {path} is of another model ({difference}): name one of this model")


def _difference(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """A sentence about the first value that is missing, superfluous or of another kind; None where all match."""
    for name in (*wanted, *stored):
        found, here = (_kind(values[name]) if name in values else "missing" for values in (stored, wanted))
        if found != here and {found, here} != SWITCH:
            return f"{name} is {found} there and {here} here"
    return None


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return "nothing" if value is None else type(value).__name__
    odd = "meta " if value.is_meta else "sparse " if value.layout != torch.strided else ""
    return f"{odd}{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


def _check_optimizer(path: Path, stored: Mapping[str, Any], trainer: Trainer) -> None:
    """Checks the options of the optimizer, and its momentum."""
    wanted = trainer.optimizer.state_dict()
    if difference := _difference(stored, wanted):
        raise ValueError(f"checkpoint {path} is of another optimizer ({difference}): name one of this workload")
    groups = stored["param_groups"]
    if len(groups) != len(wanted["param_groups"]) or not all(isinstance(group, dict) for group in groups):
        raise ValueError(f"checkpoint {path} has no usable 'param_groups': save it again or name another")
    for there, here in zip(groups, wanted["param_groups"], strict=True):
        if difference := _difference(there, here):
            raise ValueError(f"checkpoint {path} is of another optimizer ({difference}): name one of this workload")
        if there["params"] != here["params"]:
            raise ValueError(f"checkpoint {path} has the momentum of another model: name one of this model")
    _check_momentum(path, stored["state"], list(trainer.model.parameters()))


def _check_momentum(path: Path, stored: Mapping[int, Any], parameters: Sequence[Tensor]) -> None:
    """Checks the momentum buffers, which are stored by parameter number; before the first step there are none."""
    for number, state in stored.items():
        is_ours = type(number) is int and number in range(len(parameters)) and isinstance(state, dict)
        if not is_ours or _difference(state, {"momentum_buffer": parameters[number]}):
            raise ValueError(f"checkpoint {path} has the momentum of another model: name one of this model")


def _check_scaler(path: Path, stored: Mapping[str, Any], trainer: Trainer) -> None:
    if not trainer.scaler.is_enabled():
        return
    if not stored:
        raise ValueError(f"checkpoint {path} was saved without gradient scaling: name one of a run in FP16")
    if difference := _difference(stored, trainer.scaler.state_dict()):
        raise ValueError(f"checkpoint {path} scales gradients otherwise ({difference}): save it again or name another")


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


def _put_random_states(path: Path, stored: Mapping[str, Tensor], device: torch.device) -> None:
    """Sets all random states, or restores the earlier ones on an error."""
    before = _random_states(device)
    try:
        _set_random_states(stored, device)
    except RuntimeError as error:
        _set_random_states(before, device)
        reason = "has a state of the random numbers that PyTorch does not take"
        raise ValueError(f"checkpoint {path} {reason}: save it again or name another") from error


def _set_random_states(stored: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(stored["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(stored["cuda"], device)  # cuda only
