"""Stages of a step are ranges of the profiler where one listens, and cost next to nothing where none does."""

import importlib
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from workloads.parts import stages


class FakeNvtx(types.ModuleType):
    """The part of the package that is used; `listens` says whether a profiler is attached."""

    def __init__(self, listens: bool) -> None:
        super().__init__("nvtx")
        self.seen: list[tuple[object, ...]] = []
        attributes = object() if listens else None
        self.get_domain = lambda name: types.SimpleNamespace(get_event_attributes=lambda message: attributes)

    @contextmanager
    def annotate(self, message: str, **words: object) -> Iterator[None]:
        self.seen.append(("push", message, words["color"], words["domain"], words["payload"]))
        yield
        self.seen.append(("pop", message))


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[FakeNvtx]:
    """workloads.parts.stages as it is imported under a profiler, or beside none."""
    nvtx = FakeNvtx(request.param)
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    importlib.reload(stages)
    yield nvtx
    monkeypatch.undo()
    importlib.reload(stages)


@pytest.mark.parametrize("attached", [True], indirect=True)
def test_a_stage_is_a_range_in_the_domain_of_the_steps(attached: FakeNvtx) -> None:
    with stages.stage("forward"), stages.stage("of another's own", 7):
        pass
    outer, inner = (event[2] for event in attached.seen[:2])
    assert attached.seen == [
        ("push", "forward", outer, "gpugate", None),
        ("push", "of another's own", inner, "gpugate", 7),
        ("pop", "of another's own"),
        ("pop", "forward"),
    ]
    assert outer != inner


@pytest.mark.parametrize("attached", [False], indirect=True)
def test_without_a_profiler_a_stage_makes_nothing(attached: FakeNvtx) -> None:
    assert stages.stage("forward") is stages.stage("decode", 3)
    with stages.stage("forward"):
        pass
    assert attached.seen == []
