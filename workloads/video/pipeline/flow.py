"""The flow of batches through a chain: one batch after the other, or every stage at once on another batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from workloads.video.pipeline.chain import Batch, Chain
from workloads.video.pipeline.conveyor import Conveyor, Station

_Result = TypeVar("_Result")


class Flow(Generic[_Result]):
    """The flow: `decoder` gives frames; `last` gets every computed batch, and `take` returns its results.

    Where the chain's plan is overlapped, decoding, computing and `last` each have a thread and a stream of their own;
    `stream` is for the caller of `take`. On a CPU it is None.
    """

    def __init__(self, chain: Chain, decoder: Any, last: Callable[[Batch], _Result]) -> None:
        self._chain, self._last = chain, last
        self._decode = partial(chain.decode, decoder)
        self.stream = another_stream(chain.device)
        self._conveyor: Conveyor[_Result] | None = None
        self._streams = [self.stream]
        if chain.plan.overlapped:
            self._streams += [another_stream(chain.device) for _ in range(3)]
            decoding, computing, encoding = (partial(in_thread, chain.device, stream) for stream in self._streams[1:])
            stations = [Station("compute", chain.compute, computing), Station("encode", last, encoding)]
            self._conveyor = Conveyor(self._decode, stations, decoding)

    def take(self) -> _Result | None:
        """The next result, in the order of the clip; None after the last one. Raises any error of a stage."""
        if self._conveyor is not None:
            return self._conveyor.take()
        with on_stream(self.stream):
            batch = self._decode()
            return None if batch is None else self._last(self._chain.compute(batch))

    def settle(self) -> None:
        """Waits until no batch is being processed, see `Conveyor.settle`."""
        if self._conveyor is not None:
            self._conveyor.settle()

    def synchronize(self) -> None:
        """Waits until the device is done with all of it too."""
        for stream in self._streams:
            if stream is not None:
                stream.synchronize()  # cuda only

    def close(self) -> None:
        if self._conveyor is not None:
            self._conveyor.close()


def own_stream(device: torch.device) -> AbstractContextManager[object]:
    """A stream of the calling thread's own; nothing on a CPU."""
    return in_thread(device, another_stream(device))


def in_thread(device: torch.device, stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """The context of the calling thread, which may be a new one."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # cuda only
    return on_stream(stream)


def another_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream other than the default one, for which some libraries make all others wait; None on a CPU."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    return nullcontext() if stream is None else torch.cuda.stream(stream)
