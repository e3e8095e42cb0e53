"""The machine and its software: the facts that decide whether two measurements may be compared."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gpugate import __version__
from gpugate.errors import SideError
from gpugate.machine.cores import find_quota, find_usable_cores, read_or_empty
from gpugate.machine.nvml import gpu_facts
from gpugate.units import Count, Natural, NotNegative, Positive, number_of, stored_unless
from gpugate.workload import DeviceKind, Needs

if TYPE_CHECKING:
    import torch

CPUINFO = Path("/proc/cpuinfo")
LONGEST_NAME = 200  # characters: the name of a folder has 255
# Name in the record -> the distributions that may contain it: some have the CUDA version in their name.
_DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "torchvision": ("torchvision",),
    "triton": ("triton",),
    "torch-tensorrt": ("torch-tensorrt",),
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
    "tensorrt-rtx": ("tensorrt-rtx", "tensorrt-rtx-cu13", "tensorrt-rtx-cu12"),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu"),
    "cvcuda": ("cvcuda", "cvcuda-cu13", "cvcuda-cu12"),
    "pynvvideocodec": ("PyNvVideoCodec",),
    "av": ("av",),
    "opencv": ("opencv-python-headless", "opencv-python"),
    "numpy": ("numpy",),
    "gpugate": ("gpugate",),
}
# torch_tensorrt may be installed without its dependency tensorrt; its import then fails.
_IMPLIED_PACKAGES: Mapping[str, tuple[str, ...]] = {"torch_tensorrt": ("torch_tensorrt", "tensorrt")}
_SAME_DEVICE = ("device_kind", "device_name", "mig")
_SAME_CPU = ("cpu_model", "cpu_count", "cpu_quota")


@dataclass(frozen=True)
class Environment:
    """A device of a machine with its software. None: the machine does not have or does not report the value."""

    device_kind: DeviceKind
    device_name: str  # 'NVIDIA H200', or the CPU's model name
    cpu_model: str
    cpu_count: Natural  # cores that this process may use; where the device is the CPU, at most OMP_NUM_THREADS
    python: str
    packages: Mapping[str, str] = field(default_factory=dict)  # torch, torchvision, triton, tensorrt, gpugate ...
    gpu_index: Count | None = None
    compute_capability: str | None = None  # '9.0'
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    mig: bool | None = None
    ecc: bool | None = None
    power_limit_w: NotNegative | None = None
    l2_bytes: Count | None = None
    # In cores, below `cpu_count`. None is not stored: files have had this field since 2026-11-27.
    cpu_quota: Positive | None = stored_unless(None)

    @property
    def device_classes(self) -> tuple[str, ...]:
        """Names under which an optimization may promise something, the most specific first: a GPU is
        `nvidia-h100-80gb-hbm3`, `sm_90` and `cuda`.

        Products of one compute capability differ, such as an H100 and an H200 in the bandwidth of their memory. A
        misspelled name of a product never matches.
        """
        if self.device_kind == "cpu" or self.compute_capability is None:
            return (self.device_kind,)
        return (machine_name(self), f"sm_{self.compute_capability.replace('.', '')}", "cuda")

    @property
    def facts(self) -> list[str]:
        """`NVIDIA H200`, `driver 580.65`, `torch 2.11.0` and so on, without the values that the machine does not
        report."""
        values = {
            "driver": self.driver,
            "CUDA": self.cuda,
            "cuDNN": self.cudnn,
            "torch": self.packages.get("torch"),
            "Python": self.python,
            "CPU": self.cpu_model if self.cpu_model != self.device_name else None,
        }
        cores, quota = [number_of(self.cpu_count, "core")], self.cpu_quota
        cores += [] if quota is None else [f"a quota of {quota:g} {'core' if quota == 1 else 'cores'}"]
        return [self.device_name, *(f"{name} {value}" for name, value in values.items() if value), *cores]


@dataclass(frozen=True)
class Match:
    """The agreement of two environments; `differences` are texts such as `driver 580.1 -> 590.2`."""

    kind: Literal["exact", "same device", "foreign"]
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Missing:
    """Needs of an optimization that this machine lacks. `reason` is one sentence about the first of `names`."""

    names: tuple[str, ...]
    reason: str

    def allowed_by(self, allowed: Collection[str]) -> bool:
        """True where `--allow-missing` has all `names`; `tensorrt` also stands for `torch_tensorrt`."""
        return all(name in allowed or name.removeprefix("torch_") in allowed for name in self.names)


def describe(device: torch.device, needs: Iterable[Needs] = ()) -> Environment:
    """Describes one device and its software, with the packages that these needs name; imports torch. On CUDA it
    initializes the driver but allocates nothing."""
    cpu_model = _cpuinfo("model name") or platform.processor() or platform.machine() or "unknown"
    usable = len(find_usable_cores())
    cores = usable if device.type == "cuda" else _with_threads(usable)
    python, packages, quota = platform.python_version(), _package_versions(needs), find_quota(cores)
    if device.type != "cuda":
        return Environment("cpu", cpu_model, cpu_model, cores, python, packages, cpu_quota=quota)
    found = {**_gpu(device), "cpu_count": cores, "cpu_quota": quota}
    return Environment("cuda", cpu_model=cpu_model, python=python, packages=packages, **found)


def _with_threads(cores: int) -> int:
    """Limits the number of cores to OMP_NUM_THREADS, which schedulers and containers set and shells forget."""
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return min(cores, int(threads)) if threads.isdecimal() and int(threads) else cores


def machine_name(environment: Environment) -> str:
    """Names the folder under `baselines/`: `nvidia-h200`, `nvidia-h200-mig`, `cpu-amd-epyc-2-cores`; with a quota,
    `cpu-amd-epyc-0-5-of-2-cores`."""
    if environment.device_kind == "cpu":
        quota = "" if environment.cpu_quota is None else f"{_slug(f'{environment.cpu_quota:g}')}-of-"
        return f"cpu-{_slug(environment.cpu_model)}-{quota}{environment.cpu_count}-cores"
    name = _slug(environment.device_name)
    return f"{name}-mig" if environment.mig and "mig" not in name.split("-") else name


def machine_key(environment: Environment, memory_bytes: int | None) -> str:
    """Names a machine of a fleet by its product, memory and power limit: `nvidia-h200-140-gib-700-w`.

    Products of one architecture, and one product at another power limit, have other times. What is not known is left
    out.
    """
    memory = [] if memory_bytes is None else [f"{round(memory_bytes / 2**30)}-gib"]
    power = [] if environment.power_limit_w is None else [f"{round(environment.power_limit_w)}-w"]
    return "-".join([machine_name(environment), *memory, *power])


def compare(then: Environment, now: Environment) -> Match:
    """Compares two environments. Exact: all but the GPU's index is equal. Same device: equal name, kind and MIG, on a
    CPU also equal model, cores and quota.

    A package that only one environment has is no difference: a case that ran in both does not need it.
    """
    names = [f.name for f in fields(Environment) if f.name != "gpu_index"]
    found = {name: list(_differences(name, getattr(then, name), getattr(now, name))) for name in names}
    texts = tuple(chain.from_iterable(found.values()))
    if not texts:
        return Match("exact")
    must_match = (*_SAME_DEVICE, *(_SAME_CPU if now.device_kind == "cpu" else ()))
    return Match("foreign" if any(found[name] for name in must_match) else "same device", texts)


def differences(environments: Sequence[Environment]) -> tuple[str, ...]:
    """Lists the differences between any two environments: a package absent from the first may differ between others."""
    texts = (text for then, now in combinations(environments, 2) for text in compare(then, now).differences)
    return tuple(dict.fromkeys(texts))


def missing_needs(needs: Needs, environment: Environment) -> Missing | None:
    """Finds the needs that this machine lacks; None where it has all of them.

    No package is imported for the search, but an engine may be tried in a child process. Raises SideError, naming the
    engine, where its `why_not` raises.
    """
    missing = dict(_missing(needs, environment)) or dict(_missing_engine(needs, environment))
    return Missing(tuple(missing), next(iter(missing.values()))) if missing else None


def list_needed(needs: Iterable[Needs]) -> set[str]:
    """The names that `--allow-missing` takes for them, with those that are no name of a package, an engine or a
    flag."""
    found = {"compute-capability", "gpus", "c++"}
    for one in needs:
        found.update(_list_packages(one), one.cpu_flags, () if one.engine is None else (one.engine.name,))
    return found | {name.removeprefix("torch_") for name in found}


def _list_packages(needs: Needs) -> Iterator[str]:
    for name in needs.packages:
        yield from _IMPLIED_PACKAGES.get(name, (name,))


def _missing(needs: Needs, environment: Environment) -> Iterator[tuple[str, str]]:
    for package in _list_packages(needs):
        if not _is_installed(package):
            yield package, f"needs the package {package}: {needs.install or f'install {package}'}"
    if environment.device_kind == "cuda":
        has = environment.compute_capability or "0.0"
        if tuple(int(part) for part in has.split(".")) < needs.compute_capability:
            wanted = ".".join(str(part) for part in needs.compute_capability)
            found = f"needs compute capability {wanted} and this GPU has {has}"
            yield "compute-capability", f"{found}: run it on a newer GPU"
        if needs.gpus > 1:
            import torch

            if (visible := torch.cuda.device_count()) < needs.gpus:
                yield "gpus", f"needs {needs.gpus} GPUs and torch sees {visible}: run it on a machine with more"
    else:
        flags = (_cpuinfo("flags") or _cpuinfo("Features") or "").split()
        for flag in needs.cpu_flags:
            if flag not in flags:
                yield flag, f"needs the CPU flag {flag}, which this CPU does not have: run it on one that has it"
    if needs.cpp_compiler and (problem := compiler_problem()):
        yield "c++", f"needs a C++ compiler: {problem}"


def _missing_engine(needs: Needs, environment: Environment) -> Iterator[tuple[str, str]]:
    if needs.engine is not None and environment.device_kind == "cuda":
        try:
            problem = needs.engine.why_not(environment.gpu_index or 0)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a user's function may raise anything, pytest's exceptions too
            raise SideError(needs.engine.name, "being looked for", error) from error
        if problem is not None:
            yield needs.engine.name, problem


def _is_installed(package: str) -> bool:
    """True for an installed package; False also for the empty folder that an uninstalled package left behind, which
    would import as a namespace."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def compiler_problem() -> str | None:
    """Names the part that torch.compile lacks here to compile C++ code for Python; None where it has all."""
    chosen = os.environ.get("CXX", "").split()[:1]
    if not any(map(shutil.which, chosen or ("g++", "clang++", "c++"))):
        return f"CXX names {chosen[0]!r}, which is not there, so correct or unset it" if chosen else "install g++"
    has_headers = Path(sysconfig.get_path("include"), "Python.h").is_file()
    return None if has_headers else "Python.h is missing: install python3-dev"


def _cpuinfo(name: str) -> str | None:
    """Reads the first value of one field of /proc/cpuinfo."""
    entries = (line.partition(":") for line in read_or_empty(CPUINFO).splitlines())
    return next((value.strip() for key, _, value in entries if key.strip() == name), None)


def _package_versions(needs: Iterable[Needs]) -> dict[str, str]:
    needed = {name.replace("_", "-").lower() for one in needs for name in _list_packages(one)}
    known = {**{name: (name,) for name in sorted(needed)}, **_DISTRIBUTIONS}
    found = {name: _version(distributions) for name, distributions in known.items()}
    versions = {name: version for name, version in found.items() if version is not None}
    return {**versions, "gpugate": __version__}  # the version of this source, installed or not


@functools.cache
def _version(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _slug(text: str) -> str:
    plain = re.sub(r"\((r|tm)\)", " ", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:LONGEST_NAME] or "unknown"


def _differences(name: str, then: Any, now: Any) -> Iterator[str]:
    if isinstance(then, Mapping):
        for key in sorted(then.keys() & now.keys()):
            if then[key] != now[key]:
                yield f"{key} {then[key]} -> {now[key]}"
    elif then != now:
        absent = "none" if name == "cpu_quota" else "unknown"
        before, after = (absent if value is None else value for value in (then, now))
        yield f"{name.replace('_', ' ')} {before} -> {after}"


def _gpu(device: torch.device) -> dict[str, Any]:
    """Reads the fields of Environment that only a GPU has."""
    import torch

    index = torch.cuda.current_device() if device.index is None else device.index
    properties = torch.cuda.get_device_properties(index)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {
        "device_name": properties.name,
        "gpu_index": index,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else str(cudnn),
        "l2_bytes": int(properties.L2_cache_size),
        **gpu_facts(index, properties.uuid),
    }
