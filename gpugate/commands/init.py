"""`gpugate init DIR`: writes the README's example, one workload and its test, for a project to start from."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from gpugate.errors import OptionError
from gpugate.store.json_file import writing

CONFTEST = """\
# conftest.py
import torch
from gpugate.catalogue import register
from gpugate.workload import Optimization, Side, Size, Workload

def tokens(context, index):
    return torch.randn(context.items, 512, generator=torch.Generator().manual_seed(index)).to(context.device)

def three_projections(context, fused=False):
    torch.manual_seed(context.seed)
    weights = [torch.randn(512, 512, device=context.device) / 512**0.5 for _ in range(3)]
    weights = [torch.cat(weights, dim=1)] if fused else weights
    return Side(lambda x: torch.cat([x @ weight for weight in weights], dim=1))

def fused_qkv(context):
    return three_projections(context, fused=True)

size = Size(items=256, flops=2 * 256 * 512 * 1536, bytes=4 * (512 * 1536 + 256 * 2048))
optimization = Optimization("fused-qkv", fused_qkv, min_speedup={"cpu": 0.7, "cuda": 1.1})
register(Workload("projection", three_projections, tokens, {"cpu": size, "cuda": size}, (optimization,)))
"""
TEST = """\
# test_my_workload.py
def test_it_is_right_and_pays(workload, gate):
    gate(workload.equivalence, workload.speedup, workload.throughput, workload.counters)
"""
WORKLOAD = "projection"
FILES = {"conftest.py": CONFTEST, "test_my_workload.py": TEST}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder to write to, which need not exist")


def run(arguments: argparse.Namespace) -> int:
    """Writes both files, or none where one of them exists."""
    folder: Path = arguments.folder
    paths = [folder / name for name in FILES]
    found = [str(path) for path in paths if path.exists()]
    if found:
        away = "the files" if len(found) > 1 else "the file"
        raise OptionError(f"{' and '.join(found)} would be overwritten: give another folder, or move {away} away")
    with writing(folder, OptionError, "give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, FILES.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    print(f"wrote {' and '.join(map(str, paths))}")
    # Without -k, the folder's tests also measure the workloads of a project that it lies in.
    command = shlex.join(["pytest", str(folder), "-k", WORKLOAD])
    print("the variable OMP_NUM_THREADS is for a CPU: export it before you record")
    print(f"next: OMP_NUM_THREADS=1 {command}")
    return 0
