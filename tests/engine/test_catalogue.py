"""Declarations of workloads: every mistake is refused in one sentence with its name and the next step."""

import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gpugate.catalogue import Catalogue, check
from gpugate.errors import CatalogueError
from gpugate.workload import (
    BASELINE,
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


def with_fast(**changed: Any) -> Workload:
    """The workload whose one optimization has these fields."""
    return replace(NET, optimizations=(replace(FAST, **changed),))


def limited(counter: str) -> dict[str, Contract]:
    return {"cuda": Contract(limits=(Limit(counter, at_most=1),))}


TOO_LOOSE = Tolerance(0.51, 0.1), Tolerance(0.1, 1.01), Tolerance(0.1, 0.1, equal_share=0.49)


def test_a_sound_workload_is_accepted() -> None:
    check(NET)
    check(replace(NET, name="nets/net"))
    own = {"dtype": "float8", "tolerance": {"float8": Tolerance(0.1, 0.5)}, "min_speedup": {"sm_120": 0.5}}
    check(with_fast(**own, contract=limited("kernels")))


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        *((replace(NET, name=name), "as name, which should be a") for name in ("../net", "nets/", None, 201 * "n")),
        (replace(NET, timing="pipelin"), "'net' has 'pipelin' as timing, which should be 'device' or 'pipeline'"),
        (replace(NET, settings=["video"]), "has ['video'] as settings, which should be a valid dictionary"),
        (replace(NET, optimizations=FAST), "as optimizations, which should be a valid tuple, such as (entry,)"),
        (replace(NET, sizes={}), "'net' has no sizes: give one for 'cuda', 'cpu' or both"),
        (replace(NET, sizes={"tpu": Size(1, 1, 1)}), "'tpu' as sizes.tpu.[key], which should be 'cuda' or 'cpu'"),
        (replace(NET, sizes={"cpu": Size(0, 1, 1)}), "sizes.cpu.items, which should be greater than or equal to 1"),
        (replace(NET, sizes={"cpu": Size(1, float("nan"), 1)}), "nan as sizes.cpu.flops, which should be a finite"),
        (replace(NET, optimizations=()), "'net' has no optimization: add one"),
        (replace(NET, optimizations=(FAST, FAST)), "'net' has two sides named 'fast'"),
        (with_fast(name=BASELINE), "'net' has two sides named 'baseline'"),
        (replace(NET, optimizations=(FASTER, FAST), ladder=True), "net/faster is the first rung of a ladder"),
        (with_fast(name="Fast!"), "has 'Fast!' as optimizations[0].name, which should be a name for files and tests"),
        (with_fast(point=Point(201 * "s", 1)), "as optimizations[0].point.sweep, which should be a name for files"),
        (with_fast(tolerance=Tolerance(0, 0)), "as optimizations[0].tolerance, which should be a valid dictionary"),
        (with_fast(needs=Needs(packages="torch")), "has 'torch' as optimizations[0].needs.packages, which should be a"),
        (with_fast(min_speedup={}), "has no min_speedup: give one per device class"),
        (with_fast(min_speedup={"sm_9x": 2.0}), "names the device class 'sm_9x'"),
        (with_fast(contract={"CUDA": Contract()}), "names the device class 'CUDA'"),
        (with_fast(min_speedup={"cuda": 0.0}), "has 0.0 as optimizations[0].min_speedup.cuda, which should be greater"),
        (
            with_fast(min_speedup={"cuda": "2.0"}),
            "as optimizations[0].min_speedup.cuda, which should be a valid number",
        ),
        (
            with_fast(needs=Needs(compute_capability=(9,))),
            "has (9,) as optimizations[0].needs.compute_capability[1]: F",
        ),
        (with_fast(needs=Needs(gpus=3)), "has 3 as optimizations[0].needs.gpus, which should be 1, 2, 4 or 8"),
        (with_fast(compared_with="fast"), "is compared with itself"),
        (with_fast(compared_with="slow"), "has no optimization 'slow': it has fast"),
        (with_fast(dtype="float8"), "computes in 'float8', with a tolerance only for float32, tf32, float16, bfloat16"),
        (with_fast(contract=limited("kernel")), "limits the counter 'kernel': known are kernel_launches, "),
        (with_fast(contract={"cuda": Contract((Limit("kernels"),))}), "which can never be broken: give it a bound"),
        *((with_fast(tolerance={"float32": one}), f"{one}, which other outputs may meet: ") for one in TOO_LOOSE),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(workload: Workload, words: str) -> None:
    with pytest.raises(CatalogueError) as caught:
        check(workload)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


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


def test_workloads_come_by_registration_and_by_module(fresh, make_module) -> None:
    assert fresh.is_empty
    assert fresh.register(replace(NET, name="by-hand")).name == "by-hand"
    fresh.register_module(make_module("made_up_folder", WORKLOADS=(replace(NET, name="by-module"),)))
    assert list(fresh.workloads()) == []  # nothing is imported or checked before
    for _ in range(2):
        fresh.load()
        assert sorted(workload.name for workload in fresh.workloads()) == ["by-hand", "by-module"]


def test_what_is_no_workload_is_refused_when_loaded_and_not_when_registered(fresh) -> None:
    fresh.register("net")
    with pytest.raises(CatalogueError, match=r"'net' is no workload: register a gpugate\.workload\.Workload"):
        fresh.load()


def test_a_module_without_workloads_is_refused(fresh, make_module) -> None:
    fresh.register_module(make_module("made_up_folder", WORKLOADS=NET))
    with pytest.raises(CatalogueError, match="module 'made_up_folder' has no tuple WORKLOADS: add one"):
        fresh.load()


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("import made_up.nowhere", "No module named 'made_up'"),
        ("import sys; sys.exit('no GPU')", "SystemExit: no GPU"),
        ("import pytest; pytest.importorskip('nowhere', reason='no licence')", "Skipped: no licence"),
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


def test_two_workloads_of_one_name_are_refused_with_their_places(fresh, tmp_path: Path) -> None:
    def other(context: Context) -> Side:
        return Side(lambda inputs: inputs)

    other.__module__ = "made_up_folder"
    files = [tmp_path / name / "conftest.py" for name in ("first", "second")]
    for path in files:
        run_module(fresh, path, FED)  # one object may serve both
    fresh.load()
    run_module(fresh, files[0], NET)
    fresh.register(replace(NET, baseline=other))
    places = rf"two workloads are named 'net' \(in {files[0]} and made_up_folder\): rename one"
    with pytest.raises(CatalogueError, match=places):
        fresh.load()


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
