"""Probes of optional packages, which only children import."""

from __future__ import annotations

from dataclasses import dataclass

from gpugate.commands.doctor.children import ChildError
from gpugate.commands.doctor.finding import Answer, Group, Machine, Probe, absent, ok
from gpugate.machine.environment import missing_needs
from gpugate.workload import Needs

IMPORT_S = 60.0  # a cold start of torch_tensorrt takes a while


@dataclass(frozen=True)
class Package:
    """An optional package: its usual name, its modules to import, and the command that installs it."""

    name: str
    module: str
    install: str

    def look(self, machine: Machine) -> Answer:
        missing = missing_needs(Needs(packages=(self.module,)), machine.environment)
        if missing is not None:
            return absent(f"{' and '.join(missing.names)} not installed: {self.install}")
        try:
            version = machine.children.ask("package", self.module, timeout_s=IMPORT_S)
        except ChildError as error:
            return absent(f"installed, but it cannot be imported ({error}): mend it or {self.install}")
        return ok(version or "it can be imported")


PACKAGES = (
    Package("torch-tensorrt", "torch_tensorrt", "pip install 'gpugate[torch-tensorrt]'"),
    Package("tensorrt", "tensorrt", "pip install 'gpugate[tensorrt]'"),
    Package("cvcuda", "cvcuda", "pip install cvcuda-cu13, or -cu12 as torch's CUDA is"),
    Package("PyNvVideoCodec", "PyNvVideoCodec", "pip install PyNvVideoCodec"),
    Package("nvtx", "nvtx", "pip install nvtx"),
    Package("av", "av", "pip install av"),
)
PROBES = tuple(Probe(Group.PACKAGES, package.name, package.look) for package in PACKAGES)
