"""A model becomes ONNX, and ONNX a plan by a stand-in for TensorRT. Engines are tested on a GPU (`tests/gpu`)."""

import importlib.util
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workloads.parts import tensorrt_engine
from workloads.parts.tensorrt_engine import build_plan, quantize, why_not, write_onnx

SHAPE = (8, 3, 16, 16)


class Flags(dict):
    """An enumeration whose members are their names' places."""

    def __init__(self, *names: str) -> None:
        super().__init__({name: place for place, name in enumerate(names)})
        self.__dict__.update(self)


class FakeTensorRT(types.ModuleType):
    """The part of TensorRT's Python API that builds a plan."""

    def __init__(self, version: str, name: str = "tensorrt") -> None:
        super().__init__(name)
        self.__version__, self.built = version, []
        self.BuilderFlag = Flags("TF32", "FP16", "INT8") if int(version.split(".")[0]) < 9 else Flags("TF32")
        self.NetworkDefinitionCreationFlag = Flags("EXPLICIT_BATCH", "STRONGLY_TYPED")
        self.ProfilingVerbosity, self.LayerInformationFormat = Flags("DETAILED"), Flags("JSON")
        self.Logger = type("Logger", (), {"ERROR": 1, "__init__": lambda self, level: None})
        self.IGpuAllocator = type("IGpuAllocator", (), {})
        self.Builder, self.OnnxParser = self._builder, self._parser

    def _builder(self, logger: object) -> Any:
        flags = {0}  # TF32, TensorRT's default
        config = types.SimpleNamespace(flags=flags, set_flag=flags.add, clear_flag=flags.discard)
        network = types.SimpleNamespace(input=types.SimpleNamespace(shape=(-1, 3, 16, 16)))
        network.get_input = lambda index: network.input

        def create_network(flags: int) -> Any:
            network.flags = flags
            return network

        def build(network: Any, config: Any) -> bytes:
            self.built.append((network, config))
            return b"plan"

        return types.SimpleNamespace(
            create_network=create_network, create_builder_config=lambda: config, build_serialized_network=build
        )

    def _parser(self, network: Any, logger: object) -> Any:
        return types.SimpleNamespace(parse=lambda onnx: True)


def install(monkeypatch: pytest.MonkeyPatch, *fakes: FakeTensorRT) -> None:
    """Makes these the only libraries that can be found."""
    for fake in fakes:
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    names = {fake.__name__ for fake in fakes}
    real = importlib.util.find_spec
    asked = {"tensorrt", "tensorrt_rtx"}
    monkeypatch.setattr(
        tensorrt_engine, "find_spec", lambda name: name if name in names else None if name in asked else real(name)
    )


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    return nn.Sequential(*layers).eval().requires_grad_(False)


def run_onnx(onnx: bytes, inputs: Tensor) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"inputs": inputs.numpy()})[0])


@pytest.mark.parametrize(("precision", "error"), [("fp32", 1e-6), ("fp16", 2e-3)])
def test_the_onnx_model_computes_what_the_model_does_for_any_batch(precision, error) -> None:
    inputs = torch.randn(SHAPE)
    expected, output = net()(inputs), run_onnx(write_onnx(net(), inputs[:1], precision), inputs)
    assert output.dtype == torch.float32
    assert (output - expected).norm() / expected.norm() < error


class Residual(nn.Module):
    """Two convolutions are added, and their sum is added to a further one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.short, self.last = (nn.Conv2d(channels, 8, 3, padding=1) for channels in (3, 3, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        joined = torch.relu(self.first(inputs) + self.short(inputs))
        return torch.relu(self.last(joined) + joined)


def test_each_addition_reads_a_convolution_and_a_value_in_int8() -> None:
    import onnx

    inputs, net = torch.randn(SHAPE), Residual().eval().requires_grad_(False)
    quantized = quantize(write_onnx(net, inputs[:1], "fp32"), [torch.randn(SHAPE) for _ in range(2)])
    graph = onnx.load_from_string(quantized).graph
    source = {name: node.op_type for node in graph.node for name in node.output}
    additions = [[source[name] for name in node.input] for node in graph.node if node.op_type == "Add"]
    assert sorted(map(sorted, additions)) == [["Conv", "DequantizeLinear"]] * 2
    read = {name for node in graph.node for name in node.input} | {one.name for one in graph.output}
    assert all(read & set(node.output) for node in graph.node)
    expected, output = net(inputs), run_onnx(quantized, inputs)
    assert 1e-4 < (output - expected).norm() / expected.norm() < 0.05


# By version: what the network is, and the flags for each precision.
@pytest.mark.parametrize(
    ("version", "precision", "typed", "flags"),
    [
        ("8.6.1", "fp32", False, set()),
        ("8.6.1", "tf32", False, {"TF32"}),
        ("8.6.1", "fp16", False, {"TF32", "FP16"}),
        ("8.6.1", "int8", False, {"TF32", "FP16", "INT8"}),
        ("10.15.1", "fp32", True, set()),
        ("10.15.1", "fp16", True, {"TF32"}),
        ("11.0.0", "int8", True, {"TF32"}),
    ],
)
def test_a_version_gets_the_flags_that_it_knows(version, precision, typed, flags) -> None:
    trt = FakeTensorRT(version)
    build_plan(trt, b"model", SHAPE, precision)
    ((network, config),) = trt.built
    assert network.flags == 1 << (1 if typed else 0)
    assert network.input.shape == SHAPE
    assert {name for name, flag in trt.BuilderFlag.items() if flag in config.flags} == flags


def test_tensorrt_for_rtx_serves_the_cards_that_it_supports(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    assert why_not(0) == "the package tensorrt is missing: pip install 'gpugate[tensorrt]'"
    with monkeypatch.context() as without:
        without.setattr(tensorrt_engine, "find_spec", lambda name: None if name == "onnx" else name)
        assert why_not(0) == "the package onnx is missing: pip install 'gpugate[tensorrt]'"
    install(monkeypatch, FakeTensorRT("1.7", "tensorrt_rtx"))
    assert tensorrt_engine.import_library().__name__ == "tensorrt_rtx"
    reasons = {}
    for capability in [(9, 0), (8, 9), (12, 0), (12, 1)]:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index, capability=capability: capability)
        reasons[capability] = why_not(0)
    assert reasons.pop((9, 0)) == (
        "TensorRT for RTX builds for compute capability 7.5, 8.0, 8.6, 8.9 and 12.x, and this GPU has 9.0: "
        "pip install 'gpugate[tensorrt]'"
    )
    assert set(reasons.values()) == {None}
    install(monkeypatch, FakeTensorRT("1.7", "tensorrt_rtx"), FakeTensorRT("10.15.1"))
    assert tensorrt_engine.import_library().__name__ == "tensorrt"
    assert why_not(0) is None
