"""Work captured as a CUDA graph on a stream of its own; a failed capture names its cause and leaves a usable device."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from gpugate.workload import Context, Side

# Compilation, cuDNN's choice of algorithms, and lazy buffers come before the capture.
WARM_UP_CALLS = 3
_Done = TypeVar("_Done")


def recorded(work: Callable[[], _Done], stream: torch.cuda.Stream) -> tuple[torch.cuda.CUDAGraph, _Done]:  # cuda only
    """Captures `work`; returns the graph and the captured result, whose tensors every replay overwrites.

    `work` first runs a few times on `stream`, after the pending work of the current stream. Raises RuntimeError, in one
    sentence with the first error, where it cannot be captured; lack of memory raises torch's own error.
    """
    handled = sys.exc_info()[1]
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            work()
    stream.synchronize()
    collecting = gc.isenabled()
    gc.disable()  # while it is captured: freeing an object may call CUDA in ways that no graph allows
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    try:
        # The outer context leaves the stream also where a capture cannot be ended: torch then fails to do so.
        with (
            torch.cuda.stream(stream),
            # Other threads, such as loaders', may allocate memory meanwhile: only this thread's calls must fit a graph.
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


def capture_iteration(
    work: Callable[[], _Done],
    state: Sequence[Tensor],
    scaler: torch.amp.GradScaler,  # type: ignore[name-defined]
    device: torch.device,
) -> Callable[[], _Done]:  # cuda only
    """Replays a training iteration that `work` does; every replay overwrites the tensors that it returns.

    `work` runs a few times before the capture: `state`, all tensors that it changes, and the loss scale are restored
    afterwards. Loss scaling stays right within a graph: the device decides whether a gradient overflowed, the fused
    update reads that and the scale on the device, and the scale is updated in place.
    """
    before, scale_before = [tensor.detach().clone() for tensor in state], scaler.state_dict()
    graph, done = recorded(work, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
    scaler.load_state_dict(scale_before)

    def replay() -> _Done:
        graph.replay()
        return done

    return replay


def replayed(context: Context, work: Callable[..., Tensor], *inputs: Tensor) -> Callable[..., Tensor]:
    """`work` as a CUDA graph that reads `inputs`: a call copies its arguments there, and overwrites the last result.

    Tensors of other shapes go through `work` itself, kernel by kernel, and so do all where no graphs are captured.
    """
    if context.device.type == "cpu" or not context.capture_graphs:
        return work
    stream = torch.cuda.Stream(context.device)  # type: ignore[no-untyped-call]  # cuda only
    graph, result = recorded(lambda: work(*inputs), stream)  # cuda only

    def replay(*given: Tensor) -> Tensor:  # cuda only
        if any(value.shape != memory.shape for value, memory in zip(given, inputs, strict=True)):
            return work(*given)
        for value, memory in zip(given, inputs, strict=True):
            memory.copy_(value, non_blocking=True)
        graph.replay()
        return result

    return replay  # cuda only


@dataclass(frozen=True)
class Replay:
    """A step that converts the batch into the buffer that the captured kernels read, and replays them."""

    model: object  # the graph reads its weights
    pictures: Tensor  # [n, 3, h, w]
    graph: torch.cuda.CUDAGraph
    logits: Tensor  # overwritten by every step

    @torch.inference_mode()
    def __call__(self, inputs: Tensor) -> Tensor:
        self.pictures.copy_(inputs)
        self.graph.replay()
        return self.logits


@dataclass(frozen=True)
class OneByOne:
    """The step of `Replay` without a graph: every kernel is launched."""

    model: nn.Module
    buffer: Tensor  # [n, channels, h, w]

    @torch.inference_mode()
    def __call__(self, inputs: Tensor) -> Tensor:
        self.buffer[:, :3].copy_(inputs)
        logits: Tensor = self.model(self.buffer).float()
        return logits


@torch.inference_mode()
def captured(context: Context, model: nn.Module, channels: int, example: Tensor) -> Side:
    """The side of `model` as a CUDA graph; `model` reads [n, channels, h, w] in channels_last FP16.

    The channels beyond the third stay zero. The graph is captured for pictures like `example`, and warmed up on it:
    autotuning on zeros would time a cooler GPU.
    """
    pictures, _, height, width = example.shape
    shape = (pictures, channels, height, width)
    buffer = torch.zeros(shape, dtype=torch.float16, device=context.device).to(memory_format=torch.channels_last)
    buffer[:, :3].copy_(example)
    if not context.capture_graphs:
        return Side(OneByOne(model, buffer), model)
    stream = torch.cuda.Stream(context.device)  # type: ignore[no-untyped-call]  # cuda only
    graph, logits = recorded(lambda: model(buffer).float(), stream)  # cuda only
    return Side(Replay(model, buffer[:, :3], graph, logits), model)


def _put_back(device: torch.device, pool: tuple[int, int]) -> None:  # cuda only
    """Repairs torch's state after a failed end of a capture: closes the open pool, and releases the random numbers.

    Without it torch would refuse random numbers, and never free memory that was used on several streams.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):  # the capture was ended, and its pool with it
        torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)
    numbers = torch.cuda.default_generators[index]
    numbers.graphsafe_set_state(numbers.clone_state())


def _first(error: BaseException, handled: BaseException | None) -> BaseException:
    """The first error: torch's error about the end of the capture hides its cause. `handled` is older than both."""
    while error.__context__ is not None and error.__context__ is not handled:
        error = error.__context__
    return error
