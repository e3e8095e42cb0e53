"""Known faults turn the gate red on a GPU: the documented columns for CUDA are true.

Only counters and outputs decide here, never a time. Tests without a GPU show that `slow` is caught by its time; a test
here shows that it sleeps for the given time.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from gpugate.errors import SideError
from gpugate.faults.fault import OF_RANKS, SPELLING, TIMED, Fault
from gpugate.faults.slow import slow_down
from gpugate.judging.rules import decide
from gpugate.machine.environment import describe
from gpugate.measurement import settings
from gpugate.measurement.progress import silent
from gpugate.measurement.record import Measurement
from gpugate.measurement.run import measure
from gpugate.measurement.settings import Settings
from gpugate.results.case import CaseResult, Promise, Remembered
from gpugate.results.run import Mode
from gpugate.results.summary import history
from gpugate.results.verdict import Verdict
from gpugate.workload import Case, Context, Side, for_device_class
from workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/verdicts.md").read_text(encoding="utf-8")
FAULT_TABLE = DOCUMENT.partition("## Seeing the gate")[2].partition("\n## ")[0]
COLUMNS = {"two-layer-net": 3, "resnet50-inference": 4, "resnet50-inference-batch1": 4}
CHECKS = ("equivalence", "speedup", "throughput", "counters")
NET, PHOTOGRAPHS, PHOTOGRAPH = "two-layer-net", "resnet50-inference", "resnet50-inference-batch1"
# Faults between ranks have a table of their own, and a test in tests/workloads.
UNTIMED = [kind for kind in SPELLING if kind not in (*TIMED, *OF_RANKS)]
SHOWN = [
    *((kind, NET, "all") for kind in UNTIMED),
    *((kind, NET, "cuda-graph") for kind in ("pageable", "launch", "no-graph", "stale", "skip-work")),
    *((kind, NET, "no-sync") for kind in ("sync", "pageable", "stale", "leak")),
    *((kind, NET, "pinned-async") for kind in ("pageable", "no-graph", "copy", "wrong", "leak")),
    *((kind, PHOTOGRAPHS, "channels-last-fp16") for kind in UNTIMED),
    *((kind, PHOTOGRAPHS, "cudnn-fused") for kind in ("sync", "launch", "copy", "no-graph")),
    *((kind, PHOTOGRAPH, "cuda-graph") for kind in ("pageable", "no-graph", "stale")),
    ("graph-break", PHOTOGRAPH, "inductor-fp16"),
]


@pytest.fixture(scope="module", autouse=True)
def quick(quick_to_collect: None) -> Iterator[None]:
    """Counters and outputs need no settled clock."""
    torch.cuda.set_device(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(settings.WARM_UP_S, "cuda", 0.05)
        yield
    clean.cache_clear()


def case_of(workload: str, optimization: str) -> Case:
    found = next(each for each in WORKLOADS if each.name == workload)
    return Case(found, found.optimization(optimization), "cuda")


def measured(case: Case, fault: Fault | None = None) -> Measurement:
    context = Context(torch.device("cuda", 0), case.size.items, case.workload.seed, Path())
    plan = Settings(budget_s=0.2, min_builds=1, fault=fault)
    return measure(case, context, plan, silent)


def shown(case: Case, fault: Fault) -> Measurement | SideError:
    """Measures the faulty case; returns the error where it could not be measured."""
    try:
        return measured(case, fault)
    except SideError as error:
        return error


@cache
def clean(workload: str, optimization: str) -> Measurement:
    return measured(case_of(workload, optimization))


def verdicts(case: Case, found: Measurement, recorded: Measurement | None) -> dict[str, Verdict]:
    """Returns the gate's verdicts against a record of five processes of `recorded`."""
    result = CaseResult(case.id, case.workload.name, case.optimization.name, case.reference_name, case.size, found)
    optimization, classes = case.optimization, describe(torch.device("cuda", 0)).device_classes
    contract = for_device_class(optimization.contract, classes)
    result.promise = Promise(None, optimization.tolerated, contract)
    if recorded is not None:
        then = history([recorded.instances] * 5)
        result.remembered = Remembered(then, "exact", optimized_counters=recorded.optimized_counters)
    return {verdict.check: verdict for verdict in decide(result, mode=Mode.GATE)}


def told(kind: str, workload: str, optimization: str) -> set[str]:
    """The checks that catch the fault, as documented; none where the document says that the case cannot show it."""
    row = next(line for line in FAULT_TABLE.splitlines() if re.match(rf"\| `{kind}[:`]", line))
    cell = row.split(" | ")[COLUMNS[workload]].strip(" |")
    checks, _, names = cell.partition(" of ")
    shown = not cell.startswith("cannot") and (not names or f"`{optimization}`" in names)
    return {check for check in CHECKS if check in checks} if shown else set()


@pytest.mark.parametrize(
    ("workload", "optimization"),
    [
        *((NET, name) for name in ("cuda-graph", "no-sync", "pinned-async", "all")),
        *((PHOTOGRAPHS, name) for name in ("channels-last-fp16", "cudnn-fused")),
    ],
)
def test_what_has_no_fault_is_not_red(workload: str, optimization: str) -> None:
    """Measured twice: what the first one counted is what the second one is judged by."""
    case = case_of(workload, optimization)
    found = measured(case)
    said = verdicts(case, found, clean(workload, optimization))
    assert said["counters"].good, said["counters"].reason
    assert said["equivalence"].good, said["equivalence"].reason
    assert found.optimized_counters["grown_bytes"] == found.reference_counters["grown_bytes"] == 0


@pytest.mark.parametrize(("kind", "workload", "optimization"), SHOWN)
def test_the_table_is_true_on_a_gpu(kind: str, workload: str, optimization: str) -> None:
    case, fault = case_of(workload, optimization), Fault.parse("wrong:0.01" if kind == "wrong" else kind)
    expected, found = told(kind, workload, optimization), shown(case, fault)
    if isinstance(found, SideError):
        # CUDA may refuse to capture copies of pageable memory: red as well.
        assert not expected or (kind, optimization) == ("pageable", "all"), found
        return
    assert expected, "it was measured as if it could show the fault"
    # A graph break needs no record, and compiling the clean side would take longest here.
    said = verdicts(case, found, None if kind == "graph-break" else clean(workload, optimization))
    for check in expected:
        assert said[check].bad, f"{check} is {said[check].outcome.value}: {said[check].reason}"


@pytest.mark.alone
def test_a_longer_kernel_adds_its_share_to_the_kernels_of_a_step_and_one_launch() -> None:
    case = case_of(PHOTOGRAPHS, "channels-last-fp16")
    found, usual = (one.optimized_counters for one in (measured(case, Fault("longer-kernel", 20.0)), measured(case)))
    assert found["kernel_ms"] == pytest.approx(1.2 * usual["kernel_ms"], rel=0.03)
    assert (found["kernels"], found["kernel_launches"]) == (usual["kernels"] + 1, usual["kernel_launches"] + 1)


@pytest.mark.alone
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_slow_sleeps_for_its_share_of_a_block(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that sleep too, for a known number of cycles: whatever the clock is, the cycles must be the share."""
    sleep, asked, steps, cycles = torch.cuda._sleep, list[int](), 100, 200_000

    def note_and_sleep(count: int) -> None:
        asked.append(count)
        sleep(count)

    monkeypatch.setattr(torch.cuda, "_sleep", note_and_sleep)
    value = torch.ones(1, device="cuda")

    def step(inputs: object) -> torch.Tensor:
        sleep(cycles)
        return value

    context = Context(torch.device("cuda", 0), items=1, seed=0, cache_dir=Path())
    side = slow_down(lambda context: Side(step), share)(context)
    for _ in range(12):
        torch.cuda.synchronize()
        run = side.step
        for _ in range(steps):
            run(None)
        side.finish()
    torch.cuda.synchronize()
    # Between two sleeps the device is idle for a moment, and one launch is part of the extra work.
    assert asked[-1] == pytest.approx(share * steps * cycles, rel=0.1)
