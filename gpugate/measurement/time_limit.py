"""Time limits for the calls of a side (`perf_step_timeout`): a call that does not end becomes an error of its case.

A thread wakes when the earliest limit may be over, once in `perf_step_timeout`; setting a limit takes a few
microseconds. At the limit the thread sends the main thread a real-time signal, whose handler raises; SIGALRM stays free
for pytest-timeout and for users. Where the main thread does not return from C code, no handler runs, and the thread
ends the process.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import dropwhile, islice, takewhile
from time import monotonic
from traceback import StackSummary, walk_stack
from types import FrameType

from gpugate.errors import SideError, describe_line, is_of_gpugate

DEFAULT_S = 300.0
BUILD_SHARE = 6  # builds, first steps, inputs and proofs compile, load and train: they may take this many times as long
GRACE_S = 30.0  # for the call to end by the error, before the process is ended
SHOWN_FRAMES, SHOWN_THREADS = 3, 8
_SIGNAL = signal.SIGRTMAX - 1


class StepTimeout(BaseException):  # a user's `except Exception` must not catch it
    """A call of a side has not ended within its time limit."""


EndRun = Callable[[SideError], None]


@dataclass
class TimeLimit:
    """The time limit of the call that the main thread runs now."""

    side: str
    doing: str
    seconds: float
    due_s: float  # by monotonic(): the time of the error or, after that, of the end of the process
    is_over: bool = False


class Watch:
    """Watches the limits of one thread. `end_run` gets the error, and does not return."""

    def __init__(self, seconds: float, end_run: EndRun) -> None:
        self.seconds = seconds
        self.limit: TimeLimit | None = None
        self.thread = threading.get_ident()
        self._end_run = end_run
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="gpugate-time-limit", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        self._closed.set()
        self._watcher.join()

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        """The signal's handler, in the watched thread."""
        limit = self.limit
        if limit is not None and limit.is_over:
            raise StepTimeout(_sentence(limit, self.thread))

    def _watch(self) -> None:
        # CPython 3.11 never leaves a call that is traced, by coverage or a debugger, while a signal waits for the main
        # thread.
        sys.settrace(None)
        wait_s = self.seconds
        while not self._closed.wait(wait_s):
            limit, now = self.limit, monotonic()
            if limit is None or now < limit.due_s:
                # No limit is shorter than `seconds`, so a limit that is set meanwhile ends after this wait.
                wait_s = self.seconds if limit is None else min(self.seconds, limit.due_s - now)
                continue
            if limit.is_over:
                self._end_run(SideError(limit.side, limit.doing, StepTimeout(_sentence(limit, self.thread))))
            wait_s = min(self.seconds, GRACE_S)
            limit.due_s, limit.is_over = now + GRACE_S, True
            signal.pthread_kill(self.thread, _SIGNAL)


_watch: Watch | None = None


@contextmanager
def limit_time(seconds: float, end_run: EndRun) -> Iterator[None]:
    """Enables the time limits of `limit` inside, in the main thread; in another thread nothing changes."""
    global _watch
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, outer = signal.getsignal(_SIGNAL), _watch
    _watch = watch = Watch(seconds, end_run)
    signal.signal(_SIGNAL, watch.handle_signal)
    try:
        yield
    finally:
        _watch = outer
        watch.close()
        signal.signal(_SIGNAL, before)


@contextmanager
def limit(side: str, doing: str, share: float) -> Iterator[None]:
    """Limits the time of the code inside for this thread; the limit around it does not count that time."""
    watch = _watch
    if watch is None or watch.thread != threading.get_ident():
        yield
        return
    before, seconds, now = watch.limit, watch.seconds * share, monotonic()
    watch.limit = TimeLimit(side, doing, seconds, now + seconds)
    try:
        yield
    finally:
        if before is not None:
            before.due_s += monotonic() - now
        watch.limit = before


def _sentence(limit: TimeLimit, first: int) -> str:
    """Writes `no end within 300 s (perf_step_timeout); MainThread: loader.py:12 wait, step.py:7 step`."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = {
        ident: frame for ident, frame in sys._current_frames().items() if names.get(ident) != "gpugate-time-limit"
    }
    order = sorted(frames, key=lambda ident: ident != first)
    shown = [f"{names.get(ident, 'a thread')}: {_stack(frames[ident])}" for ident in order[:SHOWN_THREADS]]
    more = [f"{len(order) - SHOWN_THREADS} more threads"] if len(order) > SHOWN_THREADS else []
    return "; ".join([f"no end within {limit.seconds:g} s (perf_step_timeout)", *shown, *more])


def _stack(frame: FrameType) -> str:
    """Lists the innermost frames outside of this package as `file:line function`, the innermost first."""
    lines = StackSummary.extract(walk_stack(frame), lookup_lines=False)
    outside = takewhile(lambda line: not is_of_gpugate(line), dropwhile(is_of_gpugate, lines))
    return ", ".join(map(describe_line, islice(outside, SHOWN_FRAMES))) or "in gpugate"
