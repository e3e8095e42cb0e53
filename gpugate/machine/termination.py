"""SIGTERM and SIGHUP end a run as Ctrl-C does: a night that a scheduler ends keeps its results."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

ENDS_A_RUN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def treat_termination_as_ctrl_c() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread; forked children do not."""
    with _replace_handlers(signal.default_int_handler, (signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def delay_signals() -> Iterator[None]:
    """Delays Ctrl-C, SIGTERM and SIGHUP until the block ends, so that files which belong together are all written."""
    came: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        came.append(number)

    try:
        with _replace_handlers(keep, ENDS_A_RUN):
            yield
    finally:
        for number in came[:1]:
            signal.raise_signal(number)


@contextmanager
def _replace_handlers(
    handler: Callable[[int, FrameType | None], None], numbers: Sequence[signal.Signals]
) -> Iterator[None]:
    """Replaces handlers in the main thread; in another thread nothing changes. An ignored signal, as by `nohup`, stays
    ignored, and a forked child ends by the signal."""
    own = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True  # pytest then names the line that was interrupted
        if os.getpid() == own:
            handler(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    is_main = threading.current_thread() is threading.main_thread()
    heeded = [number for number in numbers if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    # None: whoever embeds Python handles it, which cannot be put back.
    before = {number: signal.signal(number, handle) or signal.SIG_DFL for number in heeded}
    try:
        yield
    finally:
        for number, replaced in before.items():
            signal.signal(number, replaced)
