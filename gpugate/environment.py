"""What machine this is: the facts that decide whether two measurements may be compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpugate.workload import DeviceKind


@dataclass(frozen=True)
class Environment:
    """One device of one machine with its software. None: this machine does not have it or does not tell."""

    device_kind: DeviceKind
    device_name: str  # 'NVIDIA H200', or the CPU's model name
    cpu_model: str
    cpu_count: int  # that this process may use
    python: str
    packages: Mapping[str, str] = field(default_factory=dict)  # torch, torchvision, triton, tensorrt, gpugate ...
    gpu_index: int | None = None
    compute_capability: str | None = None  # '9.0'
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    mig: bool | None = None
    ecc: bool | None = None
    power_limit_w: float | None = None
    l2_bytes: int | None = None

    @property
    def device_classes(self) -> tuple[str, ...]:
        """Names under which an optimization may promise something, the most specific first."""
        if self.device_kind == "cpu" or self.compute_capability is None:
            return (self.device_kind,)
        return (f"sm_{self.compute_capability.replace('.', '')}", "cuda")
