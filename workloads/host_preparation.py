"""Host preparation of batches by one thread, by several, and by the worker processes of a DataLoader.

A step prepares the samples whose numbers it gets, int64 [items], in batches, and returns a checksum of every prepared
sample, float32 [items]; on CUDA each batch is copied to the device and summed there. No batch is prepared beyond the
step's end, so that every step pays for what it uses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from gpugate.workload import Context, Contract, Limit, Optimization, Side, Size, Workload
from workloads.parts.loader import HostBatches
from workloads.parts.random_inputs import host_generator

AHEAD = 2  # batches that each worker may have ready or under way
MEAN, STD = 0.4 * 255, 0.25 * 255
CHANNELS, BLUR, BLURS = 3, 7, 2
PLACES = 1021  # of a checksum: a prime number, so that no two rows of a picture have the same factors
# Of linear RGB to a luminance and two colour differences, ITU-R BT.601.
TO_YCC = ((0.299, 0.587, 0.114), (-0.169, -0.331, 0.5), (0.5, -0.419, -0.081))


def normalize(samples: Tensor, prepared: Tensor) -> None:
    """Subtracts a mean and divides by a standard deviation: a few microseconds a batch."""
    prepared.copy_(samples).sub_(MEAN).div_(STD)


def blur_resize_recolour(samples: Tensor, prepared: Tensor) -> None:
    """Blurs, resizes with antialiasing, changes the colour space and normalizes, one picture after another."""
    line = torch.exp(-(torch.arange(BLUR) - BLUR // 2).square() / 8.0)
    kernel = (line[:, None] * line / line.sum() ** 2).expand(CHANNELS, 1, BLUR, BLUR).contiguous()
    to_ycc = torch.tensor(TO_YCC)[:, :, None, None]
    for row, sample in zip(prepared, samples, strict=True):
        picture = sample.float()[None]  # [1, 3, height, width]
        for _ in range(BLURS):
            picture = F.conv2d(picture, kernel, padding=BLUR // 2, groups=CHANNELS)
        smaller = F.interpolate(picture, row.shape[1:], mode="bilinear", antialias=True)
        row.copy_((to_ycc * smaller).sum(1)).sub_(MEAN).div_(STD)  # [3, height, width]


@dataclass(frozen=True)
class Preparation:
    """A transform and the shapes it goes between, [channels, height, width] of one sample; `batch` samples at once.

    `prepare` fills float32 [batch, channels, height, width] from uint8 samples. `flops` counts one sample's
    multiplications and additions, roughly: bytes and calls dominate the cost. A step has `batches`.
    """

    prepare: Callable[[Tensor, Tensor], None]
    sample_shape: tuple[int, int, int]
    prepared_shape: tuple[int, int, int]
    samples: int
    batch: int
    batches: int
    flops: float

    @property
    def size(self) -> Size:
        """The work of a step. Bytes: every sample is read once as uint8 and written once as float32."""
        items = self.batches * self.batch
        read = torch.Size(self.sample_shape).numel()
        return Size(items=items, flops=items * self.flops, bytes=float(items * (read + 4 * self.prepared_values)))

    @property
    def prepared_values(self) -> int:
        return torch.Size(self.prepared_shape).numel()

    def new_batch(self, pinned: bool = False) -> Tensor:
        return torch.empty(self.batch, *self.prepared_shape, pin_memory=pinned)


CHEAP = Preparation(normalize, (1, 28, 28), (1, 28, 28), samples=2048, batch=32, batches=32, flops=2.0 * 28 * 28)
EXPENSIVE = Preparation(
    blur_resize_recolour,
    (CHANNELS, 96, 96),
    (CHANNELS, 64, 64),
    samples=256,
    batch=4,
    batches=16,
    flops=2.0 * CHANNELS * (BLURS * BLUR**2 * 96**2 + 16 * 64**2),
)


def samples_of(preparation: Preparation, seed: int) -> Tensor:
    """uint8 [samples, channels, height, width]: smooth pictures with a little noise, each different."""
    random = torch.Generator().manual_seed(seed)
    channels, height, width = preparation.sample_shape
    coarse = torch.rand(preparation.samples, channels, 4, 4, generator=random)
    smooth = F.interpolate(coarse, (height, width), mode="bilinear")
    noise = torch.rand(preparation.samples, channels, height, width, generator=random)
    return ((0.9 * smooth + 0.1 * noise) * 255).to(torch.uint8)


def sample_numbers(preparation: Preparation, context: Context, index: int) -> Tensor:
    """Input set `index`: int64 [items] on the host."""
    return torch.randint(preparation.samples, (context.items,), generator=host_generator(context, index))


def factors_of_places(preparation: Preparation, device: torch.device) -> Tensor:
    """int32 [values of a prepared sample]: odd numbers, which differ for any two values in one row or one column."""
    return 2 * (torch.arange(preparation.prepared_values, dtype=torch.int32, device=device) % PLACES) + 2 * PLACES + 1


def checksums(prepared: Tensor, factors: Tensor) -> Tensor:
    """float32 [batch]: the sum of a sample's 32-bit words, each times the factor of its place, modulo 2^32, over 2^32.

    Nearly every value that differs by a level of its picture changes it by more than the tolerance. A last bit that is
    rounded differently changes it by 1e-6 at most. An even number of changed signs does not change it, and neither do
    two exchanged values that are PLACES apart; two exchanged neighbours that are nearly equal change it too little.
    """
    words = prepared.view(torch.int32).flatten(1) * factors
    return words.sum(1, dtype=torch.int32) / 2.0**32


def _side(
    preparation: Preparation,
    context: Context,
    prepare_all: Callable[[Sequence[Tensor]], Iterable[Tensor]],
    engaged: Callable[[], str | None] = lambda: None,
    close: Callable[[], None] = lambda: None,
) -> Side:
    """A side that takes prepared batches in order, one by one, to the device."""
    torch.set_num_threads(1)
    device = context.device
    place = torch.empty(preparation.batch, *preparation.prepared_shape, device=device)
    factors = factors_of_places(preparation, device)

    def on_device(prepared: Tensor) -> Tensor:
        return prepared if device.type == "cpu" else place.copy_(prepared)  # over when it returns

    def step(numbers: Tensor) -> Tensor:
        asked: Sequence[Tensor] = numbers.split(preparation.batch)  # type: ignore[no-untyped-call]
        return torch.cat([checksums(on_device(each), factors) for each in prepare_all(asked)])

    resident = torch.zeros_like(place).normal_(generator=torch.Generator(device).manual_seed(context.seed))

    def cached_step() -> None:
        for _ in range(context.items // preparation.batch):
            checksums(resident, factors)

    return Side(step, engaged=engaged, close=close, cached_step=cached_step)


def one_thread(preparation: Preparation, context: Context) -> Side:
    """The side that prepares a batch, uses it, and prepares the next."""
    samples = samples_of(preparation, context.seed)
    prepared = preparation.new_batch(pinned=context.device.type == "cuda")

    def prepare(numbers: Tensor) -> Tensor:
        preparation.prepare(samples[numbers], prepared)
        return prepared

    return _side(preparation, context, partial(map, prepare))


def threads(preparation: Preparation, count: int, context: Context) -> Side:
    """The side of threads of this process, which run at once where the transforms release the GIL."""
    samples = samples_of(preparation, context.seed)
    pool = ThreadPoolExecutor(count, "preparing", torch.set_num_threads, (1,))
    batches = context.items // preparation.batch
    buffers = [preparation.new_batch(pinned=context.device.type == "cuda") for _ in range(batches)]
    busy: set[int] = set()

    def prepare(numbers: Tensor, prepared: Tensor) -> Tensor:
        busy.add(threading.get_ident())
        preparation.prepare(samples[numbers], prepared)
        return prepared

    def engaged() -> str | None:  # fast threads may leave one without a batch: they share one queue
        return None if len(busy) > 1 else f"only {len(busy)} of {count} threads prepared anything"

    return _side(preparation, context, lambda asked: pool.map(prepare, asked, buffers), engaged, pool.shutdown)


@dataclass(frozen=True)
class Prepared(Dataset[Tensor]):
    """Prepared batches by the numbers of their samples, int64 [batch]."""

    preparation: Preparation
    samples: Tensor

    def __getitems__(self, numbers: Tensor) -> Tensor:
        prepared = self.preparation.new_batch()
        self.preparation.prepare(self.samples[numbers], prepared)
        return prepared


def processes(preparation: Preparation, count: int, context: Context) -> Side:
    """The side of worker processes, which send each batch through shared memory of its own, not page-locked."""
    asked: list[Any] = []  # the numbers of the step's batches
    samples = Prepared(preparation, samples_of(preparation, context.seed))
    batches: HostBatches[Any] = HostBatches(samples, asked, count, AHEAD, collate=lambda batch: batch)

    def prepare_all(numbers: Sequence[Tensor]) -> Iterator[Tensor]:
        asked[:] = numbers
        batches.begin()
        return batches

    return _side(preparation, context, prepare_all, close=batches.close)


HANDING_OVER = "no gain to be had: preparing a batch of digits takes tens of microseconds, handing it over longer"
SPREAD = (
    "a picture takes a thousand times as long as a message about it: workers share the work, as far as cores go; two "
    "cores that others use too promise no gain"
)
H100 = "nvidia-h100-80gb-hbm3"


PINNED = Limit("pageable_copies", at_most=0)


def _workload(
    name: str,
    preparation: Preparation,
    why: str,
    by_threads: Mapping[str, float],
    by_processes: Mapping[int, Mapping[str, float]],
    min_speedup_why: str = "",
) -> Workload:
    """The ladder of a preparation, with the promises of four threads and of so many processes."""
    copied = Limit("host_to_device_copies", at_least=preparation.batches)
    of_processes = [
        Optimization(
            f"processes-{count}",
            partial(processes, preparation, count),
            promises,
            contract={"cuda": Contract((copied,))},
            why=why,
            min_speedup_why=min_speedup_why,
        )
        for count, promises in by_processes.items()
    ]
    of_threads = Optimization(
        "threads-4",
        partial(threads, preparation, 4),
        by_threads,
        contract={"cuda": Contract((copied, PINNED))},
        why=why,
        min_speedup_why=min_speedup_why,
    )
    return Workload(
        name=name,
        baseline=partial(one_thread, preparation),
        inputs=partial(sample_numbers, preparation),
        sizes={"cuda": preparation.size, "cpu": preparation.size},
        timing="pipeline",
        cold=False,  # the inputs are numbers of samples
        optimizations=(of_threads, *of_processes),
    )


WORKLOADS: tuple[Workload, ...] = (
    _workload(
        *("host-preparation-cheap", CHEAP, HANDING_OVER, {"sm_90": 0.59, "cuda": 0.2}),
        by_processes={2: {"cuda": 0.085, "cpu": 0.02}, 4: {"cuda": 0.079}},
        min_speedup_why="handing over takes up to a third longer on one host than on another",
    ),
    _workload(
        *("host-preparation-expensive", EXPENSIVE, SPREAD, {H100: 2.2, "sm_90": 2.25, "cuda": 1.0, "cpu": 0.4}),
        by_processes={2: {"sm_90": 1.22, "cuda": 0.9, "cpu": 0.2}, 4: {"sm_90": 1.66, "cuda": 1.0}},
    ),
)
