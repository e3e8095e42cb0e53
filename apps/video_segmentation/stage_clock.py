"""The time of every stage per frame, on the host and on the device, while a pipeline runs."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from workloads.parts.stages import stage

Spans = list[tuple[float, float]]  # begin and end of each span, in ms


@dataclass(frozen=True)
class StageTime:
    """Times in ms per frame; `device_ms` is None where no stage used a device."""

    name: str
    host_ms: float
    device_ms: float | None


class StageClock:
    """A clock whose call gives a context in which a stage works on the frames from `frame` on; several threads may.

    On CUDA events are recorded before and after the work that the stage enqueues, and read at the end.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._adding = device, threading.Lock()
        self._host_ms: defaultdict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._origin = self._event()

    @contextmanager
    def __call__(self, name: str, frame: int) -> Iterator[None]:
        began, before = time.perf_counter(), self._event()
        with stage(name, frame):
            yield
        behind = self._event()
        with self._adding:
            self._host_ms[name] += (time.perf_counter() - began) * 1e3
            if before is not None and behind is not None:
                self._events.append((name, before, behind))  # cuda only

    def times(self, frames: int) -> list[StageTime]:
        """The times of each stage, in the order in which the stages first ended."""
        spans = self._spans()
        device = {name: sum(end - begin for begin, end in each) / frames for name, each in spans.items()}
        return [
            StageTime(name, total / frames, device.get(name) if spans else None)
            for name, total in self._host_ms.items()
        ]

    def device_ms(self) -> float:
        """The time in ms in which any stage was under way on its stream: an upper bound of the device's active time.

        The time includes waits of a stage on the host between two parts of its work.
        """
        return covered(span for each in self._spans().values() for span in each)

    def _spans(self) -> dict[str, Spans]:
        """Spans by stage, since the clock was made."""
        spans: defaultdict[str, Spans] = defaultdict(list)
        for name, before, behind in self._events:
            behind.synchronize()  # cuda only
            assert self._origin is not None  # noqa: S101  # cuda only
            spans[name].append((self._origin.elapsed_time(before), self._origin.elapsed_time(behind)))  # cuda only
        return dict(spans)

    def _event(self) -> torch.cuda.Event | None:
        if self._device.type == "cpu":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # cuda only
        event.record(torch.cuda.current_stream(self._device))  # cuda only
        return event  # cuda only


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
