"""Probes of optional packages and of the GPU engines that they need. Only children import them and start engines."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

from gpugate.commands.doctor.children import ChildError
from gpugate.commands.doctor.finding import Answer, Group, Machine, Probe, absent, ok
from gpugate.machine.environment import missing_needs
from gpugate.workload import Needs

IMPORT_S = 60.0  # a cold start of torch_tensorrt takes a while
ENGINE_S = 60.0
# NV_ENC_ERR_NO_ENCODE_DEVICE and NV_ENC_ERR_UNSUPPORTED_DEVICE of nvEncodeAPI.h; A100, H100 and H200 return the latter.
NO_NVENC = (1, 2)
SAME_PIXEL = 8.0  # of 255: two decoders of JPEG round differently


@dataclass(frozen=True)
class Package:
    """An optional package: its usual name, its modules to import, and the command that installs it."""

    name: str
    module: str
    install: str

    def not_installed(self, machine: Machine) -> str | None:
        """Returns a sentence with the missing modules and the command that installs them, or None."""
        missing = missing_needs(Needs(packages=(self.module,)), machine.environment)
        return f"{' and '.join(missing.names)} not installed: {self.install}" if missing else None

    def needed(self, probe: Callable[[Machine], Answer]) -> Callable[[Machine], Answer]:
        """Returns a probe that runs `probe` where the package is installed, and else reports `absent` and why."""

        @wraps(probe)
        def look(machine: Machine) -> Answer:
            missing = self.not_installed(machine)
            return probe(machine) if missing is None else absent(f"not looked at: {missing}")

        return look

    def look(self, machine: Machine) -> Answer:
        missing = self.not_installed(machine)
        if missing is not None:
            return absent(missing)
        try:
            version = machine.children.ask("package", self.module, timeout_s=IMPORT_S)
        except ChildError as error:
            return absent(f"installed, but it cannot be imported ({error}): mend it or {self.install}")
        return ok(version or "it can be imported")


VIDEO = Package("PyNvVideoCodec", "PyNvVideoCodec", "pip install PyNvVideoCodec")
TORCHVISION = Package("torchvision", "torchvision", "pip install 'gpugate[workloads]'")
PACKAGES = (
    Package("torch-tensorrt", "torch_tensorrt", "pip install 'gpugate[tensorrt]'"),
    Package("tensorrt", "tensorrt", "pip install 'gpugate[tensorrt]'"),
    Package("cvcuda", "cvcuda", "pip install cvcuda-cu13, or -cu12 as torch's CUDA is"),
    VIDEO,
    Package("nvtx", "nvtx", "pip install nvtx"),
    Package("av", "av", "pip install av"),
)


@VIDEO.needed
def nvdec(machine: Machine) -> Answer:
    try:
        found = machine.children.ask("nvdec", timeout_s=ENGINE_S)
    except ChildError as error:
        return absent(f"it decoded nothing ({error}): decode on the CPU, or give the container the capability video")
    if not found["frames"]:
        return absent("it took a clip of H.264 and gave no frame: update the driver, or decode on the CPU")
    engines = f", {found['engines']} engines" if found["engines"] else ""
    return ok(f"decodes H.264 into GPU memory{engines}")


@VIDEO.needed
def nvenc(machine: Machine) -> Answer:
    """Starts an encoder, since NVML's encoder capacity is 100 also on GPUs that have no encoder."""
    try:
        size = machine.children.ask("nvenc", timeout_s=ENGINE_S)
    except ChildError as error:
        return absent(_no_encoder(str(error)))
    if not size:
        return absent("it took pictures and gave no bytes: update the driver, or encode on the CPU")
    return ok("encodes H.264")


def _no_encoder(error: str) -> str:
    code = re.search(r"rror(?: code)?[ :]+(\d+)", error)
    if code and int(code[1]) in NO_NVENC:
        return f"this GPU has no NVENC engine (NVENC error {code[1]}): encode on the CPU or on another GPU"
    return f"no encoder could be made ({error}): update the driver, or encode on the CPU"


@TORCHVISION.needed
def nvjpeg(machine: Machine) -> Answer:
    try:
        difference = machine.children.ask("nvjpeg", timeout_s=ENGINE_S)
    except ChildError as error:
        return absent(f"it decoded nothing ({error}): install a CUDA build of torchvision, or decode on the CPU")
    if difference > SAME_PIXEL:
        return absent(f"pixels differ by {difference:.0f} of 255 from the CPU's decoder: decode on the CPU")
    return ok("decodes JPEG on the GPU as the CPU does")


PROBES = (
    *(Probe(Group.HAS, package.name, package.look) for package in PACKAGES),
    Probe(Group.HAS, "NVDEC", nvdec, needs_gpu=True),
    Probe(Group.HAS, "NVENC", nvenc, needs_gpu=True),
    Probe(Group.HAS, "NVJPEG", nvjpeg, needs_gpu=True),
)
