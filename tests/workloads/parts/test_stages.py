"""Stages of a step are ranges of the profiler where one listens, and cost next to nothing where none does."""

import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from workloads.parts import stages

Word = tuple[str, str | None, int | None, str | None, int | None]


class FakeNvtx(types.ModuleType):
    """The part of the package that is used; `listens` says whether a profiler is attached."""

    def __init__(self, listens: bool) -> None:
        super().__init__("nvtx")
        self.listens = listens
        self.seen: list[Word] = []

    def get_domain(self, name: str) -> Any:
        assert name == "gpugate"
        return types.SimpleNamespace(get_event_attributes=lambda message: object() if self.listens else None)

    def annotate(self, message: str, *, color: int | None, domain: str | None, payload: int | None) -> "Annotation":
        return Annotation(self, (message, color, domain, payload))


class Annotation:
    def __init__(self, nvtx: FakeNvtx, words: tuple[str, int | None, str | None, int | None]) -> None:
        self._nvtx, self._words = nvtx, words

    def __enter__(self) -> None:
        message, color, domain, payload = self._words
        self._nvtx.seen.append(("push", message, color, domain, payload))

    def __exit__(self, *error: object) -> None:
        self._nvtx.seen.append(("pop", self._words[0], None, None, None))


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
    inner = attached.seen[1][2]
    assert attached.seen == [
        ("push", "forward", stages.COLOURS["forward"], "gpugate", None),
        ("push", "of another's own", inner, "gpugate", 7),
        ("pop", "of another's own", None, None, None),
        ("pop", "forward", None, None, None),
    ]
    assert inner is not None
    assert inner not in stages.COLOURS.values()


@pytest.mark.parametrize("attached", [False], indirect=True)
def test_without_a_profiler_a_stage_makes_nothing(attached: FakeNvtx) -> None:
    assert stages.stage("forward") is stages.stage("decode", 3)
    with stages.stage("forward"):
        pass
    assert attached.seen == []
