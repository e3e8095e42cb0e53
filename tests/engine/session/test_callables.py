"""`gpugate.compare_callables`: two callables on the same arguments, as the table of a run."""

import pytest
import torch

import gpugate
from gpugate.measurement import cold_inputs, settings
from gpugate.results.verdict import Outcome
from tests.support import work_clock
from tests.support.tiny_project import TinyProject
from tests.support.work_clock import clock


@pytest.fixture(autouse=True)
def quick(tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    work_clock.install()
    monkeypatch.setattr(cold_inputs, "MAX_SETS", 3)
    monkeypatch.setitem(settings.BLOCK_MS, "cpu", 4.0)
    monkeypatch.setitem(settings.WARM_UP_S, "cpu", 0.02)


def twice(x: torch.Tensor, offset: float) -> torch.Tensor:
    assert not torch.is_grad_enabled(), "the side runs with the caller's switches"
    clock.sleep(4e-3)
    return 2 * x + offset


def faster(x: torch.Tensor, offset: float) -> torch.Tensor:
    clock.sleep(2e-3)
    return x + x + offset


def test_it_is_printed_as_the_table_of_a_run() -> None:
    with torch.no_grad():
        found = gpugate.compare_callables(twice, faster, (torch.ones(8), 0.5), budget_s=0.2)
        assert not torch.is_grad_enabled()
    assert found.case.worst is Outcome.PASS
    assert found.case.summary is not None
    assert found.case.summary.speedup.median == pytest.approx(2, rel=0.1)
    assert "callables/optimized  4." in str(found)


def test_a_tensor_is_one_argument() -> None:
    found = gpugate.compare_callables(torch.relu, torch.relu, torch.ones(4, 3), budget_s=0.2)
    assert found.case.verdicts[0].outcome is Outcome.PASS
    found = gpugate.compare_callables(
        torch.relu, torch.relu, lambda index: torch.full((4, 3), index + 1.0), budget_s=0.2
    )
    assert found.case.verdicts[0].outcome is Outcome.PASS


@torch.no_grad()
def test_wrong_outputs_and_a_loss_are_named() -> None:
    def arguments(index: int) -> tuple[torch.Tensor, float]:
        return torch.full((8,), float(index)), 0.0

    wrong = gpugate.compare_callables(faster, lambda x, offset: 2.1 * x, arguments, budget_s=0.2)
    assert wrong.case.worst is Outcome.WRONG
    assert "equivalence: on fresh inputs, the relative L2 error " in str(wrong)
    slower = gpugate.compare_callables(faster, twice, arguments, budget_s=0.2)
    assert slower.case.worst is Outcome.REGRESSED
