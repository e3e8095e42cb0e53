"""Bytes that a decoded token moves in the memory of a GPU, beside the bytes that its rung must move.

    python -m tools.bytes_of_token results/h100/bytes-of-token.md

For each rung of `llm-decode` that is a CUDA graph, Nsight Compute counts the bytes of one graph launch, and the page
gets a row. Needs a GPU, and `ncu` with the right to read counters.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import sys
from pathlib import Path

import torch

from gpugate.machine.children import program_command, run_child
from gpugate.report.table import Table, columns
from gpugate.workload import Case, Context
from workloads.llm import WORKLOADS
from workloads.llm.context import token

READ, WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
ABOUT = (
    "`python -m tools.bytes_of_token` writes this page: the bytes that one token of `llm-decode` moves in the memory\n"
    "of {device}, counted by Nsight Compute over one launch of its graph."
)
RUNGS = ("cuda-graph", "fused-gemv", "int8", "fp8")
DECODING = next(workload for workload in WORKLOADS if workload.name == "llm-decode")


def run_once(rung: str) -> None:  # cuda only
    """Decodes tokens; the profiler sees one of them."""
    context = Context(torch.device("cuda"), items=1, seed=0, cache_dir=Path())
    side = DECODING.optimization(rung).build(context)
    for index in range(3):
        side.step(token(context, index))
    counted = token(context, 3)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    side.step(counted)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def count(ncu: str, rung: str) -> tuple[float, float]:
    """Returns the bytes read and written in one step of the rung; raises SystemExit where ncu counted nothing."""
    command = [ncu, "--graph-profiling=graph", "--profile-from-start=off", f"--metrics={READ},{WRITTEN}", "--csv"]
    command += ["--page=raw", "--print-units=base", "--clock-control=none", "--cache-control=none"]
    command += ["--target-processes=application-only"]  # compilers that the program starts run at their own speed
    command += [sys.executable, "-m", __spec__.name, "--rung", rung]
    done = run_child(program_command(command), apart=True)
    lines = done.output.splitlines()
    begin = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    rows = [] if begin is None else list(csv.DictReader(lines[begin:]))
    counted = [row for row in rows if row["ID"]]  # the first row has the units
    if done.status or not counted:
        raise SystemExit(f"ncu counted nothing for {rung}: {(done.errors or done.output).strip()[-500:]}")
    read, written = (sum(float(row[name].replace(",", "")) for row in counted) for name in (READ, WRITTEN))
    return read, written


def page(found: dict[str, tuple[float, float]], device: str) -> str:
    rows = []
    for rung, (read, written) in found.items():
        needed = Case(DECODING, DECODING.optimization(rung), "cuda").size.bytes
        megabytes = (f"{number / 1e6:.0f}" for number in (needed, read, written))
        rows.append((rung, *megabytes, f"{read / needed - 1:+.1%}"))
    table = Table("", columns("rung", "must move MB", "read MB", "written MB", "read beside must"), tuple(rows))
    return "\n\n".join(("# Bytes of a token", ABOUT.format(device=device), table.markdown())) + "\n"


def main() -> None:
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=more, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("page", type=Path, nargs="?", help="Markdown file to write")
    parser.add_argument("--rung", choices=RUNGS, help="decode with this rung, for the profiler")
    options = parser.parse_args()
    if options.rung:
        run_once(options.rung)
        return
    ncu = shutil.which("ncu")
    if ncu is None or not torch.cuda.is_available() or options.page is None:
        parser.error("needs a page to write, a GPU, and ncu on PATH")
    found: dict[str, tuple[float, float]] = {}
    for rung in RUNGS:
        found[rung] = count(ncu, rung)
        options.page.write_text(page(found, torch.cuda.get_device_name()), encoding="utf-8")
    print(options.page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
