"""The stages of an overlapped pipeline work at the same time, and a settled one is as far ahead as before."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import nn

from gpugate.workload import Context, Side
from tests.support.patience import HANGS_S
from workloads.video.clip import Clip, clip_path
from workloads.video.frames import examine
from workloads.video.pipeline import AHEAD, BATCH, Batch, Pipeline, Rung

pytestmark = pytest.mark.usefixtures("no_thread_stays")
BATCHES = 20


@pytest.fixture
def pipeline(cache_dir: Path) -> Iterator[Pipeline]:
    context = Context(torch.device("cpu"), BATCH, 0, cache_dir)
    video = examine(clip_path(cache_dir, Clip(160, 96, BATCHES * BATCH)))
    rung = Rung(network=lambda place: Side(nn.Identity()), overlapped=True)
    with closing(Pipeline(rung, context, video)) as made:
        yield made


def test_stages_work_at_the_same_time(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch is computed until the second one is decoded, and encoded until the second one is computed."""
    decoded, computed = threading.Semaphore(0), threading.Semaphore(0)
    decode, compute, encode = pipeline.decode, pipeline.compute, pipeline.encode
    seen: list[bool] = []

    def count_decoded() -> Batch | None:
        batch = decode()
        decoded.release()
        return batch

    def compute_after_decoding(batch: Batch) -> Batch:
        if batch.first == 0:
            seen.extend(decoded.acquire(timeout=HANGS_S) for _ in range(2))
        computed.release()
        return compute(batch)

    def encode_after_computing(batch: Batch) -> Batch:
        if batch.first == 0:
            seen.extend(computed.acquire(timeout=HANGS_S) for _ in range(2))
        return encode(batch)

    monkeypatch.setattr(pipeline, "decode", count_decoded)
    monkeypatch.setattr(pipeline, "compute", compute_after_decoding)
    monkeypatch.setattr(pipeline, "encode", encode_after_computing)
    taken = [batch.first for batch in iter(pipeline.take, None)]
    assert taken == [number * BATCH for number in range(BATCHES)]
    assert seen == [True] * 4
    assert pipeline.take() is None, "no frame follows the last one"


def test_between_two_settled_moments_as_much_is_worked_on_as_is_taken(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked = {"compute": 0, "encode": 0}

    def count(stage: str, work: Callable[[Batch], Batch]) -> Callable[[Batch], Batch]:
        def counted(batch: Batch) -> Batch:
            worked[stage] += 1
            return work(batch)

        return counted

    for stage in worked:
        monkeypatch.setattr(pipeline, stage, count(stage, getattr(pipeline, stage)))
    taken = 0
    for further in (1, 3, 1):
        for _ in range(further):
            pipeline.take()
        pipeline.settle()
        taken += further
        assert worked == {"compute": taken + 2 * AHEAD, "encode": taken + AHEAD}, "each stage has work for the next one"
