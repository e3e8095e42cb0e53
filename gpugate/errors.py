"""The few errors that a user of the suite can cause; each message is one sentence with the value and the next step."""

import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary, StackSummary, walk_tb

# Texts of errors of CUDA, cuBLAS, cuDNN and PyTorch's allocator of the host where memory is short; its allocator of the
# GPU raises OutOfMemoryError, and Python and NumPy raise MemoryError.
_OUT_OF_MEMORY = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)
# Of gcc or clang, behind its command, which takes lines.
_COMPILER_ERROR = re.compile(r"\n.*?: ((?:fatal )?error: .*)")
# Lines of pytest's output that name an error: a usage error, an exception in a test, a conftest.py or pytest itself, a
# crash. Its last line is often `no tests ran in 0.01s`.
_NAMES_ERROR = re.compile(
    r"(?:E {3}|ERROR: |INTERNALERROR> )?((?:[\w.]*(?:Error|Exception|Exit)|\S.*: error|Fatal Python error): .*)"
    r"|(?:ERROR: |E {3})(.*)"
)
# A line of that output with the place of an error behind it: of a syntax error or of pytest itself, or of a traceback.
_NAMES_PLACE = re.compile(r'(?:E {3}|INTERNALERROR> )  File "(.+)", line (\d+).*|(\S.*):(\d+): in .+')
# A line of the traceback of a loader's worker, which sends it as text.
_WORKER_LINE = re.compile(r'  File "(.+)", line (\d+), in (.+)')
_PACKAGE = Path(__file__).parent
# Where code is not a user's; `<frozen importlib>` is the name of a file. Packages are also known by the name of their
# folder: a virtual environment may use those of the Python below it.
_STANDARD_LIBRARY = ("<", sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


class GpugateError(Exception):
    """Base of every error that gpugate raises on purpose."""


class CatalogueError(GpugateError):
    """A workload or an optimization is declared in a way that cannot be measured."""


class OptionError(GpugateError):
    """An option or an argument of a command line has a value that cannot be used."""


class BaselineError(GpugateError):
    """A baseline file cannot be read, or must not be written."""


class ReplayError(GpugateError):
    """Stored runs cannot be decided again, merged or compared, or have no verdict."""


class CompareError(GpugateError):
    """Two versions of the workloads cannot be compared."""


class FreshProcessError(GpugateError):
    """A child process that was to measure ended without a run; `printed` is the end of its output."""

    def __init__(self, cause: str, printed: str) -> None:
        self.printed = printed
        super().__init__(f"a fresh process {cause}")


def error_line(lines: Sequence[str]) -> str:
    """Returns the last line that names an error, with its place, else the last line; empty without lines."""
    error, place = "".join(lines[-1:]), ""
    for line in lines:
        if match := _NAMES_PLACE.fullmatch(line):
            place = f" ({match[1] or match[3]}:{match[2] or match[4]})"
        elif match := _NAMES_ERROR.fullmatch(line):
            error = f"{match[1] or match[2]}{place}"
    return error


SPANS_GPUS = (
    "cases that span GPUs are not compared or profiled, since only a run of pytest starts their ranks: measure each "
    "version by pytest perf_tests --perf-report DIR, and compare the nights by gpugate diff"
)


class RankError(GpugateError):
    """A rank of a job failed or ended, or the ranks did not meet."""


class DisprovedError(GpugateError):
    """A proof of an optimization failed; the message names the problem and its size.

    Workloads import it from `gpugate.workload`, and those of versions before 29 November 2026, which this engine drives
    in duets, from here.
    """


class SideError(GpugateError):
    """One side of a comparison failed while it was built or run."""

    def __init__(self, side: str, doing: str, cause: BaseException) -> None:
        self.side = side
        self.doing = doing
        self.cause = cause
        super().__init__(f"{side} failed while {doing}: {type(cause).__name__}: {_message(cause)}{_place(cause)}")

    @property
    def out_of_memory(self) -> bool:
        return (
            isinstance(self.cause, MemoryError)
            or type(self.cause).__name__ == "OutOfMemoryError"
            or any(words in _text(self.cause) for words in _OUT_OF_MEMORY)
        )


class SpoiledProcessError(SideError):
    """A side changed what the baseline computes, in this process: every later case would have another baseline."""


def skip_reason(error: BaseException) -> str | None:
    """Returns the reason of a `pytest.skip`, `pytest.importorskip` or `pytest.xfail`, also as a SideError's cause.

    None for every other error.
    """
    if isinstance(error, SideError):
        return skip_reason(error.cause)
    import pytest

    return _message(error) if isinstance(error, (pytest.skip.Exception, pytest.xfail.Exception)) else None


def describe_line(line: FrameSummary) -> str:
    """Writes `perf_tests/conftest.py:12 step`; a file outside of the current folder has its name alone."""
    path = Path(line.filename)
    try:
        file = str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # outside, or a side removed the current folder
        file = path.name
    return f"{file}:{line.lineno} {line.name}"


def is_of_gpugate(line: FrameSummary) -> bool:
    return Path(line.filename).is_relative_to(_PACKAGE)


def _place(cause: BaseException) -> str:
    """Writes ` (perf_tests/conftest.py:12 step)`: the innermost line of a user's code, unless gpugate raised it."""
    lines = StackSummary.extract(walk_tb(cause.__traceback__), lookup_lines=False)
    if _is_of_worker(text := _text(cause)):
        found = _WORKER_LINE.findall(text)
        lines = StackSummary.from_list([(file, int(line), name, None) for file, line, name in found])
    own = [line for line in lines if not (is_of_gpugate(line) or _is_of_library(line))]
    return f" ({describe_line(own[-1])})" if own and not is_of_gpugate(lines[-1]) else ""


def _is_of_library(line: FrameSummary) -> bool:
    is_package = not _PACKAGE_FOLDERS.isdisjoint(Path(line.filename).parts)
    return is_package or line.filename.startswith(_STANDARD_LIBRARY)


def _is_of_worker(text: str) -> bool:
    """True for the text of an error that a loader's worker sent with its traceback."""
    return text.startswith("Caught ") and "Original Traceback" in text


def _text(cause: BaseException) -> str:
    try:
        return str(cause).strip()
    except Exception:  # an error of a user's own class
        return ""


def _message(cause: BaseException) -> str:
    """Returns the first line of an error, with a compiler's first error, or the last line of one that a loader's worker
    sent with its traceback."""
    text = _text(cause)
    lines = text.splitlines() or ["no message"]
    if _is_of_worker(text):
        return f"{lines[-1].removeprefix(f'{type(cause).__name__}: ')} ({lines[0].partition(' in ')[2].rstrip('.')})"
    first_error = _COMPILER_ERROR.search(text)
    return f"{lines[0]}: {first_error[1]}" if first_error else lines[0]
