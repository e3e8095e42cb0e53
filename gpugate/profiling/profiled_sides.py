"""A few warmed-up steps of each side of a case, alone on the device: in a range of Nsight, or traced by PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from gpugate.errors import OptionError
from gpugate.faults.fault import Fault
from gpugate.faults.mutated import mutated
from gpugate.measurement.cold_inputs import make_inputs
from gpugate.measurement.counters import FLUSH_STEPS, detach, profiled
from gpugate.measurement.device_timer import timer_for
from gpugate.measurement.settings import WARM_UP_S
from gpugate.measurement.sides import BuiltSide, blamed_on, build_side, release, synchronize
from gpugate.measurement.time_limit import BUILD_SHARE
from gpugate.measurement.warm_up import least_block_ms, warm_up
from gpugate.profiling import capture_index
from gpugate.profiling.capture_index import DOMAIN, STEP, Capture, CaptureIndex, SideLabel, safe_name
from gpugate.session.options import Tool
from gpugate.store.writable_folder import make_writable, prepare_unfinished
from gpugate.workload import Case, Context

MOST_STEPS, FEWEST_STEPS, PROFILED_MS = 5, 2, 500.0


@dataclass(frozen=True)
class Window:
    """What is profiled at once: `steps` steps of `items` items each of one side."""

    case_id: str
    label: SideLabel
    side: str
    steps: int
    items: int


Profile = Callable[[Window], AbstractContextManager[object]]
Step = Callable[[int], AbstractContextManager[object]]


def profile_sides(
    case: Case, context: Context, fault: Fault | None, profile: Profile, step: Step, most_steps: int = MOST_STEPS
) -> None:
    """Builds, warms up, profiles and closes one side after the other.

    `profile(window)` is around the steps of a side and waits for the device behind them; `step(items)` is around each
    of them. Raises SideError, naming the
    side, for one that cannot be built or run.
    """
    if fault is not None:
        case = mutated(case, fault, context.device)
    sides: tuple[tuple[SideLabel, str], ...] = (
        ("reference", case.reference_name),
        ("optimized", case.optimization.name),
    )
    try:
        with blamed_on(f"inputs of {case.workload.name}", "being made", BUILD_SHARE):
            inputs = make_inputs(case.workload, context, 0, random.Random(case.id)).timed  # noqa: S311
        for label, name in sides:
            side = build_side(name, case.builder(name), context, inputs[0])
            try:
                steps = _warmed_up(side, case, inputs, most_steps)
                _run(side, inputs, Window(case.id, label, name, steps, case.size.items), profile, step)
            finally:
                side.close()
                del side
                release(context.device)
    finally:
        release(context.device)


def _warmed_up(side: BuiltSide, case: Case, inputs: Sequence[Any], most_steps: int) -> int:
    """How many steps are worth looking at: fewer where they are long, since they only repeat each other."""
    kind, timer = side.device.type, timer_for(side.device, case.workload.timing)
    warm_up(side, inputs, timer.time_ms, least_block_ms(side), WARM_UP_S[kind])
    step_ms = side.timed_block(inputs, timer.time_ms)
    return min(most_steps, max(FEWEST_STEPS, int(PROFILED_MS / step_ms)))


def _run(side: BuiltSide, inputs: Sequence[Any], window: Window, profile: Profile, step: Step) -> None:
    """Such steps as the counting pass runs, so that its counters are those of the profile; at most MOST_STEPS."""
    side.flags.apply()
    with blamed_on(side.name, "being profiled"):
        side.run_steps(inputs, FLUSH_STEPS)
        synchronize(side.device)
        with profile(window):
            for offset in range(window.steps):
                with step(window.items):
                    side.side.step(inputs[(side.next_input + offset) % len(inputs)])
            if side.side.works_ahead:
                side.side.finish()
        side.side.finish()
        synchronize(side.device)


STEP_COLOUR, WINDOW_COLOUR = 0x76B900, 0x999999


@contextmanager
def window_range(text: str, number: int) -> Iterator[None]:
    """What is profiled of one side, on all threads: that is what a started, not pushed, range is for."""
    import nvtx

    domain: Any = nvtx.get_domain(DOMAIN)
    started = domain.start_range(domain.get_event_attributes(message=text, color=WINDOW_COLOUR, payload=number))
    try:
        yield
    finally:
        domain.end_range(started)


@contextmanager
def step_range(items: int) -> Iterator[None]:
    """One step of `items` items on the thread that runs it."""
    import nvtx

    with nvtx.annotate(STEP, color=STEP_COLOUR, domain=DOMAIN, payload=items):
        yield


KIND = "cuda"  # of device that the ranges belong to


def start_profiler() -> None:  # cuda only
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())  # type: ignore[no-untyped-call]


def stop_profiler() -> None:  # cuda only
    torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStop())  # type: ignore[no-untyped-call]


class CaptureRanges:
    """Captures cases, one after another, and keeps the index of the shared folder up to date."""

    def __init__(self, folder: Path, index: CaptureIndex, tool: Tool, fault: Fault | None) -> None:
        self._folder, self._index, self._tool, self._fault = folder, index, tool, fault

    def capture(self, case: Case, context: Context) -> str:
        """Captures both sides and returns, for the test's skip, why nothing is judged. Raises SideError."""
        if context.device.type != KIND:
            return f"--{self._tool} captures what a GPU does: run it on a machine with one, or try --torch-trace"
        steps = MOST_STEPS if self._tool == "nsys" else 1  # ncu runs every kernel many times over
        profile_sides(case, context, self._fault, lambda window: self._captured(window, context), step_range, steps)
        return f"captured under {self._tool}: timings are not judged"

    @contextmanager
    def _captured(self, window: Window, context: Context) -> Iterator[None]:
        capture = Capture(
            len(self._index.captures) + 1, window.case_id, window.label, window.side, window.steps, window.items
        )
        self._index.captures.append(capture)
        capture_index.write(self._folder, self._index)
        if self._tool == "ncu":  # cuda only: it saves all that a kernel could write, also what PyTorch only holds ready
            torch.cuda.empty_cache()
        start_profiler()
        try:
            with window_range(capture.window, capture.number):
                yield
            synchronize(context.device)
            capture.complete = True
        finally:
            stop_profiler()
            capture_index.write(self._folder, self._index)


ENDING = ".trace.json.gz"


@dataclass
class TorchTraces:
    """Traces cases into a folder, each side into a file of its own."""

    folder: Path
    fault: Fault | None
    written: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            make_writable(self.folder)
        except OSError as error:
            raise OptionError(
                f"--torch-trace {self.folder} cannot be written ({error.strerror}): give another folder"
            ) from None

    def capture(self, case: Case, context: Context) -> str:
        """Traces both sides and returns, for the test's skip, why nothing is judged. Raises SideError."""
        profile_sides(case, context, self.fault, lambda window: self._traced(window, context.device), _step)
        return "traced: timings are not judged"

    @contextmanager
    def _traced(self, window: Window, device: torch.device) -> Iterator[None]:
        path = self.folder / f"{safe_name(window.case_id)}.{window.label}{ENDING}"
        with profiled(device, record_shapes=True) as profiler:
            yield
            synchronize(device)
        partial = prepare_unfinished(path, ENDING)
        try:
            profiler.export_chrome_trace(str(partial))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        detach(device)
        self.written.append(path)


def _step(items: int) -> AbstractContextManager[object]:
    return record_function(f"step of {items} items")  # a trace does not show what it is given besides
