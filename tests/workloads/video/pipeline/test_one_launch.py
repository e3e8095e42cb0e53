"""Work that is captured once and replayed, with a graph that does on the host what it was told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpugate.workload import Context
from workloads.video.pipeline import one_launch
from workloads.video.pipeline.one_launch import OneLaunch, in_one_launch

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


class FakeGraph:
    """Writes over the same memory in every replay."""

    def __init__(self, work: Callable[[], Tensor]) -> None:
        self.result, self.replays, self._work = work(), 0, work

    def replay(self) -> None:
        self.replays += 1
        self.result.copy_(self._work())


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    made: list[FakeGraph] = []

    def recorded(work: Callable[[], Tensor], stream: object) -> tuple[FakeGraph, Tensor]:
        made.append(FakeGraph(work))
        return made[-1], made[-1].result

    monkeypatch.setattr(one_launch, "recorded", recorded)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"a stream of {device}")
    return made


def weighted(frames: Tensor, weights: Tensor) -> Tensor:
    return frames * weights


def test_every_call_is_one_replay_on_what_it_was_given(graphs: list[FakeGraph]) -> None:
    at_once = OneLaunch(weighted, (torch.ones(4, 3), torch.ones(3)))
    given = [(torch.full((4, 3), float(number)), torch.arange(3.0) + number) for number in range(3)]
    found = [at_once(*each) for each in given]
    assert graphs[0].replays == 3
    assert all(torch.equal(result, weighted(*each)) for result, each in zip(found, given, strict=True))


def test_what_it_was_captured_with_is_left_alone(graphs: list[FakeGraph]) -> None:
    example = torch.ones(4, 3)
    OneLaunch(weighted, (example, torch.ones(3)))(torch.zeros(4, 3), torch.ones(3))
    assert torch.equal(example, torch.ones(4, 3))


def test_other_shapes_are_worked_on_without_it(graphs: list[FakeGraph]) -> None:
    at_once = OneLaunch(weighted, (torch.ones(4, 3), torch.ones(3)))
    assert torch.equal(at_once(torch.ones(1, 3), torch.arange(3.0)), torch.arange(3.0)[None])
    assert graphs[0].replays == 0


def test_it_is_captured_where_graphs_are(graphs: list[FakeGraph], tmp_path: Path) -> None:
    asked = []

    def examples() -> tuple[Tensor, Tensor]:
        asked.append(True)
        return torch.ones(4, 3), torch.ones(3)

    for context in (Context(CPU, 8, 0, tmp_path), Context(GPU, 8, 0, tmp_path, capture_graphs=False)):
        assert in_one_launch(context, weighted, examples) is weighted
    assert not asked
    assert isinstance(in_one_launch(Context(GPU, 8, 0, tmp_path), weighted, examples), OneLaunch)
    assert len(graphs) == 1
