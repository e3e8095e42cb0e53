"""Known faults turn the gate red: the documented table is true of a CPU, and each fault does what its name says.

Steps take a made-up time, which the extra work of `slow` moves too: no busy machine decides anything.
"""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch

from gpugate.errors import OptionError, SideError
from gpugate.faults.fault import KINDS, OF_RANKS, SPELLING, TIMED, Fault
from gpugate.faults.mutate import mutate
from gpugate.measurement.record import Measurement
from gpugate.results.case import Promise
from gpugate.results.summary import history
from gpugate.results.verdict import CASE_CHECKS
from gpugate.session import perf_session
from gpugate.workload import TOLERANCE_BY_DTYPE, Context, Optimization, Side, Size
from tests.support.bench import CPU, Bench, bench, product, quick_collections
from tests.support.judged_cases import case as judged_case
from tests.support.judged_cases import record, verdicts
from tests.support.tiny_project import ROOT, TinyProject

__all__ = ["bench", "quick_collections"]  # fixtures

SIZES = {**{kind: f"{kind}:10" for kind in TIMED}, "wrong": "wrong:0.01"}
FAULTS = {kind: Fault.parse(SIZES.get(kind, kind)) for kind in SPELLING}


def documented_faults() -> dict[str, str]:
    """Each fault with the documented checks on a CPU."""
    rows = re.findall(r"^\| `([a-z-]+)[^|]*\|[^|]*\| ([^|]+) \|", FAULT_TABLE, re.MULTILINE)
    return {kind: cell for kind, cell in rows if kind in SPELLING}


DOCUMENT = (ROOT / "docs/verdicts.md").read_text(encoding="utf-8")
FAULT_TABLE = DOCUMENT.partition("## Seeing the gate")[2].partition("\n## ")[0]


def compiled(bench: Bench, context: Context) -> Side:
    """A compiled side, whose `engaged` reports more than one graph."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, examples: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        return torch.relu(product(inputs)) - torch.relu(-product(inputs))

    forward.__code__ = forward.__code__.replace()  # Dynamo keeps what it compiled with the code object
    net = torch.compile(forward, backend=backend)
    return bench.side("fast", 1.0, net, engaged=lambda: None if len(graphs) == 1 else f"{len(graphs)} graphs, not 1")(
        context
    )


def red(found: Measurement, clean: Measurement) -> set[str]:
    """The checks that fail, where five processes have recorded what `clean` is."""
    promise = Promise(min_speedup=1.0, tolerance=TOLERANCE_BY_DTYPE["float32"], contract=None)
    recorded = record(history([clean.instances] * 5), optimized_counters={})
    judged = verdicts(judged_case(found, promise=promise, remembered=recorded))
    return {check for check, verdict in judged.items() if verdict.bad}


# --- the documented table ---------------------------------------------------------------------------------------------


def test_the_table_has_every_fault_with_its_checks() -> None:
    assert list(documented_faults()) == list(SPELLING)
    for kind, spelling in SPELLING.items():
        row = FAULT_TABLE.partition(f"| `{spelling}` |")[2].partition("\n")[0]
        # A sentence below the table adds the speedup.
        assert {check for check in CASE_CHECKS if check in row} == {*KINDS[kind].caught_by} - {"speedup"}


# tests/workloads/ddp_scaling has those between ranks
@pytest.mark.parametrize("kind", [kind for kind in SPELLING if kind not in OF_RANKS])
def test_the_table_is_true_on_a_cpu(kind: str, bench: Bench) -> None:
    case = bench.case(partial(compiled, bench) if kind == "graph-break" else None)
    documented = documented_faults()[kind]
    if documented.startswith("cannot"):
        with pytest.raises(SideError, match=f"^fast failed while being mutated by {kind}") as refused:
            bench.measure(case, budget_s=1.0, fault=FAULTS[kind])
        assert documented == f"cannot: {refused.value.cause}"
        return
    clean, found = (bench.measure(case, budget_s=1.0, fault=fault) for fault in (None, FAULTS[kind]))
    assert red(clean, clean) == set()
    caught = red(found, clean)
    assert documented == ", ".join(check for check in CASE_CHECKS if check in caught)


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling", ["slow:0.5", "longer-kernel:5", "cpu-work:5", "wrong:1e-05", "graph-break", "slow:12.345678901234"]
)
def test_a_fault_reads_as_it_is_written(spelling: str) -> None:
    fault = Fault.parse(spelling)
    assert str(fault) == spelling
    assert Fault.parse(str(fault)) == fault


@pytest.mark.parametrize(
    ("text", "next_step"),
    [
        *((text, "use one of slow:PERCENT, longer-kernel") for text in ("", "Slow:5", ":5", "no_graph")),
        *((f"slow:{text}", "give a number above 0 up to 1000") for text in ("", "-3", "0", "nan", "inf", "5%", "1001")),
        *((text, "above 0, such as wrong:0.01") for text in ("wrong", "wrong:0", "wrong:a bit")),
        ("leak:3", "has no size"),
    ],
)
def test_what_is_no_fault_is_refused_in_one_sentence(text: str, next_step: str) -> None:
    with pytest.raises(OptionError) as raised:
        Fault.parse(text)
    sentence = str(raised.value)
    assert sentence.startswith(f"--perf-mutate is {text!r}: ")
    assert next_step in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ("wrong:0.5", 0, "WRONG equivalence of tiny/quick/cpu: on fresh inputs, the relative L2 error 5.00e-01"),
        ("slow:1", 1, "ERROR: nothing caught slow:1 in tiny/quick/cpu: record a baseline without the fault first"),
        (
            "copy",
            2,
            "tiny/quick/cpu: quick failed while being mutated by copy: ValueError: a CPU copies",
        ),
    ],
)
def test_the_exit_status_of_a_fault_is_0_caught_1_missed_2_impossible(
    tiny: TinyProject, fault: str, status: int, said: str
) -> None:
    result = tiny.run("--perf-device=cpu", "-k", "outputs", f"--perf-mutate={fault}")
    assert result.status == status
    assert said in result.text
    assert (f"the fault {fault} was caught in 1 case: exit status 0" in result.text) == (status == 0)
    assert (f"no case can show the fault {fault}: exit status 2" in result.text) == (status == 2)


def test_no_time_limit_leaves_out_a_case_with_a_fault(tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_session, "LAST_START_S", 0.0)
    monkeypatch.setattr(perf_session, "share_time", lambda cases: 0.2)
    result = tiny.run("--perf-device=cpu", "-k", "outputs", "--perf-mutate=wrong:0.5", "--perf-budget=")
    assert (result.status, "without --perf-budget were over" in result.text) == (0, False)


def test_a_failed_test_of_something_else_is_no_caught_fault(tiny: TinyProject) -> None:
    tiny.write("perf_tests/test_other.py", "def test_outputs_of_another_kind():\n    raise ValueError\n")
    assert tiny.run("--perf-device=cpu", "-k", "outputs", "--perf-mutate=wrong:0.5").status == 1


# --- which side, and when ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "items", "sentence"),
    [
        ("skip-work", 1, "there is no half of 1 item per step"),
        *((kind, 4, f"{kind} is a fault between GPUs, and this case runs on one device") for kind in OF_RANKS),
    ],
)
def test_a_case_that_cannot_have_a_fault_is_refused(kind: str, items: int, sentence: str) -> None:
    case = Bench().case()
    case = replace(case, workload=replace(case.workload, sizes={"cpu": Size(items, 0, 0)}))
    with pytest.raises(SideError, match=f"mutated by {kind}: ValueError: {sentence}"):
        mutate(case, FAULTS[kind], CPU)


def test_a_side_that_compiles_nothing_cannot_break_a_graph(bench: Bench) -> None:
    with pytest.raises(SideError, match=r"running its first step: .* calls torch\.compile, and this"):
        bench.measure(bench.case(), fault=FAULTS["graph-break"])


def test_only_the_optimized_side_has_the_fault() -> None:
    """Also where it is compared with another optimization of the same workload."""
    bench = Bench()
    case, other = bench.case(), Optimization("other", bench.side("other", 2.0), {"cpu": 1.0})
    fast = replace(case.optimization, compared_with="other")
    case = replace(case, workload=replace(case.workload, optimizations=(other, fast)), optimization=fast)
    faulty = mutate(case, FAULTS["wrong"], CPU)
    assert faulty.builder("other") is other.build
    assert faulty.builder("baseline") is case.workload.baseline
    assert faulty.builder("fast") is faulty.optimization.build is not fast.build
    assert (faulty.id, faulty.reference_name) == (case.id, "other")
