"""Stages are timed on whatever thread they work, and what overlaps is counted once."""

import threading
import time

import pytest
import torch

from apps.video_segmentation.stage_clock import StageClock, covered


@pytest.mark.parametrize(
    ("spans", "length"),
    [
        ([], 0),
        ([(1, 3)], 2),
        ([(1, 3), (2, 5)], 4),
        ([(2, 5), (1, 3)], 4),
        ([(0, 10), (2, 3), (4, 5)], 10),
        ([(0, 1), (2, 3), (2.5, 4)], 3),
    ],
)
def test_the_union_of_spans(spans, length) -> None:
    assert covered(spans) == length


def test_every_stage_has_its_time_per_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = StageClock(torch.device("cpu"))

    def work(name: str, seconds: float) -> None:
        with clock(name, 0):
            now[0] += seconds

    for name, seconds in (("decode", 0.5), ("encode", 0.25), ("decode", 0.5)):
        thread = threading.Thread(target=work, args=(name, seconds))
        thread.start()
        thread.join()
    found = {each.name: (each.host_ms, each.device_ms) for each in clock.times(frames=10)}
    assert found == {"decode": (100.0, None), "encode": (25.0, None)}
    assert clock.device_ms() == 0
