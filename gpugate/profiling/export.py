"""The programs nsys and ncu, the captures of a profiled run, and the steps in a SQLite export as events of a trace.

A profiled run tells the run that started it to which side of a case each range of the profiler belongs, in a folder
that both share. An environment variable names the folder; only the inner run has it.

A step is an NVTX push/pop range "step" of the domain "gpugate" with the step's items as payload. A call of any thread
of that process counts if it begins from the start of the first step to the end of the last; where a started range of
the same domain is around the steps, as `pytest --nsys` makes one, if it begins inside that range. It is the window of a
counting pass (gpugate.measurement.trace): what a pipeline does between two steps belongs to them.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gpugate.errors import GpugateError
from gpugate.machine.children import run_child
from gpugate.measurement.trace import WINDOW, Activity, Event, read_activity
from gpugate.store.codec import from_json, to_json
from gpugate.store.json_file import parse, pretty, write_atomically

FOLDER_VARIABLE = "GPUGATE_PROFILED_IN"
INDEX = "index.json"  # a file in it
REPORT_STEM = "capture"  # of what the profiler writes into the folder
DOMAIN, STEP = "gpugate", "step"  # of the NVTX ranges; the stages of the workloads are in the same domain
REPORT, EXPORT = ".nsys-rep", ".sqlite"
SideLabel = Literal["reference", "optimized"]
EXPORT_AGAIN = "export it again with `nsys export --type sqlite --force-overwrite true`"
PUSH_POP, STARTED, DOMAIN_NAMED = 59, 60, 75  # of NVTX_EVENTS.eventType
AUTOGRAD_THREADS = "pt_autograd_"  # begins PyTorch's names of the threads that run CUDA's backward passes
# As ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND have them, in the words of a trace.
WAYS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
MEMORIES = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
# nsys appends the version in which a function's parameters last changed, and its kind of default stream.
_SUFFIX = re.compile(r"(_ptsz|_ptds)?(_v\d+)?$")
_THREAD = "COALESCE(globalTid, 0)"
_NVTX = f"start, end, eventType, {_THREAD}, COALESCE(domainId, 0), text, textId, COALESCE(int64Value, uint64Value, 0)"
_DEVICE = "start, end, correlationId, streamId, globalPid >> 24"


class ProfileError(GpugateError):
    """A profile cannot be taken, exported, read or written."""


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


def safe_name(case_id: str) -> str:
    """Returns `two-layer-net+cuda-graph+cuda` for `two-layer-net/cuda-graph/cuda`."""
    return case_id.replace("/", "+")


# --- the steps in an export -------------------------------------------------------------------------------------------


class Range(NamedTuple):
    """An NVTX range of one thread, in us; `ours` for a range of the domain of the steps."""

    start: float
    stop: float
    name: str
    tid: int
    ours: bool
    items: int


@dataclass(frozen=True)
class CapturedSteps:
    """The profiled steps, from `start` to `stop` in us, with all activity that their calls caused.

    `ranges` are the pushed ranges of the process, in the order in which they opened. A backward pass stands in the
    ranges of the thread that asked for it: all threads that run steps have one id, here and in the activity.
    """

    report: str  # the file's name
    product: str  # the version of Nsight Systems that exported it
    gpu: str
    start: float
    stop: float
    steps: Sequence[Range]
    ranges: Sequence[Range]
    activity: Activity

    @property
    def device(self) -> list[Event]:
        return [*self.activity.kernels, *self.activity.copies, *self.activity.memsets]

    def find_innermost(self, tid: int, at: float) -> str:
        """The name of the innermost range that a thread is in at a time; "" for none."""
        opened = self.ranges[: bisect_right(self.ranges, at, key=lambda one: one.start)]
        return next((one.name for one in reversed(opened) if one.tid == tid and at < one.stop), "")

    def project_ranges(self) -> Iterator[tuple[Range, float]]:
        """Yields each range that lies in the steps with the time in us from the first to the last activity of the
        device that was launched inside it."""
        calls = {call["args"]["correlation"]: call for call in self.activity.calls}
        caused = ((calls[event["args"]["correlation"]], event) for event in self.device)
        work = sorted((call["tid"], call["ts"], event["ts"], event["ts"] + event["dur"]) for call, event in caused)
        for one in self.ranges:
            if self.start <= one.start and one.stop <= self.stop:
                inside = work[bisect_left(work, (one.tid, one.start)) : bisect_left(work, (one.tid, one.stop))]
                yield one, max(row[3] for row in inside) - min(row[2] for row in inside) if inside else 0.0


def read_export(path: Path, steps: int | None = None, window: str | None = None) -> CapturedSteps:
    """Reads the steps of an export. `steps` is the number that there must be, `window` the name of the range around
    them, if there is one.

    Raises ProfileError for a file that cannot be used, has other steps, or has nothing of CUDA in them.
    """
    try:
        with path.open("rb"):  # SQLite does not name the reason why it cannot open a file
            pass
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.text_factory = lambda text: text.decode(errors="replace")
            return _read(path.name, _Tables(database), steps, window)
    except ProfileError as error:
        raise ProfileError(f"{path} cannot be summarized: {error}") from None
    except (OSError, sqlite3.Error, LookupError, TypeError, ValueError) as error:  # nsys writes other values
        problem = getattr(error, "strerror", None) or str(error)
        raise ProfileError(
            f"{path} cannot be read ({problem}): give a .nsys-rep or its SQLite export, or {EXPORT_AGAIN}"
        ) from error


class _Tables:
    """The tables of an export: nsys makes a table only where it has rows for it."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._present = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        self._texts: dict[int, str] = dict(self.rows("StringIds", "id, value"))

    def rows(self, table: str, columns: str) -> list[Any]:
        return self._database.execute(f"SELECT {columns} FROM {table}").fetchall() if table in self._present else []  # noqa: S608

    def text(self, key: int | None) -> str:
        return self._texts.get(key, "unnamed") if key is not None else "unnamed"


def _read(report: str, tables: _Tables, wanted: int | None, window: str | None) -> CapturedSteps:
    marks = tables.rows("NVTX_EVENTS", _NVTX)
    calls = tables.rows("CUPTI_ACTIVITY_KIND_RUNTIME", f"start, end, {_THREAD}, correlationId, nameId")
    pushed, started = (_ranges(tables, marks, kind) for kind in (PUSH_POP, STARTED))
    steps = [one for one in pushed if one.ours and one.name == STEP]
    if not steps:
        mark = f"an NVTX range {STEP!r} of the domain {DOMAIN!r}"
        raise ProfileError(f"the report contains no step ({mark}): profile with `pytest --nsys`")
    if wanted not in (None, len(steps)):
        raise ProfileError(
            f"the report contains {len(steps)} steps and not {wanted}: profile again, its capture was cut off"
        )
    main, start, stop = steps[0].tid, steps[0].start, max(step.stop for step in steps)
    around = next((one for one in started if one.ours and one.start <= start and stop <= one.stop), None)
    if around is not None:
        start, stop = around.start, around.stop
        if window not in (None, around.name):
            raise ProfileError(f"it contains the steps of {around.name} and not of {window}: profile again")
    names = tables.rows("ThreadNames", "globalTid, nameId")
    backward = (tid for tid, name in names if tables.text(name).startswith(AUTOGRAD_THREADS))
    threads = dict.fromkeys((*backward, *(step.tid for step in steps)), main)
    events = [_event("user_annotation", WINDOW, 1e3 * start, 1e3 * stop, main)]
    events += [
        _event("cuda_runtime", _SUFFIX.sub("", tables.text(name)), begin, end, threads.get(tid, tid), correlation)
        for begin, end, tid, correlation, name in calls
        if tid >> 24 == main >> 24
    ]
    activity = read_activity([*events, *_device_events(tables, main)], len(steps))
    if not activity.calls:
        raise ProfileError("no CUDA call begins in its steps: profile with --trace=cuda,nvtx what runs on a GPU")
    versions = dict(tables.rows("META_DATA_EXPORT", "name, value"))
    return CapturedSteps(
        report=report,
        product=versions.get("EXPORT_PRODUCT_VERSION") or "",
        gpu=", ".join(dict.fromkeys(name for (name,) in tables.rows("TARGET_INFO_GPU", "name") if name)),
        start=start,
        stop=stop,
        steps=steps,
        ranges=[one._replace(tid=threads.get(one.tid, one.tid)) for one in pushed if one.tid >> 24 == main >> 24],
        activity=activity,
    )


def _ranges(tables: _Tables, marks: Collection[Any], kind: int) -> list[Range]:
    """The ranges of one kind in the order in which they open; of ranges that open together the longer one is outside.

    A domain whose creation the report does not contain, as the capture began later, is taken for ours; 0 is the default
    one.
    """
    domains = {(domain, tid >> 24): name for _, _, event, tid, domain, name, *_ in marks if event == DOMAIN_NAMED}
    found = [
        Range(
            start / 1e3, stop / 1e3, tables.text(key) if name is None else name, tid,
            domain != 0 and domains.get((domain, tid >> 24), DOMAIN) == DOMAIN, items,
        )
        for start, stop, event, tid, domain, name, key, items in marks
        if event == kind and stop is not None and stop > start
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.start, -one.stop))


def _device_events(tables: _Tables, main: int) -> Iterator[Event]:
    """Yields the work of the process on the device. A correlation id is unique in a process only."""
    kernels = tables.rows("CUPTI_ACTIVITY_KIND_KERNEL", f"{_DEVICE}, demangledName, shortName")
    for start, stop, correlation, stream, process, name, short in kernels:
        if process in (None, main >> 24):
            text = tables.text(short if name is None else name)
            yield _event("kernel", text, start, stop, stream, correlation)
    copies = tables.rows("CUPTI_ACTIVITY_KIND_MEMCPY", f"{_DEVICE}, bytes, copyKind, srcKind, dstKind")
    for start, stop, correlation, stream, process, size, kind, source, target in copies:
        if process in (None, main >> 24):
            memories = (MEMORIES.get(memory, "Unknown") for memory in (source, target))
            name = f"Memcpy {WAYS.get(kind, f'of kind {kind}')} ({' -> '.join(memories)})"
            yield _event("gpu_memcpy", name, start, stop, stream, correlation, size)
    for start, stop, correlation, stream, process in tables.rows("CUPTI_ACTIVITY_KIND_MEMSET", _DEVICE):
        if process in (None, main >> 24):
            yield _event("gpu_memset", "Memset", start, stop, stream, correlation)
    if tables.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "1"):
        raise ProfileError("its CUDA graphs were recorded whole, without kernels: profile with --cuda-graph-trace=node")


def _event(category: str, name: str, start: float, stop: float, tid: int, correlation: int = 0, size: int = 0) -> Event:
    """An event of a trace from times in ns. `tid` is the thread of a call, and the stream of work on the device."""
    facts = {"correlation": correlation, "stream": tid, "bytes": size}
    times = {"ts": start / 1e3, "dur": (stop - start) / 1e3}
    return {"ph": "X", "cat": category, "name": name, **times, "tid": tid, "args": facts}


# --- the programs -----------------------------------------------------------------------------------------------------

# Nsight Compute brings an nsys of its own, which no PATH names.
PLACES = {
    "nsys": (
        "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
        "/opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
        "/usr/local/cuda/bin/nsys",
    ),
    "ncu": ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda/bin/ncu"),
}
PERMISSION = "load the driver with NVreg_RestrictProfilingToAdminUsers=0, or run as root or with CAP_SYS_ADMIN"
# What a version may know: other processes' variables are none of our business, and without CPU samples no symbol is.
LEANER = ("--discard-environment=true", "--resolve-symbols=false")
ANSWER_S, EXPORT_S = 60.0, 600.0
LAST_WORDS = 200


def find_tool(tool: Literal["nsys", "ncu"]) -> str | None:
    """The path of nsys or ncu: the one on PATH, else the newest where installers put it."""
    elsewhere = (sorted(Path("/").glob(place.lstrip("/"))) for place in PLACES[tool])
    newest = (str(paths[-1]) for paths in elsewhere if paths)
    return shutil.which(tool) or next(newest, None)


def require(tool: Literal["nsys", "ncu"]) -> str:
    """The path of nsys or ncu. Raises ProfileError where it is not there."""
    path = find_tool(tool)
    if path is None:
        raise ProfileError(f"no {tool} was found: install it, put it on PATH, or try pytest --torch-trace")
    return path


def nsys_profile(environment: Mapping[str, str]) -> list[str]:
    """The beginning of a command line of `nsys profile`, with those of LEANER that this nsys knows.

    Raises ProfileError for an nsys that is not there.
    """
    path = require("nsys")
    known = run_child([path, "profile", "--help"], ANSWER_S, environment=environment).output
    return [path, "profile", *(option for option in LEANER if option.partition("=")[0] in known)]


def export_report(path: Path, environment: Mapping[str, str] | None = None) -> Path:
    """The SQLite export beside a .nsys-rep, made anew where it is missing or older; any other file as it is.

    nsys gets the variables of `environment`, by default those of this process. Raises ProfileError without nsys, and
    for a report that does not exist or cannot be exported.
    """
    if path.suffix != REPORT:
        return path
    if not path.is_file():
        raise ProfileError(f"{path} is no file: give a .nsys-rep, or what nsys exported from it")
    sqlite = path.with_suffix(EXPORT)
    if sqlite.is_file() and sqlite.stat().st_size and sqlite.stat().st_mtime >= path.stat().st_mtime:
        return sqlite
    nsys = require("nsys")
    try:
        with tempfile.TemporaryDirectory(prefix=".exporting-", dir=path.parent) as folder:
            partial = Path(folder, sqlite.name)  # an export that is cut off must not pass for a whole one
            words = [nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={partial}", str(path)]
            ended = run_child(words, EXPORT_S, environment=environment)
            if ended.status != 0:
                last = "".join(ended.last_lines(1))[:LAST_WORDS] or "without output"
                raise ProfileError(f"`nsys export` {ended.reason} ({last}): run it by hand to see more")
            return partial.replace(sqlite)
    except OSError as error:
        raise ProfileError(f"{sqlite} cannot be written ({error.strerror}): move the report elsewhere") from error
