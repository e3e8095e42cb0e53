"""The sides of a comparison of host preparation: one thread, several, or worker processes prepare the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from gpugate.workload import Context, Side
from workloads.host_preparation.sample_transforms import Preparation
from workloads.host_preparation.worker_pools import WorkerProcesses, WorkerThreads, warn_if_more_than_cores
from workloads.parts.random_inputs import host_generator

Batches = Callable[[Sequence[Tensor]], Iterator[Tensor]]


def samples_of(preparation: Preparation, seed: int) -> Tensor:
    """uint8 [samples, channels, height, width]: smooth pictures with a little noise, each different."""
    random = torch.Generator().manual_seed(seed)
    channels, height, width = preparation.sample_shape
    coarse = torch.rand(preparation.samples, channels, 4, 4, generator=random)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    noise = torch.rand(preparation.samples, channels, height, width, generator=random)
    return ((0.9 * smooth + 0.1 * noise) * 255).to(torch.uint8)


def sample_numbers(preparation: Preparation, context: Context, index: int) -> Tensor:
    """Input set `index`: int64 [items] on the host."""
    random = host_generator(context, index)
    return torch.randint(preparation.samples, (context.items,), generator=random)


def checksums(prepared: Tensor) -> Tensor:
    """float64 [batch]: the sum of a sample's 64-bit words modulo 2^64, as a share of 2^64.

    Another sample has another checksum; a last bit that is rounded differently changes it by less than 1e-9.
    """
    return prepared.view(torch.int64).flatten(1).sum(1).double() / 2.0**64


def _side(
    preparation: Preparation,
    context: Context,
    batches: Batches,
    engaged: Callable[[], str | None],
    close: Callable[[], None],
) -> Side:
    """Takes prepared batches in order, one by one, to the device. An error ends all workers before it is raised."""
    device = context.device
    place = torch.empty(preparation.batch, *preparation.prepared_shape, device=device)

    def on_device(prepared: Tensor) -> Tensor:
        return prepared if device.type == "cpu" else place.copy_(prepared)  # over when it returns

    def step(numbers: Tensor) -> Tensor:
        asked: Sequence[Tensor] = numbers.split(preparation.batch)  # type: ignore[no-untyped-call]
        try:
            return torch.cat([checksums(on_device(each)) for each in batches(asked)])
        except BaseException:
            close()
            raise

    resident = torch.zeros_like(place).normal_(generator=torch.Generator(device).manual_seed(context.seed))

    def cached_step() -> None:
        for _ in range(context.items // preparation.batch):
            checksums(resident)

    return Side(step, engaged=engaged, close=close, cached_step=cached_step)


def one_thread(preparation: Preparation, context: Context) -> Side:
    """The side that prepares a batch, uses it, and prepares the next."""
    torch.set_num_threads(1)
    samples = samples_of(preparation, context.seed)
    shape = (preparation.batch, *preparation.prepared_shape)
    prepared = torch.empty(shape, pin_memory=context.device.type == "cuda")

    def batches(numbers: Sequence[Tensor]) -> Iterator[Tensor]:
        for each in numbers:
            preparation.prepare(samples, each, prepared)
            yield prepared

    return _side(preparation, context, batches, lambda: None, lambda: None)


def threads(preparation: Preparation, count: int, context: Context) -> Side:
    torch.set_num_threads(1)
    warn_if_more_than_cores(count, "preparing threads")
    on_cuda = context.device.type == "cuda"
    pool = WorkerThreads(count, preparation, samples_of(preparation, context.seed), on_cuda)

    def engaged() -> str | None:
        pageable = sum(not buffer.is_pinned() for buffer in pool.buffers) if on_cuda else 0
        if pageable:
            return f"{pageable} of {len(pool.buffers)} host buffers are pageable"
        return _idle(pool.busy_workers, count, "threads")

    return _side(preparation, context, pool.batches, engaged, pool.close)


def processes(preparation: Preparation, count: int, context: Context) -> Side:
    """The side of worker processes; batches are copied to the device from shared memory, not page-locked."""
    torch.set_num_threads(1)
    warn_if_more_than_cores(count, "worker processes")
    pool = WorkerProcesses(count, preparation, samples_of(preparation, context.seed))
    return _side(preparation, context, pool.batches, lambda: _idle(pool.busy_workers, count, "processes"), pool.close)


def _idle(busy: int, count: int, what: str) -> str | None:
    # Threads share one queue: if they are fast enough, one of them may never get a batch.
    enough = count if what == "processes" else min(2, count)
    return None if busy >= enough else f"only {busy} of {count} {what} prepared anything"
