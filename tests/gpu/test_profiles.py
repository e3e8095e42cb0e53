"""A report of Nsight Systems counts what the counting pass counts, exactly, for a case of every way to use a GPU.

Two things of NVDEC excepted: the copies that it asks the driver for, whose calls PyTorch's profiler does not keep, and
the frames that its own thread has ahead, of which nobody can tell how many they are.

One command captures the cases that are selected. `GPUGATE_REPORTS=DIR` names a folder that keeps their reports: what it
has is compared again and not captured again, so that a run that was cut off goes on.
"""

import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
import torch

from gpugate.machine.environment import describe, missing_needs
from gpugate.measurement import counters, trace
from gpugate.measurement.cold_inputs import make_inputs
from gpugate.measurement.device_timer import timer_for
from gpugate.measurement.settings import WARM_UP_S
from gpugate.measurement.sides import build_side, release
from gpugate.measurement.warm_up import least_block_ms, warm_up
from gpugate.profiling.export import CapturedSteps, find_tool, read_export, safe_name
from gpugate.workload import BASELINE, Case, Context
from workloads import WORKLOADS
from workloads.video.decode import BUFFERED_FRAMES

NEEDS_NSYS = "needs nsys: install Nsight Systems, or put it on PATH"
pytestmark = [pytest.mark.alone, pytest.mark.skipif(find_tool("nsys") is None, reason=NEEDS_NSYS)]
ROOT = Path(__file__).parents[2]
# No memsets: they come with the algorithm that cuDNN picks, and the two count in processes of their own.
BY_FRAME = ("kernel_launches", "kernels")
EXACT = (
    "graph_launches",
    *(f"{way}_copies" for way in ("host_to_device", "device_to_host", "device_to_device")),
    "pageable_copies",
    "synchronizing_calls",
)
# Frames that a side's native thread may have ahead: so many more or fewer are converted, by a kernel each, in either of
# two passes. Of a step of 16 frames that forgives three quarters in four steps; the record of a step misses no frame.
AHEAD = {"nvdec": BUFFERED_FRAMES}
CONVERSION, DRIVER_COPY, COPIES_A_FRAME = "ConvertNV12", re.compile(r"cuMemcpy2DAsync"), 2
START_S, LONGEST_S = 60.0, 60.0  # of the command, and of a case on average
# A capture of both sides takes 13 s on an H200, so not every workload has one: these differ in what a profiler sees.
SEEN_DIFFERENTLY = (
    "two-layer-net",  # CUDA graphs
    "resnet50-inference",  # kernels of cuDNN, without copies
    "resnet18-training",  # worker processes and pinned copies
    "streaming-copy",  # several streams
    "host-preparation-cheap",  # threads that copy
    "video/decode",  # NVDEC and the threads of its driver
    "video/end-to-end",  # all of these in one
    "gpu-operator-rms-norm",  # kernels that a compiler wrote
    "migration",  # synchronizing calls
    "llm-decode",  # thousands of launches in a step
)
SIDES = ("reference", "optimized")


def runs_here(case: Case) -> bool:
    environment = describe(torch.device("cuda", 0))
    names = {case.optimization.name, case.reference_name} - {BASELINE}
    return all(missing_needs(case.workload.optimization(name).needs, environment) is None for name in names)


def chosen() -> list[Case]:
    """Lists the first optimization of each of these workloads that this machine can run."""
    if not torch.cuda.is_available():
        return []
    cases = []
    for workload in WORKLOADS:
        if workload.name not in SEEN_DIFFERENTLY:
            continue
        of_workload = (Case(workload, one, "cuda") for one in workload.optimizations if "cuda" in one.device_kinds)
        cases += [next(filter(runs_here, of_workload), None)]
    return [case for case in cases if case is not None]


def report(folder: Path, case: Case, side: str) -> Path:
    return folder / f"{safe_name(case.id)}.{side}.sqlite"


@pytest.fixture(scope="module")
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the reports, and what the command said that made them; whether it did is for each test to see."""
    kept = os.environ.get("GPUGATE_REPORTS")
    folder = Path(kept).absolute() if kept else tmp_path_factory.mktemp("reports")
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    selected = [cast(Case, item.callspec.params["case"]) for item in items]
    missing = [case for case in selected if not all(report(folder, case, side).exists() for side in SIDES)]
    if not missing:
        return folder, ""
    command = [sys.executable, "-m", "pytest", "perf_tests", f"--nsys={folder}", "-m", "gpu", "-p", "no:cacheprovider"]
    command += ["-k", " or ".join(case.id for case in missing)]
    try:
        ended = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=START_S + LONGEST_S * len(missing),
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return folder, f"{(error.stdout or b'').decode(errors='replace')}\nnot done within {error.timeout:g} s"
    return folder, ended.stdout


@pytest.mark.parametrize("case", chosen(), ids=repr)
def test_a_report_and_the_counting_pass_agree(case: Case, captured: tuple[Path, str]) -> None:
    folder, said = captured
    captured_steps = {}
    for side in SIDES:
        if not report(folder, case, side).exists():
            pytest.fail(f"there is no summary of {case.id} {side}:\n{said[-5000:]}")
        captured_steps[side] = read_export(report(folder, case, side))
    counted = counted_sides(case, [len(captured_steps[side].steps) for side in SIDES])
    differ: dict[str, object] = {}
    for side, name, ours in zip(SIDES, (case.reference_name, case.optimization.name), counted, strict=True):
        theirs = seen_by_both(captured_steps[side], name in AHEAD)
        of_frames = 2 * AHEAD.get(name, 0) / len(captured_steps[side].steps)
        allowed = dict.fromkeys(BY_FRAME, of_frames) | dict.fromkeys(EXACT, 0)
        differ |= {
            f"{side} {counter}": f"{theirs[counter]} in the report, {ours[counter]} counted"
            for counter, most in allowed.items()
            if abs(theirs[counter] - ours[counter]) > most + 1e-6
        }
    assert differ == {}


def seen_by_both(found: CapturedSteps, decodes: bool) -> dict[str, float]:
    """A report's counters without the copies of its frames that NVDEC asks the driver for."""
    counted = trace.counters(found.activity)
    if not decodes:
        return counted
    frames = sum(kernel["name"].startswith(CONVERSION) for kernel in found.activity.kernels)
    unseen = sum(bool(DRIVER_COPY.match(call["name"])) for call in found.activity.calls)
    assert frames > 0
    assert unseen == COPIES_A_FRAME * frames
    on_device = counted["device_to_device_copies"] - unseen / len(found.steps)
    return {**counted, "device_to_device_copies": on_device}


def counted_sides(case: Case, steps: list[int]) -> list[Mapping[str, float]]:
    """The counting pass over as many steps as the report has, after the same warm-up."""
    device = torch.device("cuda", 0)
    context = Context(device, case.size.items, case.workload.seed, ROOT / ".gpugate-cache")
    inputs = make_inputs(case.workload, context, 0, random.Random(case.id)).timed  # noqa: S311
    timer, counts = timer_for(device, case.workload.timing), list[Mapping[str, float]]()
    for name, number in zip((case.reference_name, case.optimization.name), steps, strict=True):
        side = build_side(name, case.builder(name), context, inputs[0])
        try:
            warm_up(side, inputs, timer.time_ms, least_block_ms(side), WARM_UP_S["cuda"])
            (activity,) = counters.count([side], inputs, [number])
            counts.append(trace.counters(activity))
        finally:
            side.close()
            del side
            release(device)
    return counts
