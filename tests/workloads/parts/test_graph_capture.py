"""A whole step as a graph: what warming it up changed is put back before the first replay."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from workloads.parts import graph_capture


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Without CUDA the work runs four times, as warm-up and capture would, and a replay only writes itself down."""
    seen: list[str] = []

    def recorded(work: Callable[[], Tensor], stream: object) -> tuple[SimpleNamespace, Tensor]:
        done = [work() for _ in range(4)]
        return SimpleNamespace(replay=lambda: seen.append("replay")), done[-1]

    monkeypatch.setattr(graph_capture, "recorded", recorded)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    return seen


def test_state_and_loss_scale_are_as_they_were_in_the_same_memory(replays: list[str]) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    where, loss = weight.data_ptr(), torch.zeros(())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)

    def work() -> Tensor:
        with torch.no_grad():
            weight.add_(1)
        scaler.scale(loss)
        scaler._per_optimizer_states[0]["found_inf_per_device"] = {torch.device("cpu"): torch.zeros(())}
        scaler.update()
        return loss

    replay = graph_capture.capture_iteration(work, [weight], scaler, torch.device("cpu"))
    assert weight.tolist() == [1, 1, 1]
    assert weight.data_ptr() == where
    assert scaler.get_scale() == 8
    assert not replays
    assert replay() is loss
    assert replays == ["replay"]
