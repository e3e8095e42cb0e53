"""The contract of the catalogue: the claims that every workload makes, each tested once for all of them, on a CPU.

The catalogue takes a workload; its inputs are seeded; its sides agree, engage, leave the random numbers of the process
alone and share no memory; a stale output and half of the work are seen; a missing library is a skip with the next step.
test_stated_work has the FLOPs, of models of their real size. The tests of one workload are about what it alone does.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpugate.catalogue import Catalogue
from gpugate.faults.fault import Fault
from gpugate.faults.mutate import mutate
from gpugate.machine import environment
from gpugate.machine.environment import Environment, describe, missing_needs
from gpugate.measurement.difference import differences
from gpugate.measurement.record import Difference
from gpugate.measurement.sides import BuiltSide, build_side
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.workload import BASELINE, Case, Context, Tolerance, Workload, for_device_class
from gpugate.workload.parts import Parts, list_parts, list_tensors
from tests.support.one_thread import one_thread  # noqa: F401  # in force by being here
from tests.support.small_models import small_models
from workloads import WORKLOADS
from workloads.video.clip import BATCH

pytestmark = pytest.mark.usefixtures("no_compiler")
CPU = torch.device("cpu")
COMPILER = "torch._inductor.compile_fx.compile_fx"
ALL = [
    Case(workload, each, kind)
    for workload in WORKLOADS
    for each in workload.optimizations
    for kind in each.device_kinds
]
# The ranks of a job share nothing but their wire, and have the tests of test_ddp_scaling.
CASES = [case for case in ALL if case.device_kind == "cpu" and not case.spans_gpus]
ON_CPU = [workload for workload in WORKLOADS if workload in [case.workload for case in CASES]]
# Dropout draws in each step, and the layers of a decoder draw their first weights, which others replace.
DRAWS = ("driving", "llm-")
# Both sides read the checksums of one file, or the frames and the luma of one clip.
READS_ONE_SOURCE = ("streaming-", "video/")
# A step of one prompt, of a text, or of batches of several lengths has no half, and no update or gradient has one.
NOT_HALVED = (
    *("llm-", "video/end-to-end", "attention-", "compile-modes"),
    *("migration", "optimizer-step", "activation-memory"),
)


def test_a_step_of_driving_or_video_is_whole_batches() -> None:
    """The steps would drop the rest."""
    for case in ALL:
        items = case.workload.sizes[case.device_kind].items
        if case.workload.name.startswith("driving"):
            assert items % min(case.optimization.build.args[0].batch, items) == 0
        elif case.workload.name == "video/encode":
            assert items % BATCH == 0
        elif case.workload.name == "video/end-to-end":
            assert items == BATCH


def name_of(one: Case | Workload) -> str:
    return one.id if isinstance(one, Case) else one.name


def context_of(workload: Workload, cache_dir: Path) -> Context:
    """The context of a step on a CPU; an operator gets few of its rows."""
    items = workload.sizes["cpu"].items
    return Context(CPU, min(items, 64) if workload.name.startswith("operator-") else items, workload.seed, cache_dir)


def random_numbers() -> list[Any]:
    """The state of every generator of the process."""
    return [torch.get_rng_state().tolist(), random.getstate(), [*map(str, np.random.get_state())]]


@dataclass(frozen=True)
class Reference:
    """The baseline of a workload, with its outputs of two input sets. Its small models stay for the optimized sides."""

    workload: Workload
    context: Context
    made: list[Any]
    side: BuiltSide
    expected: list[Parts]
    kept_random_numbers: bool

    @property
    def inputs(self) -> list[Any]:
        """The inputs, made again where a step writes to them."""
        return make_inputs(self.workload, self.context) if self.workload.writes_inputs else self.made


@dataclass(frozen=True)
class Built:
    """Both sides of a case, with the optimized side's outputs of the two input sets."""

    case: Case
    reference: Reference
    optimized: BuiltSide
    outputs: list[Parts]
    kept_random_numbers: bool
    graphs: list[object]  # that were to be compiled

    def is_wrong(self, output: Parts, expected: Parts) -> bool:
        found = differences(output, expected, "fresh inputs")
        return any(exceeds(each, self.case.optimization.tolerated) for each in found)


def exceeds(found: Difference, allowed: Tolerance) -> bool:
    if found.unequal is not None and allowed.equal_share is not None:
        return found.unequal > (1 - allowed.equal_share) * found.values
    return found.relative_l2 > allowed.relative_l2 or found.max_error > allowed.max_error


def make_inputs(workload: Workload, context: Context) -> list[Any]:
    return [workload.inputs(context, index) for index in range(2)]


@contextmanager
def build_reference(workload: Workload, cache_dir: Path) -> Iterator[Reference]:
    context, before = context_of(workload, cache_dir), random_numbers()
    with small_models():
        inputs = make_inputs(workload, context)
        built_with = make_inputs(workload, context) if workload.writes_inputs else inputs
        side = build_side(BASELINE, workload.baseline, context, built_with[0])
        expected = [side.output_for(each, expected=True) for each in inputs]
        yield Reference(workload, context, inputs, side, expected, random_numbers() == before)
        side.close()
    TorchFlags().apply()


@pytest.fixture(scope="module")
def find_reference(cache_dir: Path) -> Iterator[Callable[[Workload], Reference]]:
    """Builds the baseline of a workload once for its cases, which come one after another."""
    with ExitStack() as stack:
        built: list[Reference] = []

        def find(workload: Workload) -> Reference:
            if not built or built[-1].workload is not workload:
                stack.close()
                built.append(stack.enter_context(build_reference(workload, cache_dir)))
            return built[-1]

        yield find


@pytest.fixture(scope="module", params=CASES, ids=name_of)
def built(request: pytest.FixtureRequest, find_reference: Callable[[Workload], Reference]) -> Iterator[Built]:
    case: Case = request.param
    missing = missing_needs(case.optimization.needs, describe(CPU))
    if missing is not None and missing.names[0] in case.optimization.needs.packages:
        pytest.skip(missing.reason)
    reference, graphs = find_reference(case.workload), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(COMPILER, lambda graph, examples, **settings: graphs.append(graph) or graph.forward)
        before = random_numbers()
        optimized = build_side(case.optimization.name, case.optimization.build, reference.context, reference.inputs[0])
        is_kept = reference.kept_random_numbers and random_numbers() == before
        outputs = [optimized.output_for(each) for each in reference.inputs]
    yield Built(case, reference, optimized, outputs, is_kept, graphs)
    optimized.close()
    torch._dynamo.reset()
    TorchFlags().apply()


def test_the_catalogue_takes_all() -> None:
    catalogue = Catalogue()
    for workload in WORKLOADS:
        catalogue.register(workload)
    catalogue.load()
    assert {case.id for case in catalogue.cases()} == {case.id for case in ALL}


def test_the_page_of_workloads_names_cases_that_exist_and_their_limits() -> None:
    """A limit of a row's third cell is one of each case before a semicolon; short names are of the workload before."""
    page = Path("docs/workload.md").read_text(encoding="utf-8").partition("## The workloads of this repository")[2]
    names_of_cases, workloads = {case.id.rpartition("/")[0] for case in ALL}, {each.name for each in WORKLOADS}
    by_id = {case.id: case for case in ALL}
    told = re.findall(r"`([a-z][a-z0-9-]*(?:/[a-z0-9-]+)+)`", page)
    assert len(told) > 25
    assert {*told} <= names_of_cases | workloads
    of_section, wrong = "", list[tuple[str, str]]()
    for subject, names, stated in re.findall(r"^\| (.+?) \| (.*?) \|(.*)\|$", page, re.MULTILINE):
        of_section = names.split("`")[1] if subject.startswith("**") else of_section
        workload = of_section
        for name in re.findall(r"`([^`]+)`", names.partition(";")[0]):
            workload = name if name in workloads else workload
            case = by_id.get(f"{name}/cuda") or by_id.get(f"{workload}/{name}/cuda")
            if case is not None:
                workload, limits = case.workload.name, limits_of(case)
                said = re.findall(r"`(\w+)` [<>]= ([^`]*)", stated)
                wrong += [(case.id, one) for one, words in said if limits.isdisjoint(product([one], numbers_in(words)))]
    assert wrong == []


def limits_of(case: Case) -> set[tuple[str, float | None]]:
    """The counter and the value of each limit of the case on an H100 or H200."""
    contract = for_device_class(case.optimization.contract, ("sm_90", "cuda"))
    limits = (*contract.engaged, *contract.limits) if contract else ()
    bounds = ("at_least", "at_most", "at_least_of_reference", "at_most_of_reference")
    return {(limit.counter, getattr(limit, bound)) for limit in limits for bound in bounds}


def numbers_in(text: str) -> set[float]:
    """`1 MiB`, `1/3.5` and `0.62, 0.58` as numbers."""
    found = re.findall(r"(\d[\d.]*)(?:/([\d.]+))?( MiB)?", text)
    return {float(above) / float(below or 1) * (2**20 if mib else 1) for above, below, mib in found}


@pytest.mark.parametrize("workload", ON_CPU, ids=name_of)
def test_inputs_depend_on_seed_and_index_alone(workload: Workload, cache_dir: Path) -> None:
    context = context_of(workload, cache_dir)
    before = random_numbers()
    with small_models():
        first, other, again = (bytes_of(workload.inputs(context, index)) for index in (0, 1, 0))
        of_another_seed = bytes_of(workload.inputs(replace(context, seed=context.seed + 1), 0))
    assert first == again
    assert first not in (other, of_another_seed)
    assert random_numbers() == before


def bytes_of(inputs: Any) -> list[bytes]:
    return [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in list_tensors(inputs)]


def test_an_optimization_gives_the_baselines_output(built: Built) -> None:
    for output, expected in zip(built.outputs, built.reference.expected, strict=True):
        assert not built.is_wrong(output, expected)


def test_an_optimization_engages_and_its_step_on_cached_data_runs(built: Built) -> None:
    assert built.optimized.why_not_engaged() is None
    if built.optimized.side.cached_step is not None:
        built.optimized.side.cached_step()


def test_an_optimization_that_compiles_needs_a_compiler(built: Built) -> None:
    assert bool(built.graphs) == built.case.optimization.needs.cpp_compiler


def test_the_random_numbers_of_the_process_are_left_alone(built: Built) -> None:
    assert built.kept_random_numbers or built.case.id.startswith(DRAWS)


def test_no_side_writes_to_what_the_other_one_reads(built: Built) -> None:
    def memory(side: BuiltSide) -> set[int]:
        tensors = [part for part in list_parts(side.side).values() if isinstance(part, torch.Tensor)]
        return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel() and not tensor.is_meta}

    reference = built.reference
    assert not built.is_wrong(reference.side.output_for(reference.inputs[0], expected=True), reference.expected[0])
    if not built.case.id.startswith(READS_ONE_SOURCE):
        assert not memory(reference.side) & memory(built.optimized)


def test_the_output_of_another_step_and_half_of_the_work_are_wrong(built: Built) -> None:
    reference, workload = built.reference, built.case.workload
    assert built.is_wrong(built.outputs[1], reference.expected[0])
    is_first = built.case is next(case for case in CASES if case.workload is workload)
    if is_first and workload.sizes["cpu"].items > 1 and not workload.name.startswith(NOT_HALVED):
        name, inputs = built.case.optimization.name, reference.inputs[0]
        optimization = mutate(built.case, Fault("skip-work"), CPU).optimization
        half = build_side(name, optimization.build, reference.context, inputs)
        assert built.is_wrong(half.output_for(inputs), reference.expected[0])
        half.close()


NEEDY = [case for case in ALL if case.optimization.needs.packages or case.optimization.needs.cpp_compiler]


@pytest.mark.parametrize("case", NEEDY, ids=name_of)
def test_a_missing_library_is_a_skip_with_the_next_step(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_is_installed", lambda package: False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    machine = Environment(case.device_kind, "a GPU", "a CPU", 16, "3.12.3", {}, compute_capability="12.0")
    needs = replace(case.optimization.needs, cpu_flags=())
    missing = missing_needs(needs, machine)
    assert missing is not None
    assert {*needs.packages} <= {*missing.names, *environment._IMPLIED_PACKAGES}
    assert ("c++" in missing.names) == needs.cpp_compiler
    assert "install" in missing.reason
