"""Work recorded as a CUDA graph on a stream of its own; a capture that fails says why and leaves the device usable."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import torch

# Compilation, cuDNN's choice of algorithms, and every lazily made buffer come before the capture.
WARM_UP_CALLS = 3
_Done = TypeVar("_Done")


def recorded(work: Callable[[], _Done], stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, _Done]:  # cuda only
    """`work` as a graph, and what it returned while it was captured: every replay writes over its tensors.

    It runs a few times on `stream` before, after what the current stream has still to do. Raises RuntimeError, in one
    sentence with what went wrong first, where it cannot be captured; memory that does not suffice is torch's own error.
    """
    handled = sys.exc_info()[1]
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            work()
    stream.synchronize()
    collecting = gc.isenabled()
    gc.disable()  # while it is captured: what is freed then may ask of CUDA what no graph can hold
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    try:
        # The outer one leaves the stream also where a capture cannot be ended: torch then forgets to.
        with (
            torch.cuda.stream(stream),
            # Other threads, such as loaders', may ask for memory meanwhile: only this one's calls must fit a graph.
            torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
        ):
            return graph, work()
    except Exception as error:
        _put_back(stream.device, pool)
        cause = _first(error, handled)
        if isinstance(cause, torch.OutOfMemoryError) or not isinstance(cause, Exception):
            raise cause from None
        said = str(cause).strip().partition("\n")[0] or "no message"
        failed = f"no CUDA graph could be captured ({type(cause).__name__}: {said})"
        raise RuntimeError(f"{failed}: keep what waits for the device out of it") from error
    finally:
        if collecting:
            gc.enable()


def _put_back(device: torch.device, pool: tuple[int, int]) -> None:  # cuda only
    """What torch leaves behind where ending a capture fails: a pool still open, random numbers still on hold.

    Random numbers would then be refused, and memory used on several streams never be given back.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):  # the capture was ended, and its pool with it
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)
    numbers = torch.cuda.default_generators[index]
    numbers.graphsafe_set_state(numbers.clone_state())


def _first(error: BaseException, handled: BaseException | None) -> BaseException:
    """Torch's own, of ending the capture, hides the one that spoiled it. `handled` was there before all of them."""
    while error.__context__ is not None and error.__context__ is not handled:
        error = error.__context__
    return error
