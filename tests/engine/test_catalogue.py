"""Declarations of workloads: every mistake is refused in one sentence with its name and the next step."""

import importlib.metadata
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpugate import catalogue as module
from gpugate.catalogue import ENTRY_POINT_GROUP, Catalogue, check
from gpugate.errors import CatalogueError
from gpugate.workload import (
    BASELINE,
    NAME,
    Context,
    Contract,
    Limit,
    Needs,
    Optimization,
    Point,
    Side,
    Size,
    Tolerance,
    Workload,
    for_device_class,
)


def build(context: Context) -> Side:
    return Side(lambda inputs: inputs)


FAST = Optimization("fast", build, {"cuda": 2.0, "cpu": 1.1})
FASTER = Optimization("faster", build, {"nvidia-h100": 4.0, "sm_90": 3.0, "cuda": 2.0}, compared_with="fast")
SIZES = {"cuda": Size(64, 1e9, 1e6), "cpu": Size(4, 1e8, 1e5)}
FED = Workload(
    "fed", build, lambda context, index: index, {"cpu": Size(4, 1e8, 1e5)}, (Optimization("fast", build, {"cpu": 1.1}),)
)
NET = Workload("net", build, lambda context, index: index, SIZES, (FAST, FASTER))


def with_limit(counter: str) -> dict[str, Any]:
    return {"contract": {"cuda": Contract(limits=(Limit(counter, at_most=1),))}}


INFINITE, NAN = float("inf"), float("nan")
NO_BOUND = "which can never be broken: give it a finite bound"
OTHER_OUTPUTS = "which other outputs may meet: "


def test_a_sound_workload_is_accepted() -> None:
    check(NET)
    check(replace(NET, name="nets/net"))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"name": "Net"}, "workload name 'Net' fits no test id and no file name: use a-z, 0-9, '.', '_' and '-'"),
        ({"name": "../net"}, "workload name '../net' fits no test id and no file name: use"),
        ({"name": "net-"}, "workload name 'net-' fits"),
        ({"name": "nets/"}, "workload name 'nets/' fits no test id and no file name: use"),
        ({"name": "all/nets/net"}, "workload name 'all/nets/net' fits no test id and no file name: use a-z"),
        ({"name": ""}, "workload name '' fits"),
        ({"name": None}, "workload name None fits no test id and no file name: use"),
        ({"name": 201 * "n"}, f"workload name '{201 * 'n'}' fits no test id and no file name: use"),
        ({"name": f"{300 * 'n'}/net"}, f"workload name '{300 * 'n'}/net' fits no test id and no file name: use"),
        ({"baseline": None}, "workload 'net' has baseline None, which is no function: give one"),
        ({"inputs": 3}, "workload 'net' has inputs 3, which is no function: give one"),
        ({"sizes": {}}, "workload 'net' has sizes for []: give 'cuda', 'cpu' or both"),
        ({"sizes": {"tpu": Size(1, 1, 1)}}, "workload 'net' has sizes for ['tpu']: give"),
        (
            {"sizes": {"cpu": Size(0, 1, 1)}},
            "workload 'net' on cpu has Size(items=0, flops=1, bytes=1, whole_run_items=None): "
            "items must be at least 1, flops and bytes not negative",
        ),
        (
            {"sizes": {"cpu": Size(1, -1, 1)}},
            "workload 'net' on cpu has Size(items=1, flops=-1, bytes=1, whole_run_items=None): items must",
        ),
        (
            {"sizes": {"cpu": Size(1, 1, -1)}},
            "workload 'net' on cpu has Size(items=1, flops=1, bytes=-1, whole_run_items=None): items must",
        ),
        ({"optimizations": ()}, "workload 'net' has no optimization: add one, there is nothing to compare"),
        ({"optimizations": (FAST, FAST)}, "workload 'net' has two sides named 'fast': rename one"),
        ({"optimizations": (replace(FAST, name=BASELINE),)}, "workload 'net' has two sides named 'baseline': rename"),
    ],
)
def test_a_workload_that_cannot_be_measured_is_refused(changed: dict[str, Any], sentence: str) -> None:
    assert refusal(replace(NET, **changed)).startswith(sentence)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"name": "Fast!"}, "optimization name 'net/Fast!' fits no test id: use a-z, 0-9, '.', '_' and '-'"),
        ({"name": "a/b"}, "optimization name 'net/a/b' fits no test id: use"),
        ({"name": 201 * "o"}, f"optimization name 'net/{201 * 'o'}' fits no test id: use"),
        (
            {"point": Point(201 * "s", 1)},
            f"net/fast is a point of sweep '{201 * 's'}', which fits no test id: {NAME.rule}",
        ),
        ({"build": None}, "net/fast has build None, which is no function: give one"),
        ({"tolerance": Tolerance(0, 0)}, "net/fast has tolerance Tolerance(relative_l2=0, max_error=0, "),
        ({"min_speedup": {}}, "net/fast has no min_speedup: give one per device class, such as {'cuda': 1.2}"),
        (
            {"min_speedup": {"gpu": 2.0}},
            "net/fast names the device class 'gpu': use 'nvidia-h200', 'sm_90' etc., 'cuda' or 'cpu'",
        ),
        ({"min_speedup": {"sm_9x": 2.0}}, "net/fast names the device class 'sm_9x': use"),
        ({"contract": {"CUDA": Contract()}}, "net/fast names the device class 'CUDA': use"),
        ({"min_speedup": {"cuda": 0.0}}, "net/fast has min_speedup 0.0 on cuda: give a number above 0"),
        ({"min_speedup": {"cuda": 2.0, "cpu": -1.0}}, "net/fast has min_speedup -1.0 on cpu: give a number above 0"),
        ({"min_speedup": {"cuda": float("nan")}}, "net/fast has min_speedup nan on cuda: give"),
        ({"min_speedup": {"cuda": float("inf")}}, "net/fast has min_speedup inf on cuda: give"),
        ({"min_speedup": {"cuda": "2.0"}}, "net/fast has min_speedup '2.0' on cuda: give a number above 0"),
        ({"min_speedup": {"cuda": None}}, "net/fast has min_speedup None on cuda: give a number above 0"),
        ({"needs": Needs(gpus=3)}, "net/fast needs 3 GPUs: give 1, 2, 4 or 8"),
        ({"compared_with": "fast"}, "net/fast is compared with itself: name the baseline or another optimization"),
        ({"compared_with": "slow"}, "workload 'net' has no optimization 'slow': it has fast"),
        (
            {"dtype": "float8"},
            "net/fast computes in 'float8', with a tolerance only for float32, tf32, float16, bfloat16: add one",
        ),
        (with_limit("kernel"), "net/fast limits the counter 'kernel': known are kernel_launches, graph_launches, "),
        (
            {"contract": {"cuda": Contract(engaged=(Limit("graphs", at_least=1),))}},
            "net/fast limits the counter 'graphs': known are",
        ),
    ],
)
def test_an_optimization_that_cannot_be_measured_is_refused(changed: dict[str, Any], sentence: str) -> None:
    assert refusal(replace(NET, optimizations=(replace(FAST, **changed),))).startswith(sentence)


@pytest.mark.parametrize("place", ["engaged", "limits"])
@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"at_least": NAN},
        {"at_least": -INFINITE},
        {"at_most": INFINITE},
        {"at_least_of_reference": INFINITE},
        {"at_most_of_reference": INFINITE},
        {"at_least": 1.0, "at_most": INFINITE},
    ],
)
def test_a_limit_that_nothing_can_break_is_refused(bounds: dict[str, float], place: str) -> None:
    limit = Limit("kernels", **bounds)
    fine = Limit("kernels", at_most=1)
    broken = replace(FAST, contract={"cuda": replace(Contract(), **{place: (fine, limit)})})
    assert refusal(replace(NET, optimizations=(broken,))) == f"net/fast has {limit}, {NO_BOUND}"


@pytest.mark.parametrize(
    "allowed",
    [
        *(Tolerance(bound, 0.1) for bound in (INFINITE, NAN, 1e6, 0.51)),
        *(Tolerance(0.1, bound) for bound in (INFINITE, NAN, 1e6, 1.01)),
        Tolerance(0.1, 0.1, equal_share=0.49),
    ],
)
def test_a_tolerance_that_other_outputs_meet_is_refused(allowed: Tolerance) -> None:
    loose = replace(FAST, dtype="float32", tolerance={"float32": allowed})
    assert refusal(replace(NET, optimizations=(loose,))).startswith(f"net/fast has {allowed}, {OTHER_OUTPUTS}")


def refusal(workload: Workload) -> str:
    with pytest.raises(CatalogueError) as caught:
        check(workload)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "float8", "tolerance": {"float8": Tolerance(0.1, 0.5)}},
        with_limit("kernels"),
        {"min_speedup": {"sm_120": 0.5}},
    ],
    ids=["own tolerance", "known counter", "slower on purpose"],
)
def test_what_is_unusual_but_measurable_is_accepted(changed: dict[str, Any]) -> None:
    check(replace(NET, optimizations=(replace(FAST, **changed),)))


@pytest.fixture
def fresh() -> Catalogue:
    return Catalogue()


@pytest.fixture
def make_module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def make(name: str, **content: object) -> str:
        made = ModuleType(name)
        vars(made).update(content)
        monkeypatch.setitem(sys.modules, name, made)
        return name

    return make


@pytest.fixture(autouse=True)
def no_entry_points(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Modules that installed packages name; a test may add to them."""
    named: list[str] = []

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        assert group == ENTRY_POINT_GROUP == "gpugate.workloads"
        return [importlib.metadata.EntryPoint(name.replace(".", "-"), name, group) for name in named]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return named


def test_workloads_come_by_registration_by_module_and_by_entry_point(fresh, make_module, no_entry_points) -> None:
    assert fresh.register(replace(NET, name="by-hand")).name == "by-hand"
    fresh.register_module(make_module("made_up_folder", WORKLOADS=(replace(NET, name="by-module"),)))
    no_entry_points.append(make_module("made_up_package", WORKLOADS=(replace(NET, name="by-entry-point"),)))
    assert list(fresh.workloads()) == []  # nothing is imported or checked before
    fresh.load()
    assert sorted(workload.name for workload in fresh.workloads()) == ["by-entry-point", "by-hand", "by-module"]


def test_a_module_named_twice_is_one(fresh, make_module, no_entry_points) -> None:
    name = make_module("made_up_folder", WORKLOADS=(NET,))
    fresh.register_module(name)
    no_entry_points.append(name)
    fresh.load()
    fresh.load()
    assert list(fresh.workloads()) == [NET]


def test_a_mistake_surfaces_when_loaded_and_not_when_registered(fresh) -> None:
    fresh.register(replace(NET, optimizations=()))
    with pytest.raises(CatalogueError, match="workload 'net' has no optimization"):
        fresh.load()


@pytest.mark.parametrize("content", [{}, {"WORKLOADS": None}, {"WORKLOADS": NET}], ids=["none", "null", "no tuple"])
def test_a_module_without_workloads_is_refused(fresh, make_module, content: dict[str, object]) -> None:
    fresh.register_module(make_module("made_up_folder", **content))
    with pytest.raises(CatalogueError, match="module 'made_up_folder' has no tuple WORKLOADS: add one"):
        fresh.load()


def test_what_is_no_workload_is_refused(fresh) -> None:
    fresh.register("net")
    with pytest.raises(CatalogueError, match=r"'net' is no workload: register a gpugate\.workload\.Workload"):
        fresh.load()


def test_a_module_that_cannot_be_imported_is_refused_with_the_cause(fresh) -> None:
    fresh.register_module("made_up_folder.nowhere")
    sentence = r"module 'made_up_folder\.nowhere' cannot be imported \(No module named 'made_up_folder'\): correct its"
    with pytest.raises(CatalogueError, match=sentence):
        fresh.load()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("open('/no/such/file')", "FileNotFoundError: "),
        ("import sys; sys.exit('no GPU')", "SystemExit: no GPU"),
        ("def", "SyntaxError: "),
    ],
)
def test_a_module_that_raises_anything_while_it_is_imported_is_refused(
    fresh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, cause: str
) -> None:
    (tmp_path / "made_up_failing.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    fresh.register_module("made_up_failing")
    with pytest.raises(CatalogueError) as caught:
        fresh.load()
    assert str(caught.value).startswith(f"module 'made_up_failing' cannot be imported ({cause}")
    assert str(caught.value).endswith("): correct its name, install what it imports or mend it")


def test_two_workloads_of_one_name_are_refused_with_their_places(fresh) -> None:
    def other(context: Context) -> Side:
        return Side(lambda inputs: inputs)

    other.__module__ = "made_up_folder"
    fresh.register(NET)
    fresh.register(replace(NET, baseline=other))
    places = rf"two workloads are named 'net' \(in {__name__} and made_up_folder\): rename one"
    with pytest.raises(CatalogueError, match=places):
        fresh.load()


def run_module(catalogue: Catalogue, path: Path, workload: Workload, call: str = "register(workload)") -> None:
    """Runs a module in the file `path`, which registers the workload."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(call)
    runpy.run_path(str(path), {"register": catalogue.register, "workload": workload})


def test_a_workload_of_a_conftest_serves_the_tests_below_its_folder(fresh, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    run_module(fresh, tmp_path / "conftest.py", replace(NET, name="of-both"))
    for folder in (first, second):
        run_module(fresh, folder / "conftest.py", replace(NET, name=folder.name))
        run_module(
            fresh, folder / "conftest.py", replace(NET, name=f"late-{folder.name}"), "(lambda: register(workload))()"
        )
    run_module(fresh, first / "shared.py", replace(NET, name="of-a-module"))
    fresh.load()
    for folder in (first, second):
        served = {workload.name for workload in fresh.workloads(folder / "deep" / "test_it.py")}
        assert served == {"of-both", "of-a-module", folder.name, f"late-{folder.name}"}
    assert {case.workload.name for case in fresh.cases(tmp_path / "test_it.py")} == {"of-both", "of-a-module"}
    assert len(list(fresh.workloads())) == 6
    assert fresh.ambiguous == {}


def test_one_name_for_two_workloads_is_ambiguous_in_two_folders_and_refused_in_one(fresh, tmp_path: Path) -> None:
    files = [tmp_path / name / "conftest.py" for name in ("first", "second")]
    for path in files:
        run_module(fresh, path, replace(NET))
        run_module(fresh, path, FED)
    fresh.load()
    assert set(fresh.ambiguous) == {"net"}, "one object may serve both"
    assert fresh.ambiguous["net"] == f"two workloads are named 'net' (in {files[0]} and {files[1]}): rename one"
    run_module(fresh, tmp_path / "conftest.py", replace(NET))
    with pytest.raises(CatalogueError, match="two workloads are named 'net'"):
        fresh.load()


def test_a_conftest_that_was_not_read_may_have_further_workloads(fresh, tmp_path: Path) -> None:
    for name, imported in (("read", "gpugate"), ("other", "gpugate"), (".cache", "gpugate"), ("plain", "pytest")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "conftest.py").write_text(f"import {imported}\n")
    run_module(fresh, tmp_path / "read" / "conftest.py", NET)
    assert fresh.is_partial(tmp_path)
    run_module(fresh, tmp_path / "other" / "conftest.py", replace(NET, name="other"))
    assert not fresh.is_partial(tmp_path)


def test_cases_are_every_optimization_on_every_device_that_both_name(fresh) -> None:
    fresh.register(NET)
    fresh.register(replace(NET, name="host", sizes={"cpu": SIZES["cpu"]}))
    fresh.load()
    cases = fresh.cases()
    assert [case.id for case in cases] == ["net/fast/cuda", "net/fast/cpu", "net/faster/cuda", "host/fast/cpu"]
    assert [case.size.items for case in cases] == [64, 4, 64, 4]
    assert [case.reference_name for case in cases] == [BASELINE, BASELINE, "fast", BASELINE]
    assert cases[2].builder(BASELINE) is NET.baseline
    assert cases[2].builder("fast") is FAST.build


def test_a_cleared_catalogue_knows_nothing(fresh, make_module) -> None:
    fresh.register(NET)
    fresh.register_module(make_module("made_up_folder", WORKLOADS=(replace(NET, name="more"),)))
    fresh.load()
    fresh.clear()
    fresh.load()
    assert (list(fresh.workloads()), fresh.cases()) == ([], [])


def test_the_sessions_catalogue_is_what_the_module_offers() -> None:
    assert module.register.__self__ is module.register_module.__self__ is module.catalogue


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (("nvidia-h200", "sm_90", "cuda"), 3.0),
        (("sm_80", "cuda"), 2.0),
        (("nvidia-h100", "sm_90"), 4.0),
        (("cpu",), None),
    ],
)
def test_the_most_specific_device_class_counts(classes: tuple[str, ...], expected: float | None) -> None:
    assert for_device_class(FASTER.min_speedup, classes) == expected
