"""Each side reads as many blocks at once as its name promises."""

import threading
from pathlib import Path

import pytest
import torch

from gpugate.workload import Context
from workloads import slow_storage

CONTEXT = Context(torch.device("cpu"), items=slow_storage.PER_STEP, seed=3, cache_dir=Path())
(WORKLOAD,) = slow_storage.WORKLOADS


@pytest.mark.parametrize(("name", "at_once"), [("baseline", 1), ("prefetch", 1), ("parallel-reads", 4)])
def test_reads_at_once(name: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: set[int] = set()
    most = 0

    def wait(_: float) -> None:
        nonlocal most
        waiting.add(threading.get_ident())
        most = max(most, len(waiting))
        all_wait.wait(timeout=20)
        waiting.discard(threading.get_ident())

    all_wait = threading.Barrier(at_once)
    monkeypatch.setattr(slow_storage, "sleep", wait)
    build = WORKLOAD.baseline if name == "baseline" else WORKLOAD.optimization(name).build
    side = build(CONTEXT)
    side.step(slow_storage.numbers(CONTEXT, 0))
    side.close()
    assert most == at_once
