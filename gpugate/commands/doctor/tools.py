"""Probes of the profilers. Each runs its profiler: an installed profiler may still refuse this user or this machine."""

from __future__ import annotations

import ctypes
import re
import shutil
import sys

from gpugate.commands.doctor.children import ChildError, describe_end, python
from gpugate.commands.doctor.finding import Answer, Group, Machine, Probe, absent, bad, ok
from gpugate.machine.environment import missing_needs
from gpugate.profiling.nsight_tools import PERMISSION, find_tool
from gpugate.session.run_child import Ended
from gpugate.workload import Needs

PROFILER_S = 60.0
LIBDW = "libdw.so.1"  # minimal systems lack it
METRIC = "sm__cycles_elapsed.max"  # a hardware counter, which an ordinary user may be forbidden to read


def nsys(machine: Machine) -> Answer:
    """Profiles a program that does nothing, without sampling: with it, nsys has filled a disk."""
    path = find_tool("nsys")
    if path is None:
        return absent("not found: install Nsight Systems, or put its nsys on PATH")
    options = ["-s", "none", "--cpuctxsw=none", "-o", "report"]
    ended = machine.children.run([path, "profile", *options, sys.executable, "-c", "pass"], PROFILER_S, own_home=True)
    if any(ended.folder.glob("*.nsys-rep")):
        return ok("makes reports" if shutil.which("nsys") else f"makes reports, though it is not on PATH: {path}")
    if any(ended.folder.glob("*.qdstrm")):
        return absent(f"{path} leaves a .qdstrm and no report: {_importer_problem(ended)}")
    return absent(f"{path} made no report, {describe_end(ended)}: install Nsight Systems anew")


def _importer_problem(ended: Ended) -> str:
    if "libdw" in ended.output or not _has_library(LIBDW):
        return f"its importer needs {LIBDW}, so install it (apt install libdw1)"
    return "its importer failed, so install Nsight Systems whole"


def _has_library(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def ncu(machine: Machine) -> Answer:
    """Reads one hardware counter of one kernel. It leaves the clocks as they are, since others may use the machine."""
    path = find_tool("ncu")
    if path is None:
        return absent("not found: install Nsight Compute, or put its ncu on PATH")
    options = ["--clock-control", "none", "--metrics", METRIC, "--launch-count", "1"]
    ended = machine.children.run([path, *options, *python("kernel")], PROFILER_S, own_home=True)
    if "ERR_NVGPUCTRPERM" in ended.output:
        return absent(f"{path} may not read hardware counters (ERR_NVGPUCTRPERM): {PERMISSION}")
    if re.search(rf"{re.escape(METRIC)}\s+\S+\s+[\d,.]+", ended.output):
        return ok("reads hardware counters" if shutil.which("ncu") else f"reads counters, though not on PATH: {path}")
    errors = re.findall(r"==ERROR== (.*)", ended.output)
    problem = errors[0][:200] if errors else describe_end(ended)
    return absent(f"{path} read no hardware counter ({problem}): run it by hand to see more")


def cupti(machine: Machine) -> Answer:
    """Checks CUPTI, through which the gate counts kernels and copies; an unchecked contract is no pass."""
    try:
        kernels = machine.children.ask("cupti", timeout_s=PROFILER_S)
    except ChildError as error:
        return bad(
            f"torch's profiler failed ({error}), and a gate counts kernels with it: install a CUDA build of torch"
        )
    if not kernels:
        return bad(f"torch's profiler sees no kernel, and a gate counts them with it: {PERMISSION}")
    return ok("torch's profiler sees kernels")


def compiler(machine: Machine) -> Answer:
    missing = missing_needs(Needs(cpp_compiler=True), machine.environment)
    return absent(missing.reason) if missing else ok("found, as Inductor needs one")


PROBES = (
    Probe(Group.TOOLS, "nsys", nsys),
    Probe(Group.TOOLS, "ncu", ncu, needs_gpu=True),
    Probe(Group.TOOLS, "CUPTI", cupti, needs_gpu=True, vital=True),
    Probe(Group.TOOLS, "C++ compiler", compiler),
)
