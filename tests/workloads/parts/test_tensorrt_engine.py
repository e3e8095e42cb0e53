"""The store of TensorRT engines and the reading of dry runs; a small fake stands in for Torch-TensorRT."""

import json
import subprocess
import sys
import types
import warnings
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from workloads.parts import tensorrt_engine
from workloads.parts.tensorrt_engine import (
    ENGINE,
    MANIFEST,
    TIMINGS,
    DryRun,
    Platform,
    build_engine,
    key,
    model_key,
    parse_dry_run,
    platform,
    read_verified,
    write_verified,
)

H200 = Platform("NVIDIA H200", "9.0", "580.82.07", "2.11.0", "2.11.0", "10.15.1.29")
EXAMPLE = torch.ones(2, 4)
PRINT_KEY = """
import torch
from torch import nn
from workloads.parts.tensorrt_engine import model_key

torch.manual_seed(0)
model, example = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval(), torch.ones(2, 4)
print(model_key(torch.export.export(model, (example,), strict=False), example))
"""
FILES = {"a.bin": b"first", "b.bin": b"second"}

COVERED = """
+++++++++ Dry-Run Results for Graph +++++++++

The graph consists of 228 Total Operators, of which 228 operators are supported, 100.0% coverage

Compiled with: CompilationSettings(min_block_size=5, dryrun=True)

  Graph Structure:

   Inputs: List[Tensor: (128, 3, 224, 224)@float16]
    ...
    TRT Engine #1 - Submodule name: _run_on_acc_0
     Engine Inputs: List[Tensor: (128, 3, 224, 224)@float16]
     Number of Operators in Engine: 228
     Engine Outputs: Tensor: (128, 1000)@float16
    ...
   Outputs: List[Tensor: (128, 1000)@float16]

  ------------------------- Aggregate Stats -------------------------

   Average Number of Operators per TRT Engine: 228.0
   Most Operators in a TRT Engine: 228

  ********** Recommendations **********

   - For minimal graph segmentation, select min_block_size=228 which would generate 1 TRT engine(s)
"""
SPLIT = """
The graph consists of 228 Total Operators, of which 227 operators are supported, 99.56% coverage

    TRT Engine #1 - Submodule name: _run_on_acc_0
     Engine Inputs: List[Tensor: (128, 3, 224, 224)@float16]
     Number of Operators in Engine: 5
     Engine Outputs: Tensor: (128, 64, 112, 112)@float16
    ...
    TRT Engine #2 - Submodule name: _run_on_acc_2
     Engine Inputs: List[Tensor: (128, 64, 56, 56)@float16]
     Number of Operators in Engine: 222
     Engine Outputs: Tensor: (128, 1000)@float16
"""
NO_ENGINE = """
The graph consists of 3 Total Operators, of which 0 operators are supported, 0.0% coverage

  Aggregate stats not available since no TRT Engines were generated.
"""


class FakeEngine(nn.Module):
    """A stand-in for TorchTensorRTModule with the fields and arguments that the builder uses."""

    def __init__(self, serialized_engine, inputs, outputs, *, requires_output_allocator=False, **_):
        super().__init__()
        self.serialized_engine = serialized_engine
        self.input_binding_names, self.output_binding_names = inputs, outputs
        self.requires_output_allocator = requires_output_allocator
        self.unowned = False

    def set_output_tensors_as_unowned(self, unowned):
        self.unowned = unowned


@dataclass
class FakeCompiler:
    """Counts builds; like the real one it reads the timing cache it is given and writes a longer one."""

    engines: int = 1
    builds: int = 0
    timings_seen: list[bytes] = field(default_factory=list)
    options: dict[str, object] = field(default_factory=dict)

    def compile(self, exported, inputs, **options):
        self.builds += 1
        self.options = options
        timings = Path(options["timing_cache_path"])
        self.timings_seen.append(timings.read_bytes())
        timings.write_bytes(timings.read_bytes() + b"timing")
        return nn.ModuleList(FakeEngine(b"plan", ["x"], ["y"]) for _ in range(self.engines))


@pytest.fixture
def compiler(monkeypatch) -> FakeCompiler:
    fake = FakeCompiler()
    torch_tensorrt, dynamo = types.ModuleType("torch_tensorrt"), types.ModuleType("torch_tensorrt.dynamo")
    runtime = types.ModuleType("torch_tensorrt.dynamo.runtime")
    torch_tensorrt.dynamo, torch_tensorrt.Device = dynamo, lambda gpu_id: gpu_id
    torch_tensorrt.Input = types.SimpleNamespace(from_tensor=lambda tensor: tensor)
    dynamo.compile, dynamo.CompilationSettings = fake.compile, lambda device: device
    runtime.TorchTensorRTModule = FakeEngine
    for module in (torch_tensorrt, dynamo, runtime):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(tensorrt_engine, "platform", lambda device: H200)
    return fake


def linear(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()


def exported_key(model: nn.Module, example: torch.Tensor = EXAMPLE) -> str:
    return model_key(torch.export.export(model, (example,), strict=False), example)


def stored(cache_dir: Path, name: str) -> Path:
    (path,) = cache_dir.rglob(name)
    return path


@pytest.mark.parametrize("name", [field.name for field in fields(Platform)])
def test_platform_key_changes_with_each_fact(name: str) -> None:
    assert key(replace(H200, **{name: "another"})) != key(H200)


@pytest.mark.parametrize(
    ("model", "example"),
    [
        pytest.param(linear(seed=1), EXAMPLE, id="weights"),
        pytest.param(nn.Sequential(*linear(), nn.ReLU()).eval(), EXAMPLE, id="structure"),
        pytest.param(linear(), torch.ones(3, 4), id="shape"),
        pytest.param(linear(), torch.ones(4, 2).t(), id="memory format"),
        pytest.param(linear().double(), EXAMPLE.double(), id="dtype"),
    ],
)
def test_model_key_changes_with(model: nn.Module, example: torch.Tensor) -> None:
    assert exported_key(model, example) != exported_key(linear())


def test_model_key_changes_with_a_running_statistic() -> None:
    model = linear()
    before = exported_key(model)
    model[1].running_mean += 1
    assert exported_key(model) != before


def test_model_key_changes_with_the_build_options(monkeypatch) -> None:
    before = exported_key(linear())
    monkeypatch.setattr(tensorrt_engine, "BUILDER_OPTIONS", {**tensorrt_engine.BUILDER_OPTIONS, "disable_tf32": False})
    assert exported_key(linear()) != before


def test_model_key_is_the_same_in_another_process() -> None:
    root = Path(__file__).parents[3]
    child = subprocess.run([sys.executable, "-c", PRINT_KEY], cwd=root, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == exported_key(linear())


def test_files_come_back_as_written(tmp_path) -> None:
    write_verified(tmp_path, FILES)
    assert read_verified(tmp_path) == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "b.bin", MANIFEST]


def test_a_tampered_file_is_named_deleted_and_never_returned(tmp_path) -> None:
    write_verified(tmp_path, FILES)
    (tmp_path / "a.bin").write_bytes(b"First")
    with pytest.warns(RuntimeWarning, match=r"a\.bin is not what manifest\.json recorded"):
        assert read_verified(tmp_path) == {"b.bin": b"second"}
    assert not (tmp_path / "a.bin").exists()


def test_nothing_is_reused_without_a_manifest(tmp_path) -> None:
    write_verified(tmp_path, FILES)
    (tmp_path / MANIFEST).unlink()
    assert read_verified(tmp_path) == {}


@pytest.mark.parametrize("content", [b'{"sha2', b"[]", b"{}", b'{"sha256": 3}', b"\xff"])
def test_a_damaged_manifest_is_named_and_nothing_reused(tmp_path, content: bytes) -> None:
    write_verified(tmp_path, FILES)
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.warns(RuntimeWarning, match=r"manifest\.json is no manifest"):
        assert read_verified(tmp_path) == {}


def test_a_manifest_cannot_name_files_elsewhere(tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"")
    folder = tmp_path / "folder"
    write_verified(folder, {})
    (folder / MANIFEST).write_text(json.dumps({"sha256": {"../outside": "0"}}))
    assert read_verified(folder) == {}
    assert outside.exists()


@pytest.mark.parametrize("fails_at", ["a.bin", "b.bin", MANIFEST])
def test_an_interrupted_write_leaves_no_manifest(tmp_path, monkeypatch, fails_at: str) -> None:
    write_verified(tmp_path, {"a.bin": b"old", "b.bin": b"old"})
    rename = Path.replace

    def interrupted(self, target):
        if Path(target).name == fails_at:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_verified(tmp_path, FILES)
    assert not (tmp_path / MANIFEST).exists()
    assert read_verified(tmp_path) == {}


def test_an_engine_is_built_once_and_then_reused(tmp_path, compiler) -> None:
    first = build_engine(linear(), EXAMPLE, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = build_engine(linear(), EXAMPLE, tmp_path)
    assert compiler.builds == 1
    for engine in (first, second):
        assert (engine.serialized_engine, engine.unowned) == (b"plan", True)
        assert (engine.input_binding_names, engine.output_binding_names) == (["x"], ["y"])
    assert compiler.options["require_full_compilation"] is True
    assert compiler.options["dryrun"] is False


def test_another_model_is_built_with_the_timings_of_the_first(tmp_path, compiler) -> None:
    build_engine(linear(seed=0), EXAMPLE, tmp_path)
    build_engine(linear(seed=1), EXAMPLE, tmp_path)
    assert compiler.timings_seen == [b"", b"timing"]
    assert stored(tmp_path, TIMINGS).read_bytes() == b"timingtiming"


@pytest.mark.parametrize("name", [ENGINE, tensorrt_engine.BINDINGS])
def test_a_tampered_engine_is_built_again(tmp_path, compiler, name: str) -> None:
    build_engine(linear(), EXAMPLE, tmp_path)
    stored(tmp_path, name).write_bytes(b"tampered")
    with pytest.warns(RuntimeWarning, match=name):
        engine = build_engine(linear(), EXAMPLE, tmp_path)
    assert compiler.builds == 2
    assert engine.serialized_engine == stored(tmp_path, ENGINE).read_bytes() == b"plan"


def test_tampered_timings_never_reach_the_compiler(tmp_path, compiler) -> None:
    build_engine(linear(seed=0), EXAMPLE, tmp_path)
    stored(tmp_path, TIMINGS).write_bytes(b"tampered")
    with pytest.warns(RuntimeWarning, match=TIMINGS):
        build_engine(linear(seed=1), EXAMPLE, tmp_path)
    assert compiler.timings_seen == [b"", b""]


@pytest.mark.parametrize("engines", [0, 2])
def test_a_model_that_is_not_one_engine_is_refused_and_not_stored(tmp_path, compiler, engines: int) -> None:
    compiler.engines = engines
    with pytest.raises(RuntimeError, match="where one of"):
        build_engine(linear(), EXAMPLE, tmp_path)
    assert list(tmp_path.rglob(ENGINE)) == []


def test_a_dry_run_touches_no_cache_and_reports_partial_coverage(tmp_path, compiler, monkeypatch) -> None:
    monkeypatch.setattr(FakeCompiler, "compile", lambda self, *_, **options: self.options.update(options))
    sys.modules["torch_tensorrt.dynamo"].compile = compiler.compile
    build_engine(linear(), EXAMPLE, tmp_path, dryrun=True)
    assert list(tmp_path.iterdir()) == []
    assert compiler.options["dryrun"] is True
    assert compiler.options["require_full_compilation"] is False


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (COVERED, DryRun(operators=228, supported=228, operators_by_engine=(228,))),
        (SPLIT, DryRun(operators=228, supported=227, operators_by_engine=(5, 222))),
        (NO_ENGINE, DryRun(operators=3, supported=0, operators_by_engine=())),
    ],
    ids=["covered", "split", "no engine"],
)
def test_reads_what_a_dry_run_prints(report: str, expected: DryRun) -> None:
    assert parse_dry_run("WARNING: something else first\n" + report) == expected


def test_text_without_a_report_is_refused() -> None:
    with pytest.raises(ValueError, match="no dry-run report"):
        parse_dry_run("Traceback: boom")


def test_platform_reads_gpu_driver_and_versions(monkeypatch) -> None:
    properties = types.SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    nvml = types.SimpleNamespace(nvmlInit=lambda: None, nvmlSystemGetDriverVersion=lambda: "580.82.07")
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    for name, version in (("torch_tensorrt", "2.11.0"), ("tensorrt", "10.15.1.29")):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(__version__=version))
    assert platform(torch.device("cuda", 0)) == replace(H200, torch=torch.__version__)
