"""PyTorch's own trace of each side, for Perfetto: needs no Nsight, and no GPU either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.profiler import record_function

from gpugate.errors import OptionError
from gpugate.faults.fault import Fault
from gpugate.measurement.counters import detach, profiled
from gpugate.measurement.sides import synchronize
from gpugate.profiling.artifact_names import safe_name
from gpugate.profiling.warm_steps import Window, profile_sides
from gpugate.store.writable_folder import make_writable, prepare_unfinished
from gpugate.workload import Case, Context

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
