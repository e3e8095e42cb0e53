"""A model as one TensorRT engine: PyTorch writes ONNX, TensorRT builds it, and runs it on torch's current stream.

The types of the ONNX model decide the precision: TensorRT 10 and later build strongly typed networks, in which nothing
else could. TensorRT 8.6 to 9 only consider kernels of FP16 and INT8 where a flag allows them, so both get their flags.
"""

from __future__ import annotations

import io
import json
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gpugate import workload
from workloads.parts.kept_files import discard, keep, key_of, read_kept

Precision = Literal["fp32", "tf32", "fp16", "int8"]
INSTALL = "pip install 'gpugate[tensorrt]'"
OPSET = 17  # the newest one that TensorRT 8.6 reads completely
FIRST_STRONGLY_TYPED = 10  # of TensorRT's major versions
REFORMATTING = "Reformatting CopyNode"
ON_RTX_CARDS = ((7, 5), (8, 0), (8, 6), (8, 9), (12, 0))  # compute capabilities for which TensorRT for RTX builds


def why_not(gpu_index: int) -> str | None:
    """The reason why no TensorRT builds engines for this GPU, with the next step; None where one does."""
    found = {name for name in ("tensorrt", "tensorrt_rtx", "onnx") if find_spec(name) is not None}
    if found <= {"onnx"}:
        return f"the package tensorrt is missing: {INSTALL}"
    if "onnx" not in found:  # which PyTorch's exporter imports
        return f"the package onnx is missing: {INSTALL}"
    if "tensorrt" in found:
        return None
    major, minor = torch.cuda.get_device_capability(gpu_index)  # cuda only
    if (major, minor) in ON_RTX_CARDS or major == ON_RTX_CARDS[-1][0]:
        return None
    known = ", ".join(f"{high}.{low}" for high, low in ON_RTX_CARDS[:-1])
    return (
        f"TensorRT for RTX builds for compute capability {known} and 12.x, and this GPU has {major}.{minor}: {INSTALL}"
    )


TENSORRT_LIBRARY = workload.Engine("tensorrt", why_not)


def import_library() -> ModuleType:
    """TensorRT, or TensorRT for RTX where it alone is installed."""
    return import_module("tensorrt" if find_spec("tensorrt") is not None else "tensorrt_rtx")


class Engine:
    """An engine with one input and one output, loaded from a plan: the bytes that TensorRT built.

    Its weights and buffers are memory of torch's allocator, so that torch's counts of memory include them. Raises
    RuntimeError for a plan of another GPU or version.
    """

    def __init__(self, plan: bytes, device: torch.device) -> None:
        trt, self.device = import_library(), device
        self._allocator = _torch_allocator(trt, device)
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
        self._runtime.gpu_allocator = self._allocator
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise RuntimeError("TensorRT cannot load the plan: it is of another GPU or version, or damaged")
        self._context = self._engine.create_execution_context()
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        self._input, self._output = names
        self.shape = tuple(self._engine.get_tensor_shape(self._input))
        self._output_shape = tuple(self._engine.get_tensor_shape(self._output))
        self._inspector = self._engine.create_engine_inspector()
        self._layers_in_json = trt.LayerInformationFormat.JSON

    def __call__(self, inputs: Tensor) -> Tensor:
        """float32 of the engine's output shape, from float32 inputs of its input shape, contiguous, on its device.

        Returns when the work is enqueued. Raises ValueError for inputs of another form.
        """
        if tuple(inputs.shape) != self.shape or inputs.dtype != torch.float32 or not inputs.is_contiguous():
            form = f"{inputs.dtype} {list(inputs.shape)} with strides {inputs.stride()}"
            raise ValueError(f"the engine takes contiguous float32 {list(self.shape)}, not {form}")
        output = torch.empty(self._output_shape, device=self.device)
        self._context.set_tensor_address(self._input, inputs.data_ptr())
        self._context.set_tensor_address(self._output, output.data_ptr())
        if not self._context.execute_async_v3(torch.cuda.current_stream(self.device).cuda_stream):  # cuda only
            raise RuntimeError("TensorRT could not enqueue the engine: its log on stderr has the cause")
        return output

    def layers(self) -> list[str]:
        """The layers of the engine in their order, each named after the operators that TensorRT fused into it.

        Copies between memory formats are left out: they come and go with the kernels that win the builder's timing.
        """
        document = self._inspector.get_engine_information(self._layers_in_json)
        layers = json.loads(document, strict=False)["Layers"]  # names have line breaks in TensorRT 8.6
        names = [layer if isinstance(layer, str) else layer["Name"] for layer in layers]
        return [name for name in names if not name.startswith(REFORMATTING)]


def build_engine(
    model: nn.Module,
    example: Tensor,
    precision: Precision,
    cache_dir: Path,
    calibration: Sequence[Tensor] = (),
) -> Engine:
    """The model as an engine for float32 inputs like `example`, on the device of `example`.

    `model` is in eval mode, takes one tensor and returns one, in float32; it is moved to the CPU and, for FP16, changed
    to half. For INT8 the ranges of activations come from `calibration`, float32 batches on the CPU. The plan comes from
    `cache_dir` where the same ONNX model was built there for the same shape, GPU and version. Raises RuntimeError with
    TensorRT's own words where it cannot build.
    """
    onnx = write_onnx(model.cpu(), example[:1].cpu(), precision)
    trt, device = import_library(), example.device
    gpu = torch.cuda.get_device_properties(device)  # cuda only
    of_library = trt.__name__, trt.__version__, gpu.name, gpu.major, gpu.minor
    batches = (batch.numpy().tobytes() for batch in calibration)
    key = key_of(onnx, tuple(example.shape), precision, *of_library, *batches)
    path = cache_dir / "tensorrt" / f"{key}.plan"
    plan = read_kept(path)
    if plan is not None:
        try:
            return Engine(plan, device)
        except RuntimeError as error:
            discard(path, f"cannot be used ({error})")
    onnx = quantize(onnx, calibration) if precision == "int8" else onnx
    plan = build_plan(trt, onnx, tuple(example.shape), precision)
    keep(path, plan)
    return Engine(plan, device)


class _Half(nn.Module):
    """A model in half precision that takes and returns float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.half()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs.half())
        return outputs.float()


def write_onnx(model: nn.Module, example: Tensor, precision: Precision) -> bytes:
    """The model as ONNX for any number of inputs like those of `example`, on the CPU; half inside for FP16.

    The tracing exporter writes it: the one by torch.export has no opset that TensorRT 8.6 reads.
    """
    file = io.BytesIO()
    batch = {0: "items"}
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            _Half(model).eval() if precision == "fp16" else model,
            (example,),
            file,  # type: ignore[arg-type]  # its annotation knows no file objects, which the tracing exporter takes
            input_names=["inputs"],
            output_names=["outputs"],
            dynamic_axes={"inputs": batch, "outputs": batch},
            opset_version=OPSET,
            dynamo=False,
        )
    return file.getvalue()


def quantize(onnx: bytes, calibration: Sequence[Tensor]) -> bytes:
    """The ONNX model with INT8 inputs and weights of its convolutions and matrix products, by ONNX Runtime.

    The scale of an activation is its largest value in `calibration`, the scale of a weight that of its channel. Of each
    addition one input is in INT8 and the other one is a convolution's own output, so that TensorRT fuses all three.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    operators, (joining, others) = ["Conv", "Gemm", "Add"], _additions(onnx)
    with tempfile.TemporaryDirectory(prefix="gpugate-onnx-") as folder:
        plain, quantized = Path(folder, "plain.onnx"), Path(folder, "quantized.onnx")
        plain.write_bytes(onnx)
        quantize_static(
            plain,
            quantized,
            _Calibration(iter(calibration)),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=operators,
            nodes_to_exclude=others,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                "AddQDQPairToWeight": True,
                "QuantizeBias": False,
                "OpTypesToExcludeOutputQuantization": operators,
            },
        )
        return _keep_one_input(quantized.read_bytes(), joining)


def _additions(onnx: bytes) -> tuple[list[str], list[str]]:
    """The names of the additions of two convolutions' outputs, and those of the other additions.

    The other ones add the input of a convolution, which is quantized already.
    """
    graph = import_module("onnx").load_from_string(onnx).graph
    source = {name: node.op_type for node in graph.node for name in node.output}
    additions = [node for node in graph.node if node.op_type == "Add"]
    joining = [node.name for node in additions if all(source.get(name) == "Conv" for name in node.input)]
    return joining, [node.name for node in additions if node.name not in joining]


def _keep_one_input(onnx: bytes, additions: Sequence[str]) -> bytes:
    """The model whose additions of these names read their first input as it was before it was quantized."""
    model = import_module("onnx").load_from_string(onnx)
    source, unused = {name: node for node in model.graph.node for name in node.output}, []
    for node in model.graph.node:
        if node.name in additions:
            dequantize = source[node.input[0]]
            before = source[dequantize.input[0]]
            node.input[0] = before.input[0]
            unused += [dequantize, before]
    for node in unused:
        model.graph.node.remove(node)
    written: bytes = model.SerializeToString()
    return written


@dataclass
class _Calibration:
    """ONNX Runtime's reader of batches."""

    batches: Iterator[Tensor]

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"inputs": batch.numpy()}


def build_plan(trt: Any, onnx: bytes, shape: tuple[int, ...], precision: Precision) -> bytes:
    """Builds an engine for inputs of this shape. Raises RuntimeError with TensorRT's own words where it cannot."""
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    major = int(trt.__version__.partition(".")[0]) if trt.__name__ == "tensorrt" else FIRST_STRONGLY_TYPED
    of_network = trt.NetworkDefinitionCreationFlag
    typed = major >= FIRST_STRONGLY_TYPED
    flag = of_network.STRONGLY_TYPED if typed else of_network.EXPLICIT_BATCH
    network = builder.create_network(1 << int(flag))
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR))
    if not parser.parse(onnx):
        problems = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise RuntimeError(f"TensorRT {trt.__version__} cannot read the ONNX model: {problems}")
    network.get_input(0).shape = shape
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    (config.clear_flag if precision == "fp32" else config.set_flag)(trt.BuilderFlag.TF32)
    if not typed and precision in ("fp16", "int8"):
        config.set_flag(trt.BuilderFlag.FP16)
    if not typed and precision == "int8":
        config.set_flag(trt.BuilderFlag.INT8)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError(f"TensorRT {trt.__version__} built no engine: its log on stderr has the cause")
    return bytes(plan)


def _torch_allocator(trt: Any, device: torch.device) -> Any:
    """An allocator for TensorRT that takes its memory from torch's allocator; newer versions call the last two."""

    class TorchAllocator(trt.IGpuAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IGpuAllocator.__init__(self)

        def allocate(self, size: int, alignment: int, flags: int) -> int | None:
            return torch.cuda.caching_allocator_alloc(size, device) if size else None  # cuda only

        def reallocate(self, address: int, alignment: int, new_size: int) -> None:
            return None  # TensorRT then allocates anew

        def deallocate(self, memory: int) -> bool:
            if memory:
                torch.cuda.caching_allocator_delete(memory)  # type: ignore[no-untyped-call]  # cuda only
            return True

        def allocate_async(self, size: int, alignment: int, flags: int, stream: int) -> int | None:
            return self.allocate(size, alignment, flags)

        def deallocate_async(self, memory: int, stream: int) -> bool:
            return self.deallocate(memory)

    return TorchAllocator()
