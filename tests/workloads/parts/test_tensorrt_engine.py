"""A model becomes ONNX, and ONNX an engine; a stand-in for TensorRT records the calls that the builder makes."""

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workloads.parts import tensorrt_engine
from workloads.parts.tensorrt_engine import Engine, build_engine, build_plan, quantize, why_not, write_onnx

SHAPE = (8, 3, 16, 16)


class Flags(dict):
    """An enumeration whose members are their names' places."""

    def __init__(self, *names: str) -> None:
        super().__init__({name: place for place, name in enumerate(names)})
        self.__dict__.update(self)


class Config:
    def __init__(self) -> None:
        self.flags: set[int] = {0}  # TF32, TensorRT's default

    def set_flag(self, flag: int) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: int) -> None:
        self.flags.discard(flag)


class FakeTensorRT(types.ModuleType):
    """The part of TensorRT's Python API that the engine uses. A plan is JSON; one of another version does not load."""

    def __init__(self, version: str, name: str = "tensorrt") -> None:
        super().__init__(name)
        self.__version__, self.built, self.readable = version, [], True
        self.BuilderFlag = Flags("TF32", "FP16", "INT8") if int(version.split(".")[0]) < 9 else Flags("TF32")
        self.NetworkDefinitionCreationFlag = Flags("EXPLICIT_BATCH", "STRONGLY_TYPED")
        self.ProfilingVerbosity, self.LayerInformationFormat = Flags("DETAILED"), Flags("JSON")
        self.Logger = type("Logger", (), {"ERROR": 1, "__init__": lambda self, level: None})
        self.IGpuAllocator = type("IGpuAllocator", (), {})
        self.Builder, self.OnnxParser, self.Runtime = self._builder, self._parser, self._runtime

    def _builder(self, logger: object) -> Any:
        config, network = Config(), types.SimpleNamespace(input=types.SimpleNamespace(shape=(-1, 3, 16, 16)))
        network.get_input = lambda index: network.input

        def create_network(flags: int) -> Any:
            network.flags = flags
            return network

        def build(network: Any, config: Config) -> bytes | None:
            self.built.append((network, config))
            plan = {"version": self.__version__, "shape": list(network.input.shape)}
            return json.dumps(plan).encode() if self.readable else None

        return types.SimpleNamespace(
            create_network=create_network, create_builder_config=lambda: config, build_serialized_network=build
        )

    def _parser(self, network: Any, logger: object) -> Any:
        return types.SimpleNamespace(
            parse=lambda onnx: onnx != b"no model", num_errors=1, get_error=lambda index: "no such operator"
        )

    def _runtime(self, logger: object) -> Any:
        return types.SimpleNamespace(deserialize_cuda_engine=self._load)

    def _load(self, plan: bytes) -> Any:
        facts = json.loads(plan)
        if facts["version"] != self.__version__:
            return None
        names = ["inputs", "outputs"]
        layers = json.dumps({"Layers": [{"Name": "conv\x1e + relu"}, "Reformatting CopyNode for Input", "fc"]})
        document = layers.replace("\\u001e", "\x1e")  # as TensorRT 8.6 writes it
        context = types.SimpleNamespace(addresses={})
        context.set_tensor_address = context.addresses.__setitem__
        context.execute_async_v3 = lambda stream: stream == 7
        self.context = context
        return types.SimpleNamespace(
            create_execution_context=lambda: context,
            num_io_tensors=2,
            get_tensor_name=names.__getitem__,
            get_tensor_shape=lambda name: facts["shape"] if name == "inputs" else [facts["shape"][0], 10],
            create_engine_inspector=lambda: types.SimpleNamespace(get_engine_information=lambda form: document),
        )


@pytest.fixture
def trt(monkeypatch: pytest.MonkeyPatch) -> FakeTensorRT:
    fake = FakeTensorRT("8.6.1")
    install(monkeypatch, fake)
    gpu = types.SimpleNamespace(name="NVIDIA H100", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=7))
    return fake


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


def test_the_onnx_model_is_the_same_in_every_process() -> None:
    example = torch.randn(SHAPE)[:1]
    assert write_onnx(net(), example, "fp32") == write_onnx(net(), example, "fp32")


def test_int8_quantizes_convolutions_and_products_and_agrees() -> None:
    import onnx

    inputs = torch.randn(SHAPE)
    quantized = quantize(write_onnx(net(), inputs[:1], "fp32"), [torch.randn(SHAPE) for _ in range(2)])
    types_of = [node.op_type for node in onnx.load_from_string(quantized).graph.node]
    assert types_of.count("QuantizeLinear") == 4  # inputs and weights of both layers
    expected, output = net()(inputs), run_onnx(quantized, inputs)
    assert 1e-4 < (output - expected).norm() / expected.norm() < 0.05


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


def test_a_model_that_cannot_be_read_or_built_says_so() -> None:
    trt = FakeTensorRT("8.6.1")
    with pytest.raises(RuntimeError, match=r"TensorRT 8\.6\.1 cannot read the ONNX model: no such operator"):
        build_plan(trt, b"no model", SHAPE, "fp32")
    trt.readable = False
    with pytest.raises(RuntimeError, match=r"TensorRT 8\.6\.1 built no engine"):
        build_plan(trt, b"model", SHAPE, "fp32")


def test_an_engine_is_built_once_for_a_model_a_shape_and_a_precision(trt, tmp_path: Path) -> None:
    example = torch.zeros(SHAPE)
    for _ in range(2):
        build_engine(net(), example, "fp32", tmp_path)
    assert len(trt.built) == 1
    build_engine(net(), example, "tf32", tmp_path)
    build_engine(net(), example[:2], "fp32", tmp_path)
    other = net()
    other[0].weight[0] = 0
    build_engine(other, example, "fp32", tmp_path)
    assert len(trt.built) == 4


@pytest.mark.parametrize("content", [b'{"version": "10.0"}', b"cut"])
def test_a_plan_that_is_damaged_or_of_another_version_is_built_again(trt, tmp_path: Path, content) -> None:
    example = torch.zeros(SHAPE)
    build_engine(net(), example, "fp32", tmp_path)
    (plan,) = tmp_path.rglob("*.plan")
    if content == b"cut":
        plan.write_bytes(plan.read_bytes()[:-1])
    else:
        tensorrt_engine.keep(plan, content)
    with pytest.warns(RuntimeWarning, match="it was deleted and is made again"):
        build_engine(net(), example, "fp32", tmp_path)
    assert len(trt.built) == 2
    build_engine(net(), example, "fp32", tmp_path)
    assert len(trt.built) == 2


def test_an_engine_reads_its_input_and_writes_a_new_output_on_the_current_stream(trt, tmp_path: Path) -> None:
    engine = build_engine(net(), torch.zeros(SHAPE), "fp32", tmp_path)
    inputs = torch.randn(SHAPE)
    first, second = engine(inputs), engine(inputs)
    assert first.shape == (8, 10)
    assert first.data_ptr() != second.data_ptr()
    assert trt.context.addresses == {"inputs": inputs.data_ptr(), "outputs": second.data_ptr()}
    trt.context.execute_async_v3 = lambda stream: False
    with pytest.raises(RuntimeError, match="could not enqueue"):
        engine(inputs)


@pytest.mark.parametrize(
    "inputs",
    [torch.zeros(2, 3, 16, 16), torch.zeros(SHAPE).half(), torch.zeros(SHAPE).to(memory_format=torch.channels_last)],
)
def test_inputs_of_another_form_are_refused(trt, tmp_path: Path, inputs) -> None:
    engine = build_engine(net(), torch.zeros(SHAPE), "fp32", tmp_path)
    with pytest.raises(ValueError, match=r"the engine takes contiguous float32 \[8, 3, 16, 16\], not"):
        engine(inputs)


def test_layers_are_named_without_copies_between_formats(trt) -> None:
    plan = json.dumps({"version": "8.6.1", "shape": SHAPE}).encode()
    assert Engine(plan, torch.device("cpu")).layers() == ["conv\x1e + relu", "fc"]


def test_memory_of_an_engine_is_torchs(trt, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", lambda size, device: 1000 + size)
    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", freed.append)
    allocator: Any = tensorrt_engine._torch_allocator(trt, torch.device("cpu"))
    assert (allocator.allocate(24, 0, 0), allocator.allocate_async(8, 0, 0, 7)) == (1024, 1008)
    assert allocator.allocate(0, 0, 0) is None
    assert allocator.deallocate(1024)
    assert allocator.deallocate_async(0, 7)
    assert freed == [1024]


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
