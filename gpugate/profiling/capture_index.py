"""The side of a case that each range of the profiler belongs to, from the profiled run to the run that started it.

An environment variable names the folder that both share; only the inner run has it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gpugate.store.codec import from_json, to_json
from gpugate.store.json_file import parse, pretty, write_atomically

FOLDER_VARIABLE = "GPUGATE_PROFILED_IN"
INNER_PID, OUTER_PID, INDEX = "inner-pid", "outer-pid", "index.json"  # files in it
REPORT_STEM = "capture"  # of what the profiler writes into the folder
DOMAIN, STEP = "gpugate", "step"  # of the NVTX ranges; the stages of the workloads are in the same domain
OUTER_LOOK_S, ORPHAN_S = 1.0, 30.0
REPORT, NOT_IMPORTED, EXPORT = ".nsys-rep", ".qdstrm", ".sqlite"
LONGEST = 120  # characters, which leaves room for a side and an ending below the 255 bytes of a file name
SideLabel = Literal["reference", "optimized"]


@dataclass
class Capture:
    """One range of the profiler. `complete` once all steps ran in it."""

    number: int  # from 1
    case_id: str
    label: SideLabel
    side: str  # the name of the side, such as `baseline`
    steps: int
    items: int  # of a step
    complete: bool = False

    @property
    def window(self) -> str:
        """The name of the NVTX range around its steps."""
        return f"{self.case_id} {self.label}"


@dataclass
class CaptureIndex:
    """All captures of a run so far. `status` is pytest's, None while it runs or where it died."""

    captures: list[Capture] = field(default_factory=list)
    status: int | None = None

    def write(self) -> None:
        """Writes the index into the folder of the run that profiles this one."""
        write_atomically(Path(os.environ[FOLDER_VARIABLE], INDEX), pretty(to_json(self)))


def read_index(folder: Path) -> CaptureIndex:
    """Reads the index of a run; it is empty where the run ended before it wrote anything."""
    path = folder / INDEX
    return from_json(CaptureIndex, parse(path.read_text(encoding="utf-8"))) if path.exists() else CaptureIndex()


def write_inner_pid(folder: Path) -> None:
    """Lets the outer run interrupt this one, and ends this one when the outer run has been killed."""
    write_atomically(folder / INNER_PID, str(os.getpid()))
    outer = int((folder / OUTER_PID).read_text(encoding="utf-8"))
    threading.Thread(target=_end_with, args=(outer,), name="gpugate-outer-run", daemon=True).start()


def _end_with(outer: int) -> None:
    while Path(f"/proc/{outer}").exists():
        time.sleep(OUTER_LOOK_S)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(ORPHAN_S)
    os.kill(os.getpid(), signal.SIGKILL)


def safe_name(case_id: str) -> str:
    """Returns `two-layer-net+cuda-graph+cuda` for `two-layer-net/cuda-graph/cuda`; a long name ends with a hash."""
    name = case_id.replace("/", "+")
    digest = hashlib.sha256(case_id.encode()).hexdigest()[:8]
    return name if len(name) <= LONGEST else f"{name[: LONGEST - len(digest) - 1]}-{digest}"
