"""Fixtures that the tests of several workloads share."""

import threading
from collections.abc import Iterator

import pytest
import torch

from gpugate.measurement.torch_flags import TorchFlags


@pytest.fixture(autouse=True)
def torch_as_before() -> Iterator[None]:
    """Puts back the global switches and the threads that build functions set, as the engine does."""
    threads = torch.get_num_threads()
    yield
    TorchFlags().apply()
    torch.set_num_threads(threads)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs run as they are, which takes no minutes and no C++ compiler; perf_tests compiles for real."""
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, examples, **settings: graph.forward)


@pytest.fixture
def no_thread_stays() -> Iterator[None]:
    """Fails the test that leaves a thread running."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before
