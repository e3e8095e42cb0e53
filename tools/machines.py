"""The GPUs whose records are in baselines/."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Machine:
    """A GPU. `name` is the name of its folder in baselines/, and `folder` the name of its folder in results/."""

    gpu: str
    name: str
    folder: str

    @property
    def device_classes(self) -> tuple[str, ...]:
        return (self.name, "sm_90", "cuda")

    @property
    def baselines(self) -> Path:
        return ROOT / "baselines" / self.name

    @property
    def results(self) -> Path:
        return ROOT / "results" / self.folder


H200 = Machine("H200", "nvidia-h200", "h200")
H100 = Machine("H100", "nvidia-h100-80gb-hbm3", "h100")
MACHINES = (H200, H100)
