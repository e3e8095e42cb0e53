"""A report of Nsight Systems counts what the counting pass counts, exactly, for a case of every workload."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from gpugate.environment import describe, missing_needs
from gpugate.measurement import settings
from gpugate.measurement.progress import silent
from gpugate.measurement.run import measure
from gpugate.measurement.settings import Settings
from gpugate.profiling import summary_file
from gpugate.profiling.artifact_names import safe_name
from gpugate.profiling.nsight_tools import found
from gpugate.workload import BASELINE, Case, Context
from workloads import WORKLOADS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="profiles what runs on a GPU, and torch sees none"),
    pytest.mark.skipif(found("nsys") is None, reason="needs nsys: install Nsight Systems, or put it on PATH"),
]
ROOT = Path(__file__).parents[2]
EXACT = (
    "kernel_launches",
    "graph_launches",
    "kernels",
    "memsets",
    *(f"{way}_copies" for way in ("host_to_device", "device_to_host", "device_to_device")),
    "pageable_copies",
    "synchronizing_calls",
)
LONGEST_S = 1200.0


def runs_here(case: Case) -> bool:
    environment = describe(torch.device("cuda", 0))
    names = {case.optimization.name, case.reference_name} - {BASELINE}
    return all(missing_needs(case.workload.optimization(name).needs, environment) is None for name in names)


def chosen() -> list[Case]:
    """Of every workload the first optimization that this machine can run."""
    if not torch.cuda.is_available():
        return []
    cases = []
    for workload in WORKLOADS:
        of_workload = (Case(workload, one, "cuda") for one in workload.optimizations if "cuda" in one.device_kinds)
        cases += [next(filter(runs_here, of_workload), None)]
    return [case for case in cases if case is not None]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of all of them, captured by one command."""
    folder = tmp_path_factory.mktemp("reports")
    command = [sys.executable, "-m", "pytest", "perf_tests", f"--nsys={folder}", "-m", "gpu", "-p", "no:cacheprovider"]
    selected = " or ".join(case.id for case in chosen())
    ended = subprocess.run(
        [*command, "-k", selected], cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONGEST_S
    )
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-5000:]
    return folder


@pytest.mark.parametrize("case", chosen(), ids=repr)
def test_a_report_and_the_counting_pass_agree(case: Case, reports: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(settings.WARM_UP_S, "cuda", 0.05)
    context = Context(torch.device("cuda", 0), case.size.items, case.workload.seed, ROOT / ".gpugate-cache")
    counted = measure(case, context, Settings(budget_s=0.2, min_pairs=4, min_instances=1, prove=False), silent)
    for label, counters in (("reference", counted.reference_counters), ("optimized", counted.optimized_counters)):
        summary = summary_file.read(reports / f"{safe_name(case.id)}.{label}.summary.json")
        assert of_exact(summary.counters) == of_exact(counters), (label, summary.notes)


def of_exact(counters: Mapping[str, float]) -> dict[str, float]:
    return {name: counters[name] for name in EXACT}
