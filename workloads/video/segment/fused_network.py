"""The large segmenter as fused convolutions, stored on disk: a list of calls, and one block of final weights.

Building it takes torchvision, whose import alone is longer than most clips need, all weights in full precision, and a
trace of the network. A later process reads a file and copies it to the device at once.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from gpugate.workload import Context
from workloads.parts.cudnn_fusion import Folded as Convolution
from workloads.parts.cudnn_fusion import (
    FusedConv,
    FusedMaxPool,
    Geometry,
    LastConv,
    Operators,
    fuse,
    to_channels_last_half,
)
from workloads.parts.kept_files import keep, read_kept
from workloads.video.clip.clip import Clip
from workloads.video.segment.fitted_weights import fit_key
from workloads.video.segment.segmenter import segmenter

FORMAT = 1  # of the stored file; raise it whenever the network is rewritten in another way
CALLS, WEIGHTS = "calls.json", "weights.bin"
INPUT = "frames"
ALIGNED_VALUES = 128  # every weight begins at a multiple of 256 bytes, as in memory of its own
KINDS: Mapping[type[nn.Module], Literal["conv", "last", "pool"]] = {
    FusedConv: "conv",
    LastConv: "last",
    FusedMaxPool: "pool",
}


@dataclass(frozen=True)
class Call:
    """A fused operator, by the `name` of its module, which reads INPUT or earlier calls.

    `weight` is the shape of its weight and `bias` that of its bias, each empty where it has none; `how` is a
    convolution's geometry, or the kernel, stride and padding of a pool.
    """

    name: str
    kind: Literal["conv", "last", "pool"]
    reads: Sequence[str]
    how: Sequence[Any]
    weight: Sequence[int]
    bias: Sequence[int]


@dataclass(frozen=True)
class FusedNetwork:
    """The calls in order, the last one's result being the network's, and float16 [values] on the CPU.

    The block holds weight and bias of each call in turn, weights in channels_last order.
    """

    calls: Sequence[Call]
    block: Tensor

    def on(self, device: torch.device, operators: Operators) -> fx.GraphModule:
        """The network for [n, STEM_CHANNELS, h, w] in channels_last FP16; shares no memory with another."""
        block, begin = self.block.to(device, copy=True), 0
        modules, graph = {}, fx.Graph()
        results = {INPUT: graph.placeholder(INPUT)}
        for call in self.calls:
            reads = [results[name] for name in call.reads]
            weight, begin = _taken(block, begin, call.weight)
            bias, begin = _taken(block, begin, call.bias)
            modules[call.name] = _module(call, reads[0], weight, bias, operators)
            results[call.name] = graph.call_module(call.name, tuple(reads))
        graph.output(results[self.calls[-1].name])
        return fx.GraphModule(modules, graph)


@functools.lru_cache(maxsize=1)
def fused_network(clip: Clip, seed: int, device: torch.device, cache_dir: Path) -> FusedNetwork:
    """FCN-ResNet101 with the weights of `fitted_weights`, fused on `device` unless `cache_dir` has it already.

    A damaged file is deleted with a RuntimeWarning and made again.
    """
    folder = cache_dir / "video-segmenter" / f"{fit_key('cuda', clip, seed, device)}-fused-{FORMAT}"
    kept = {name: read_kept(folder / name) for name in (CALLS, WEIGHTS)}
    files = {name: content for name, content in kept.items() if content is not None}
    if len(files) < len(kept):
        model = segmenter("cuda", Context(device, 1, seed, cache_dir), clip)
        files = packed(to_channels_last_half(fuse(model.coarse)))
        for name, content in files.items():
            keep(folder / name, content)
    return unpacked(files)


def packed(fused: fx.GraphModule) -> dict[str, bytes]:
    """The files of a fused network of convolutions and max pools, computing in channels_last FP16."""
    names, calls, values = {}, [], []
    for node in fused.graph.nodes:
        if node.op == "placeholder":
            names[node] = INPUT
        if node.op == "call_module":
            names[node] = str(node.target)
            module = fused.get_submodule(names[node])
            calls.append(_call(names[node], module, [names[read] for read in node.args]))
            values += [_flat(each) for each in _weight_and_bias(module) if each is not None]
    content = torch.cat(values).view(torch.uint8).cpu().numpy().tobytes()
    return {CALLS: json.dumps([asdict(call) for call in calls]).encode(), WEIGHTS: content}


def unpacked(files: Mapping[str, bytes]) -> FusedNetwork:
    calls = [Call(**each) for each in json.loads(files[CALLS])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, that these bytes must not be written: no code writes them
        return FusedNetwork(calls, torch.frombuffer(files[WEIGHTS], dtype=torch.float16))


def _call(name: str, module: Any, reads: Sequence[str]) -> Call:
    how = module.walk if isinstance(module, FusedMaxPool) else tuple(asdict(module.geometry).values())
    weight, bias = map(_shape, _weight_and_bias(module))
    return Call(name, KINDS[type(module)], reads, how, weight, bias)


def _weight_and_bias(module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    return getattr(module, "weight", None), getattr(module, "bias", None)


def _shape(tensor: Tensor | None) -> list[int]:
    return [] if tensor is None else list(tensor.shape)


def _flat(tensor: Tensor) -> Tensor:
    """The values of the tensor in channels_last order, and zeros up to the beginning of the next one."""
    values = (tensor.movedim(1, -1) if tensor.dim() == 4 else tensor).flatten()
    return nn.functional.pad(values, (0, -len(values) % ALIGNED_VALUES))


def _taken(block: Tensor, begin: int, shape: Sequence[int]) -> tuple[Tensor, int]:
    """The tensor of that shape, empty for an empty shape, and the beginning of the next one."""
    count = torch.Size(shape).numel() if shape else 0
    values, end = block[begin : begin + count], begin + count
    if len(shape) == 4:
        outputs, inputs, *kernel = shape
        values = values.view(outputs, *kernel, inputs).movedim(-1, 1)
    return values, end + -end % ALIGNED_VALUES


def _module(call: Call, x: fx.Node, weight: Tensor, bias: Tensor, operators: Operators) -> nn.Module:
    if call.kind == "pool":
        return FusedMaxPool(nn.MaxPool2d(*call.how), operators, bias if call.bias else None)
    stride, padding, dilation, groups = call.how
    geometry = Geometry(tuple(stride), tuple(padding), tuple(dilation), groups)
    convolution = Convolution(call.name, x, weight, bias, geometry)
    if call.kind == "last":
        return LastConv(convolution, operators)
    return FusedConv(convolution, operators, relu=bool(call.bias))
