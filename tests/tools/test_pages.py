"""The pages of TensorRT, of intervals and of the bill are those of the stored runs, by the rules as they are."""

import math
from dataclasses import replace

import pytest

from gpugate.errors import GpugateError
from gpugate.statistics.intervals import BUILD_SPREAD
from gpugate.store import run_file
from tests.support.stored_runs import timed_build
from tools import bill_figures, interval_coverage
from tools.inference_table import load_sides, write_page
from tools.machines import H200, ROOT

PATHS = H200.results / "runs/tensorrt.json", H200.results / "runs/tensorrt-tf32.json"


def test_the_page_of_tensorrt_is_up_to_date_and_runs_without_its_references_are_refused() -> None:
    runs, page = [*map(run_file.read, PATHS)], H200.results / "tensorrt.md"
    assert page.read_text(encoding="utf-8") == write_page(runs, [path.relative_to(ROOT).as_posix() for path in PATHS])
    others = {name: case for name, case in runs[0].cases.items() if "strict" not in name}
    with pytest.raises(GpugateError, match=r"no run measured resnet50-inference/strict-fp32/cuda"):
        load_sides([replace(runs[0], cases=others)])
    warmer = replace(runs[0], environment=replace(runs[0].environment, driver="1.2"))
    with pytest.raises(GpugateError, match=r"different environments: give the runs of one machine"):
        load_sides([runs[1], warmer])


def test_the_page_of_the_bill_is_of_the_stored_runs_by_todays_rules() -> None:
    page = bill_figures.PAGE.read_text(encoding="utf-8")
    assert page == bill_figures.write_page(), "run python -m tools.bill_figures"


def test_the_page_of_intervals_has_the_rows_of_the_stored_trials() -> None:
    page, rows = interval_coverage.PAGE.read_text(encoding="utf-8"), interval_coverage.list_rows()
    assert all(f"| {' | '.join(row)} |" in page for row in rows), "run python -m tools.interval_coverage"


@pytest.mark.parametrize(("times", "wrong"), [(9.5, False), (10.2, True)])
def test_a_build_is_wrong_beyond_the_interval_and_its_own_variation(times: float, wrong: bool) -> None:
    """Of one build whose pairs agree, the half-width is t(2) x BUILD_SPREAD, 6.96 times, and the next one's 9.85."""
    builds = [timed_build(speedup, 1.0) for speedup in (2.0, 2.0 * math.exp(times * BUILD_SPREAD))]
    found, half_width = interval_coverage.predict_next(builds, 1)
    assert found is wrong
    assert half_width == pytest.approx(6.9646 * BUILD_SPREAD, rel=1e-3)
