"""Checkpoints of a training run, which are read without running code.

A run that resumes from a checkpoint is bit for bit the uninterrupted run. So the checkpoint contains everything that
decides the next iteration: weights and running averages, momentum, the scale of the gradients, the state of the random
numbers (dropout), and the position in the data.
"""

from __future__ import annotations

from pathlib import Path

import torch

from workloads.driving.training import DrivingTrainer
from workloads.parts.kept_files import replacing_file


def save(path: Path, trainer: DrivingTrainer, position: int) -> None:
    """Writes the run as it stands, `position` frames into its order.

    Raises OSError naming the path where it cannot be written; an earlier file at the path then stays as it was.
    """
    run = {name: getattr(trainer, name).state_dict() for name in ("model", "optimizer", "scaler")}
    run |= {"position": position, "cpu random": torch.get_rng_state()}
    if trainer.device.type == "cuda":
        run["cuda random"] = torch.cuda.get_rng_state(trainer.device)  # cuda only
    try:
        with replacing_file(path) as unfinished, unfinished.open("wb") as file:
            torch.save(run, file)  # which takes no name that begins with a dot
    except (OSError, RuntimeError) as error:
        raise OSError(
            f"checkpoint {path} cannot be written ({' '.join(str(error).split())}): make room or name another place"
        ) from error


def resume(path: Path, trainer: DrivingTrainer) -> int:
    """Puts the run back as it was saved, random numbers included, and returns its position.

    Raises ValueError, in one sentence that names the file, for one that cannot be read or is of another run; the
    trainer is then of no use.
    """
    try:
        run = torch.load(path, map_location="cpu", weights_only=True)
        if run["scaler"].keys() != trainer.scaler.state_dict().keys():
            raise ValueError("its gradients are scaled otherwise")
        for name in ("model", "optimizer", "scaler"):
            getattr(trainer, name).load_state_dict(run[name])
        torch.set_rng_state(run["cpu random"])
        if trainer.device.type == "cuda":
            torch.cuda.set_rng_state(run["cuda random"], trainer.device)  # cuda only
        return int(run["position"])
    except Exception as error:  # torch raises many errors for a file that is no checkpoint, or of another model
        said = f"checkpoint {path} cannot be read ({' '.join(str(error).split())})"
        raise ValueError(f"{said}: name one of this workload, model and precision") from error
