"""The order in which threads read memory, the size of a program, and the banks of shared memory.

A GPU's memory answers in sectors of 32 bytes. Where the 32 threads of a warp read neighbours, four sectors serve them.
Where each thread reads another row, 32 sectors serve them: each thread uses an eighth of its sector, and only a cache
can keep the rest for later. A program of few values leaves a multiprocessor with too few loads in flight.

A transposition reads rows and writes columns. A tile in shared memory lets both be whole sectors, but its column of 32
values lies in one of the 32 banks, which serve a value each at a time. One more value a row moves the column over all
banks. `pytest --ncu` shows sectors per request, conflicts of banks, the memory's rate and the occupancy.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from gpugate.workload import Context, Contract, Limit, Needs, Optimization, Point, Side, Size, Workload
from workloads.parts.random_inputs import draw

WIDTH = {"cuda": 8192, "cpu": 1024}
BLOCK = 1024
GAINS_OF_BLOCKS = {
    32: 0.94,
    128: 3.72,
    512: 8.71,
    2048: 8.48,
    8192: 8.73,
}  # by the values of a program, on an H100 or H200


def matrix(context: Context, index: int) -> Tensor:
    """float32 [rows, width]."""
    return draw(context, index, context.items, WIDTH[context.device.type])


def _on_cpu(along_rows: bool) -> Side:
    """The same lesson on a CPU, whose cache lines have 64 bytes: the matrix is scaled a line at a time."""

    def step(x: Tensor) -> Tensor:
        result = torch.empty_like(x)
        lines, written = (x, result) if along_rows else (x.t(), result.t())
        for line, out in zip(lines, written, strict=True):
            torch.add(1, line, alpha=2, out=out)
        return result

    return Side(torch.inference_mode()(step))


def along(context: Context, along_rows: bool, block: int = BLOCK) -> Side:
    """One program for each piece of a row, or for each piece of a column."""
    if context.device.type == "cpu":
        return _on_cpu(along_rows)
    from workloads.parts.row_kernels import scale  # which needs Triton

    return Side(lambda x: scale(x, block, along_rows))


def transposed(context: Context) -> Side:
    return Side(lambda x: x.t().contiguous())


# A program of 32 x 8 threads moves a tile of 32 x 32 values. PITCH is the length of a row of the tile.
TRANSPOSE = """
extern "C" __global__ void transpose(const float* from, float* to, int rows, int width) {
    __shared__ float tile[32][PITCH];
    const int x = threadIdx.x, y = threadIdx.y, column = 32 * blockIdx.x, row = 32 * blockIdx.y;
    for (int i = y; i < 32; i += 8) tile[i][x] = from[(size_t)(row + i) * width + column + x];
    __syncthreads();
    for (int i = y; i < 32; i += 8) to[(size_t)(column + i) * rows + row + x] = tile[x][i];
}
"""


def in_tiles(context: Context, pitch: int) -> Side:
    """A kernel in CUDA C: Triton chooses the layout of shared memory by itself, and avoids the conflicts."""
    kernel = torch.cuda._compile_kernel(TRANSPOSE.replace("PITCH", f"{pitch}"), "transpose")

    def step(x: Tensor) -> Tensor:
        rows, width = x.shape
        result = x.new_empty(width, rows)
        kernel(grid=(width // 32, rows // 32, 1), block=(32, 8, 1), args=[x, result, rows, width])
        return result

    return Side(step)


def size(kind: str, rows: int) -> Size:
    """FLOPs: 2 per value. Bytes: each value read and written once."""
    values = rows * WIDTH[kind]
    return Size(items=rows, flops=2.0 * values, bytes=8.0 * values)


TRITON = Needs(packages=("triton",), install="pip install triton")
NEAR_A_COPY = {"cuda": Contract(limits=(Limit("copy_share", at_least=0.8),))}


def _of_block(block: int, gain: float) -> Optimization:
    why = "too few loads of a multiprocessor are in flight" if block < 128 else ""
    build = partial(along, along_rows=True, block=block)
    contract = NEAR_A_COPY if block >= 512 else {}
    return Optimization(
        *(f"block-{block}", build, {"sm_90": gain, "cuda": 0.9}),
        needs=TRITON,
        contract=contract,
        why=why,
        point=Point("block", block),
    )


AGAINST_COLUMNS = "the reference is the same kernel in Triton, which reads columns: the mistake that this case teaches"

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "memory-access",
        partial(along, along_rows=False),
        matrix,
        {"cuda": size("cuda", 8192), "cpu": size("cpu", 1024)},
        (
            Optimization(
                "along-rows",
                partial(along, along_rows=True),
                {"sm_90": 8.8, "cuda": 1.5, "cpu": 1.5},
                contract=NEAR_A_COPY,
                why=AGAINST_COLUMNS,
            ),
            *(_of_block(block, gain) for block, gain in GAINS_OF_BLOCKS.items()),
        ),
    ),
    Workload(
        "memory-transpose",
        transposed,
        matrix,
        {"cuda": size("cuda", 8192)},
        (
            Optimization(
                "tiles",
                partial(in_tiles, pitch=32),
                {"sm_90": 1.3, "cuda": 0.5},
                why="the 32 values of a column share a bank of shared memory",
            ),
            Optimization(
                "padded-tiles",
                partial(in_tiles, pitch=33),
                {"sm_90": 2.0, "cuda": 1.1},
                compared_with="tiles",
                contract={"cuda": Contract(limits=(Limit("copy_share", at_least=0.75),))},
            ),
        ),
    ),
)
