"""A model as one TensorRT engine, built by Torch-TensorRT and kept on disk between sessions.

Engines and timing caches are stored as they come from TensorRT. Torch-TensorRT's own engine cache is not used: it
pickles, so a file that somebody changed would run as code, and it only holds refittable engines, which TensorRT
cannot optimize as far. Here an engine is bytes, and TensorRT sees them only if their SHA-256 is the recorded one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

MANIFEST = "manifest.json"
TIMINGS = "timing-cache.bin"
ENGINE = "engine.bin"
BINDINGS = "bindings.json"
# FP16 is `model.half()`: with explicit typing the engine computes in the model's own types. TF32 is off, as it is for
# the baseline; half models do not notice.
BUILDER_OPTIONS: Mapping[str, bool] = {"use_explicit_typing": True, "disable_tf32": True, "immutable_weights": True}


@dataclass(frozen=True)
class Platform:
    """The facts besides the model for which an engine or a timing is valid."""

    gpu_name: str
    compute_capability: str
    driver: str
    torch: str
    torch_tensorrt: str
    tensorrt: str


@dataclass(frozen=True)
class DryRun:
    """The conversion that Torch-TensorRT plans: operators of the graph, those with a converter, engines by operator."""

    operators: int
    supported: int
    operators_by_engine: tuple[int, ...]


def build_engine(
    model: nn.Module, example: Tensor, cache_dir: Path, *, dryrun: bool = False
) -> Callable[[Tensor], Tensor]:
    """The model as one TensorRT engine for inputs like `example` (CUDA, its shape, dtype and memory format).

    `model` is in eval mode on the same device, takes one tensor and returns one; it is not changed. The engine comes
    from `cache_dir` when one was built there for the same model on the same platform. With `dryrun` nothing is built
    or read: Torch-TensorRT prints its report (see `parse_dry_run`), and what comes back runs in PyTorch. Raises
    RuntimeError when the model does not become exactly one engine with one input and one output.
    """
    exported = torch.export.export(model, (example,), strict=False)
    if dryrun:
        compiled: Callable[[Tensor], Tensor] = _compile(exported, example, Path(tempfile.gettempdir(), TIMINGS), True)
        return compiled
    platform_dir = cache_dir / "tensorrt" / key(platform(example.device))
    model_dir = platform_dir / model_key(exported, example)
    files = read_verified(model_dir)
    if not {ENGINE, BINDINGS} <= set(files):
        files = _build(exported, example, platform_dir)
        write_verified(model_dir, files)
    return _load(files, example.device)


def platform(device: torch.device) -> Platform:
    import pynvml  # imported here: none of the three is needed to read the catalogue
    import torch_tensorrt  # before tensorrt, which it replaces by a proxy of its own

    import tensorrt  # isort: skip

    pynvml.nvmlInit()
    properties = torch.cuda.get_device_properties(device)
    return Platform(
        gpu_name=properties.name,
        compute_capability=f"{properties.major}.{properties.minor}",
        driver=pynvml.nvmlSystemGetDriverVersion(),
        torch=torch.__version__,
        torch_tensorrt=torch_tensorrt.__version__,
        tensorrt=tensorrt.__version__,
    )


def key(facts: Platform) -> str:
    """A folder name that changes with any field."""
    return hashlib.sha256(json.dumps(asdict(facts), sort_keys=True).encode()).hexdigest()[:32]


def model_key(exported: torch.export.ExportedProgram, example: Tensor) -> str:
    """A folder name from the exported graph, every weight and constant, the example's layout and the build options.

    Raises TypeError for a constant that is no tensor.
    """
    layout = (tuple(example.shape), example.stride(), str(example.dtype))
    digest = hashlib.sha256(repr((str(exported.graph), layout, sorted(BUILDER_OPTIONS.items()))).encode())
    values = {**exported.state_dict, **exported.constants}
    for name in sorted(values):
        value = values[name]
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise TypeError(f"the model's constant {name!r} is a {kind}, which has no bytes to hash: make it a buffer")
        digest.update(repr((name, tuple(value.shape), str(value.dtype))).encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def read_verified(folder: Path) -> dict[str, bytes]:
    """The files whose SHA-256 the folder's manifest confirms, by name; none without a manifest.

    The hashes catch a file that was damaged, cut short or exchanged, not somebody who can also write the manifest. A
    file that fails is deleted with a RuntimeWarning that names it.
    """
    manifest = folder / MANIFEST
    if not manifest.exists():
        return {}
    try:
        expected = dict(json.loads(manifest.read_bytes())["sha256"])
    except (ValueError, KeyError, TypeError):
        _discard(manifest, "is no manifest")
        return {}
    found = {name: _verified(folder / name, sha256) for name, sha256 in expected.items() if _is_file_name(name)}
    return {name: content for name, content in found.items() if content is not None}


def _is_file_name(name: str) -> bool:
    return name == Path(name).name and name not in ("", "..")


def _verified(path: Path, sha256: object) -> bytes | None:
    content = path.read_bytes() if path.is_file() else None
    if content is not None and hashlib.sha256(content).hexdigest() == sha256:
        return content
    _discard(path, f"is not what {MANIFEST} recorded")
    return None


def _discard(path: Path, reason: str) -> None:
    path.unlink(missing_ok=True)
    warnings.warn(f"{path} {reason}: it was deleted and will be made again", RuntimeWarning, stacklevel=4)


def write_verified(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replaces the folder's files. The manifest goes first and comes back last: an interrupted write leaves none."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    for name, content in files.items():
        _replace(folder / name, content)
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    _replace(folder / MANIFEST, json.dumps({"sha256": sha256}, indent=2).encode())


def _replace(path: Path, content: bytes) -> None:
    """Writes a file that appears whole or not at all, also beside other writers."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    Path(file.name).replace(path)


def _compile(exported: torch.export.ExportedProgram, example: Tensor, timings: Path, dryrun: bool) -> Any:
    """Runs Torch-TensorRT's dynamo front end. A dry run reports what a real run refuses: a partly covered graph."""
    import torch_tensorrt

    return torch_tensorrt.dynamo.compile(
        exported,
        [torch_tensorrt.Input.from_tensor(example)],
        device=example.device,
        require_full_compilation=not dryrun,
        timing_cache_path=str(timings),
        dryrun=dryrun,
        **BUILDER_OPTIONS,
    )


def _build(exported: torch.export.ExportedProgram, example: Tensor, platform_dir: Path) -> dict[str, bytes]:
    """Builds the engine. Torch-TensorRT reads and rewrites a timing cache in place, so it gets a verified copy."""
    from torch_tensorrt.dynamo.runtime import TorchTensorRTModule

    with tempfile.TemporaryDirectory(prefix="gpugate-tensorrt-") as folder:
        timings = Path(folder, TIMINGS)
        timings.write_bytes(read_verified(platform_dir).get(TIMINGS, b""))
        compiled = _compile(exported, example, timings, dryrun=False)
        write_verified(platform_dir, {TIMINGS: timings.read_bytes()})
    engines = [module for module in compiled.modules() if isinstance(module, TorchTensorRTModule)]
    bindings = [(len(engine.input_binding_names), len(engine.output_binding_names)) for engine in engines]
    if bindings != [(1, 1)]:
        raise RuntimeError(
            f"TensorRT made engines with (inputs, outputs) {bindings} where one of (1, 1) is expected: "
            "see what build_engine(..., dryrun=True) reports"
        )
    return _stored(engines[0])


def _stored(engine: Any) -> dict[str, bytes]:
    bindings = {
        "inputs": list(engine.input_binding_names),
        "outputs": list(engine.output_binding_names),
        "requires_output_allocator": bool(engine.requires_output_allocator),
    }
    return {ENGINE: bytes(engine.serialized_engine), BINDINGS: json.dumps(bindings).encode()}


def _load(files: Mapping[str, bytes], device: torch.device) -> Callable[[Tensor], Tensor]:
    """The engine, ready to run. A new engine is loaded here too, so that both sessions run the same engine."""
    import torch_tensorrt
    from torch_tensorrt.dynamo.runtime import TorchTensorRTModule

    bindings = json.loads(files[BINDINGS])
    engine: Any = TorchTensorRTModule(
        files[ENGINE],
        bindings["inputs"],
        bindings["outputs"],
        name="gpugate",
        settings=torch_tensorrt.dynamo.CompilationSettings(device=torch_tensorrt.Device(gpu_id=device.index)),
        requires_output_allocator=bindings["requires_output_allocator"],
    )
    engine.set_output_tensors_as_unowned(True)  # as Torch-TensorRT does for the last engine of a graph
    run: Callable[[Tensor], Tensor] = engine
    return run


def parse_dry_run(report: str) -> DryRun:
    """Reads what Torch-TensorRT 2.11 prints in a dry run (`dynamo/_DryRunTracker.py`).

    Raises ValueError when the text holds no report.
    """
    total = re.search(r"consists of (\d+) Total Operators, of which (\d+) operators are supported", report)
    if total is None:
        raise ValueError(f"no dry-run report of Torch-TensorRT in {report[-200:]!r}: see why it printed none")
    engines = re.findall(r"TRT Engine #\d+ - .*\n.*\n +Number of Operators in Engine: (\d+)", report)
    return DryRun(int(total[1]), int(total[2]), tuple(int(count) for count in engines))
