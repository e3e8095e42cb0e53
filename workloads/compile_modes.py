"""A stack of gated layers under each mode of torch.compile: what is compiled, how often, and for which shapes.

A step runs four batches of different lengths, as requests come. Eagerly each layer is nine launches for a batch. A
compiled layer has the same matrix products with one kernel between them, and what remains is a question of shapes:
code for each length, or code for all of them; and of launches: one by one, or as a CUDA graph for each length.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpugate.workload import Build, Context, Contract, Limit, Needs, Optimization, Side, Size, Workload
from workloads.parts.compiled import COMPILER, compile_anew
from workloads.parts.kept_files import key_of, read_or_make
from workloads.parts.random_inputs import host_generator

LAYERS = 6
WIDTH = {"cuda": 512, "cpu": 128}
WIDER = 11 / 4  # of the gate: 8/3, rounded up to whole tiles
SHARES = (1, 2, 3, 4)  # of the ten parts of a step's tokens: the lengths of the batches
Step = Callable[[Tensor], Tensor]


class Layer(nn.Module):
    """A gated layer with a residual: RMSNorm, then SwiGLU (Shazeer, GLU Variants Improve Transformer, 2020)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = int(width * WIDER)
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm(x)
        added: Tensor = self.down(F.silu(self.gate(normal)) * self.up(normal))
        return x + added


def stack(context: Context) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(context.seed)
        layers = nn.Sequential(*(Layer(WIDTH[context.device.type]) for _ in range(LAYERS)))
    return layers.eval().requires_grad_(False).to(context.device)


def batches(context: Context, index: int) -> list[Tensor]:
    """Four batches, float32 [tokens, width], of 1 to 4 tenths of the tokens."""
    generator = host_generator(context, index)
    lengths = [context.items * share // sum(SHARES) for share in SHARES]
    width = WIDTH[context.device.type]
    return [torch.randn(length, width, generator=generator).to(context.device) for length in lengths]


def size(items: int, width: int) -> Size:
    """FLOPs: 2 per multiply-add of three products. Bytes: the weights once for each batch, its rows once."""
    weights = LAYERS * 3 * width * int(width * WIDER)
    values = len(SHARES) * weights + 2 * items * width
    return Size(items=items, flops=2.0 * items * weights, bytes=4.0 * values)


def _side(model: nn.Module, run: Step) -> Side:
    """Runs the batches without gradients. Tensors of inference mode would be another kind, and compiled once more."""
    return Side(torch.no_grad()(lambda inputs: [run(batch) for batch in inputs]), model)


def eager(context: Context) -> Side:
    model = stack(context)
    return _side(model, model)


def _compiled(context: Context, **options: Any) -> Side:
    model = stack(context)
    return _side(model, compile_anew(lambda x: model(x), **options))


def default(context: Context) -> Side:
    """Code for the first length; the second one compiles again, with the length as a variable from then on."""
    return _compiled(context)


def static(context: Context) -> Side:
    """Code for each length."""
    return _compiled(context, dynamic=False)


def dynamic(context: Context) -> Side:
    """Code for all lengths, compiled once."""
    return _compiled(context, dynamic=True)


def max_autotune(context: Context) -> Side:
    """As `dynamic`, and each product by the fastest of the kernels that were timed."""
    return _compiled(context, dynamic=True, mode="max-autotune-no-cudagraphs")


def reduce_overhead(context: Context) -> Side:
    """As `static`, and one CUDA graph for each length. A replay overwrites its last output, hence the copy."""
    model = stack(context)
    mode = "reduce-overhead" if context.capture_graphs else "default"
    replay = compile_anew(lambda x: model(x), dynamic=False, mode=mode)
    return _side(model, lambda batch: replay(batch).clone())


def regional(context: Context) -> Side:
    """One layer is compiled, and all six run its code: a sixth of the compiler's work."""
    model = stack(context)
    run_layer = compile_anew(lambda layer, x: layer(x), dynamic=True)

    def run(x: Tensor) -> Tensor:
        for layer in model:
            x = run_layer(layer, x)
        return x

    return _side(model, run)


def ahead_of_time(context: Context) -> Side:
    """A package that AOTInductor made once, and that a program without a compiler loads: no Dynamo, no guards."""
    model, width = stack(context), WIDTH[context.device.type]
    tokens = torch.export.Dim("tokens", min=2, max=1 << 16)
    example = torch.randn(8, width, device=context.device)
    exported = torch.export.export(model, (example,), dynamic_shapes=({0: tokens},))
    machine = torch.cuda.get_device_name(context.device) if context.device.type == "cuda" else "cpu"
    kept = context.cache_dir / f"compile-modes-{key_of(torch.__version__, machine, context.seed, str(exported))}"
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "stack.pt2"

        def compile_package() -> bytes:
            torch._inductor.aoti_compile_and_package(exported, package_path=str(package))
            return package.read_bytes()

        package.write_bytes(read_or_make(kept, compile_package))
        return _side(model, torch._inductor.aoti_load_package(str(package)))


ONE_GRAPH = Limit("compiled_graphs", at_most=1)
NO_BREAKS = Limit("graph_breaks", at_most=0)
PACKAGER = Needs(packages=("setuptools",), cpp_compiler=True, install="pip install setuptools, and a C++ compiler")
GUARDS = "the host checks the guards of every layer, and the host bounds this step"
FIRST_LENGTH = "kernels of full FP32 in Triton are timed for the first length alone"
FUSED = Limit("kernels", at_most_of_reference=0.85)
# On an H200 a side began in 1 to 8 s, and in 72 s where kernels are timed; a busy host takes several times as long
# without kept code.
COMPILE_S = 60.0


def _rung(
    name: str,
    build: Build,
    promises: dict[str, float],
    *limits: Limit,
    recompilations: int = 0,
    compile_s: float = COMPILE_S,
    **more: Any,
) -> Optimization:
    """A rung whose first limit shows that it engaged. It may compile anew for so many of the lengths."""
    whole = NO_BREAKS, Limit("recompilations", at_most=recompilations)
    on_gpu = Contract(limits[:1], (*limits[1:], *whole, Limit("compile_s", at_most=compile_s)))
    words = {"needs": COMPILER, "contract": {"cuda": on_gpu, "cpu": Contract(limits=whole)}, **more}
    return Optimization(name, build, promises, **words)


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "compile-modes",
        eager,
        batches,
        {"cuda": size(1280, WIDTH["cuda"]), "cpu": size(40, WIDTH["cpu"])},
        (
            _rung("default", default, {"cuda": 1.0, "cpu": 0.8}, FUSED, recompilations=1),
            _rung("static", static, {"cuda": 1.0, "cpu": 0.8}, FUSED, recompilations=3),
            _rung("dynamic", dynamic, {"cuda": 1.0, "cpu": 0.8}, FUSED, ONE_GRAPH),
            _rung("regional", regional, {"cuda": 0.6, "cpu": 0.8}, FUSED, ONE_GRAPH, why=GUARDS),
            _rung(
                *("max-autotune", max_autotune, {"cuda": 0.44}, FUSED, ONE_GRAPH),
                compile_s=240.0,
                why=FIRST_LENGTH,
                min_speedup_why="its kernels took 3.5 ms in one process, and the eager ones 1.5 ms",
            ),
            _rung(
                *("reduce-overhead", reduce_overhead, {"cuda": 1.55}, Limit("graph_launches", at_least=4, at_most=4)),
                recompilations=3,
            ),
            _rung(
                *("ahead-of-time", ahead_of_time, {"cuda": 1.5}),
                needs=PACKAGER,
                contract={"cuda": Contract((FUSED,), (NO_BREAKS, Limit("recompilations", at_most=0)))},
            ),
        ),
        cold=False,
    ),
)
