"""Building, running and releasing one side of a comparison, apart from the other."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import reprlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import Any

import torch

from gpugate.errors import SideError
from gpugate.measurement import time_limit
from gpugate.measurement.host_counters import CompilerCounters
from gpugate.measurement.process_state import restore_process_state
from gpugate.measurement.ranks import RankedSide
from gpugate.measurement.record import SideCost
from gpugate.measurement.time_limit import BUILD_SHARE
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.workload import Build, Context, Side
from gpugate.workload.parts import PLAIN_TENSORS, Parts, byte_size, list_tensors, output_parts

Restore = Callable[[Sequence[Any]], None]
WORKERS_START_S = 30
LONGEST_REFILL_S = 1.0
M_PERTURB = -6  # of malloc.h


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # cuda only


@contextmanager
def blame(side: str, doing: str, share: float = 1) -> Iterator[None]:
    """Raises SideError, with the side and the cause, for every exception of a user's code inside; Ctrl-C passes.

    Exceptions of pytest, such as that of `pytest.skip`, and of asyncio are BaseExceptions. A change of the whole
    process's state is restored and is an error as well, and so is code that runs longer than `share` times
    the setting `perf_step_timeout`.
    """
    try:
        with time_limit.limit(side, doing, share), restore_process_state():
            yield
    except (SideError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise SideError(side, doing, error) from error


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Disables garbage collection inside; `release` collects between measurements.

    One full collection lasts longer than a block, and a trace of 200,000 events triggers many of them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass
class BuiltSide:
    """A side with its own torch flags and its own place in the rotation of inputs.

    `restore` gives input sets their contents back where the steps of the workload write to them, else it is None.
    """

    name: str
    side: Side
    flags: TorchFlags
    device: torch.device
    cost: SideCost
    steps_per_block: int = 1
    next_input: int = 0
    last_input: int = 0
    last_output: Any = None
    workers: set[int] = field(default_factory=set)  # processes that its build and its first step started
    restore: Restore | None = None
    compiler: CompilerCounters = field(default_factory=CompilerCounters)
    output_bytes: Sequence[int] = ()  # of each tensor of the last compared output, at first of the first step's

    def run_steps(self, inputs: Sequence[Any], steps: int) -> None:
        """Runs the timed loop: `steps` steps over rotating inputs, then one join of all work."""
        self._step_through(inputs, steps)
        self.side.finish()

    def take_stock(self, inputs: Sequence[Any]) -> None:
        """Uses up the data that loaders and queues prepared while the other side ran: it cost this side no time."""
        if self.side.stock_steps:
            self._step_through(inputs, self.side.stock_steps)

    def _step_through(self, inputs: Sequence[Any], steps: int) -> None:
        step, count, index, output = self.side.step, len(inputs), self.next_input, self.last_output
        for _ in range(steps):
            output = step(inputs[index])
            index = index + 1 if index + 1 < count else 0
        self.next_input, self.last_input, self.last_output = index, (index or count) - 1, output

    def lead_in(self, inputs: Sequence[Any], steps: int) -> None:
        """Runs untimed steps on the sets before the next one, so that the sets of a block stay as cold as they are."""
        if steps:
            self.next_input = (self.next_input - steps) % len(inputs)
            self.run_steps(inputs, steps)

    def timed_block(
        self,
        inputs: Sequence[Any],
        time_ms: Callable[[Callable[[], None]], float],
        steps: int | None = None,
        lead_in: int = 0,
        begin: Callable[[], None] = lambda: None,
        end: Callable[[float], None] = lambda step_ms: None,
    ) -> float:
        """Times one block under this side's flags, in milliseconds per step; `steps` defaults to `steps_per_block`.

        `begin` is called once the inputs have their contents back and `lead_in` untimed steps have run, and `end`, with
        the milliseconds of a step, right after the last step: what this engine does around a block is in neither.
        """
        steps = steps or self.steps_per_block
        self.restore_next(inputs, steps)
        self.flags.apply()
        with blame(self.name, "running timed steps"), pause_garbage_collection(), self.compiler.count():
            self.lead_in(inputs, lead_in)
            if isinstance(self.side, RankedSide):
                self.side.job.align()
            synchronize(self.device)
            begin()
            self.take_stock(inputs)
            self.take_waits_ms()  # those of earlier steps
            step_ms = time_ms(lambda: self.run_steps(inputs, steps)) / steps
            end(step_ms)
        return step_ms

    def await_refill(self, step_ms: float, wait: Callable[[float], None] = sleep) -> None:
        """Waits until the loaders of this side, which has just run, have refilled its stock, at the rate of that run.

        Without the wait they would use cores during the other side's block, and fill their stock at its expense.
        """
        if self.side.stock_steps:
            wait(min(LONGEST_REFILL_S, self.side.stock_steps * step_ms / 1e3))

    def take_waits_ms(self) -> Sequence[float]:
        """Returns the waits of the steps since the last call; none of a side that serves nobody."""
        return self.side.waits_ms() if self.side.waits_ms is not None else ()

    def restore_next(self, inputs: Sequence[Any], steps: int) -> None:
        """Gives the sets of the next steps their contents back, the first one first, as it is read first."""
        if self.restore is not None:
            count = len(inputs)
            self.restore([inputs[(self.next_input + step) % count] for step in range(min(steps, count))])

    def output_for(self, inputs: Any, expected: bool = False) -> Parts:
        """Runs one step, joins it, and returns copies of the parts of its output that no later step can overwrite.

        With `expected`, the output is what other sides must give: the step runs without TF32, and is
        `Side.expected_step` where the side has one.
        """
        self.restore_next([inputs], 1)
        (self.flags.without_tf32() if expected else self.flags).apply()
        spoiled = spoil_new_memory(self.output_bytes, self.device)
        with blame(self.name, "computing an output"), self.compiler.count(), spoiled:
            output = ((expected and self.side.expected_step) or self.side.step)(inputs)
            self.side.finish()
            synchronize(self.device)
            self.output_bytes = [*map(byte_size, list_tensors(output))]
            return self.copy_parts(output, inputs)

    def copy_parts(self, output: Any, inputs: Any) -> Parts:
        """Calls `parts_of`, and copies the tensors."""
        with torch.inference_mode(False):  # a clone made in inference mode would stay an inference tensor
            parts = self.parts_of(output, inputs)
            return {name: part.clone() if type(part) in PLAIN_TENSORS else part for name, part in parts.items()}

    def parts_of(self, output: Any, inputs: Any) -> Parts:
        """Lists what is compared of a step: its output, and where it writes to its inputs, these."""
        return output_parts(output, inputs if self.restore is not None else None)

    def why_not_engaged(self) -> str | None:
        """Returns the reason that the side gives, or None where it engaged. Raises SideError for any other value."""
        with blame(self.name, "calling engaged()"):
            reason = self.side.engaged()
            if reason is None or (isinstance(reason, str) and reason.strip()):
                return reason
            next_step = "return None where the optimization engaged, and why not, as a text, where it did not"
            raise TypeError(f"engaged() returned {reprlib.repr(reason)}: {next_step}")

    def list_layers(self) -> tuple[str, ...]:
        """Lists the layers of a compiled engine; empty for a side that names none."""
        if self.side.layers is None:
            return ()
        with blame(self.name, "listing its layers"):
            return tuple(self.side.layers())

    def close(self) -> None:
        self.last_output = None
        with blame(self.name, "being closed"):
            self.side.close()


def build_side(
    name: str, build: Build, context: Context, first_input: Any, restore: Restore | None = None
) -> BuiltSide:
    """Builds a side from the suite's default flags and runs its first step; both are timed, and are never samples.

    On a GPU, a second step shows the peak memory of a step. The first step, and the build, also try kernels and their
    workspaces where these are not in a cache yet: their peak differs from process to process.
    """
    if restore is not None:
        restore([first_input])
    TorchFlags().apply()
    before_bytes = _settle_memory(context) if context.device.type == "cuda" else 0
    compiler = CompilerCounters()
    with blame(name, "being closed"), compiler.count(), ExitStack() as undo:
        started = perf_counter()
        with blame(name, "being built", BUILD_SHARE):
            side = build(context) if context.ranks is None else context.ranks.build(build, context)
            if not isinstance(side, Side):
                raise TypeError(f"its build function returned {reprlib.repr(side)}: return a gpugate.workload.Side")
            undo.callback(side.close)
            synchronize(context.device)
            flags = TorchFlags.current()
            built = perf_counter()
        with blame(name, "running its first step", BUILD_SHARE):
            output_bytes = [*map(byte_size, list_tensors(side.step(first_input)))]
            side.finish()
            synchronize(context.device)
            stepped = perf_counter()
            _await_compile_workers()
        with blame(name, "running its second step"):
            peak_bytes = None
            if context.device.type == "cuda":
                if restore is not None:
                    restore([first_input])
                above_bytes = _peak_of_step(side, first_input, context) - before_bytes  # cuda only
                # A negative difference means that a library freed memory of earlier work: the peak is not known.
                peak_bytes = above_bytes if above_bytes >= 0 else None  # cuda only
        undo.pop_all()
    cost = SideCost(build_s=built - started, first_step_s=stepped - built, peak_bytes=peak_bytes)
    made = BuiltSide(name, side, flags, context.device, cost, restore=restore, compiler=compiler)
    made.output_bytes = output_bytes
    return made


def _await_compile_workers() -> None:
    """Waits for Inductor's worker processes, whose start-up lasts seconds beyond a compilation and disturbs timing.

    The workers stay for the next build: ending them takes as long as starting them, at every build. Torch itself ends
    them a minute after their last job, and starts others within a tenth of a second from a process that stays.
    """
    workers = sys.modules.get("torch._inductor.async_compile")
    if workers is None or not workers._pool_set:  # waiting would start them
        return
    with suppress(Exception):  # torch compiles in this process then
        workers.AsyncCompile.wait_pool_ready(WORKERS_START_S)


def allocated_bytes(device: torch.device) -> int:  # cuda only
    """Reads the device memory of all that is alive, without what a closed side left in reference cycles. Only an
    allocation frees memory that another stream was still using."""
    gc.collect()
    synchronize(device)
    torch.empty(1, device=device)
    return torch.cuda.memory_allocated(device)


def _settle_memory(context: Context) -> int:  # cuda only
    """Frees what a build or a step left, also in a job of ranks; returns the bytes that stay allocated."""
    if context.ranks is not None:
        context.ranks.free_sent_memory()
    return allocated_bytes(context.device)


def _peak_of_step(side: Side, inputs: Any, context: Context) -> int:  # cuda only
    _settle_memory(context)
    torch.cuda.reset_peak_memory_stats(context.device)
    side.step(inputs)
    side.finish()
    synchronize(context.device)
    return torch.cuda.max_memory_allocated(context.device)


@contextmanager
def spoil_new_memory(blocks_bytes: Sequence[int], device: torch.device) -> Iterator[None]:
    """Fills host memory that is allocated inside with 0x7F, and the next blocks of these sizes on a GPU with NaN.

    A side that returns memory which it never wrote would be right by luck where an older output stands there.
    """
    if device.type == "cuda":  # cuda only
        with suppress(torch.OutOfMemoryError):  # the caching allocator hands out the freed block again
            [torch.full((size // 2,), 0x7FFF, dtype=torch.int16, device=device) for size in blocks_bytes]  # NaN
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda name, value: None)  # of glibc
    mallopt(M_PERTURB, 0x80)  # glibc fills with the complement
    try:
        yield
    finally:
        mallopt(M_PERTURB, 0)


def release(device: torch.device) -> None:
    """Frees the memory of closed sides, so that the next side starts from an empty device."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()  # compiled code keeps its model and its CUDA graphs alive
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # cuda only
    TorchFlags().apply()


def fingerprint(model: torch.nn.Module | None) -> str:
    """Computes a digest of a model's structure and tensors: another digest later means that the model was changed."""
    if model is None:
        return ""
    digest = hashlib.sha256()
    with blame(type(model).__name__, "being compared with itself"):
        for name, module in model.named_modules():
            compiled = getattr(module, "_compiled_call_impl", None) is not None or "forward" in vars(module)
            digest.update(f"{name}:{type(module).__name__}:{compiled};".encode())
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            values = tensor.detach().double()
            # The sum of squares too: weights are symmetric around zero, so scaling them hardly changes their plain sum.
            sums = float(values.sum()), float(values.square().sum())
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:{tensor.stride()}:{sums!r};".encode())
    return digest.hexdigest()
