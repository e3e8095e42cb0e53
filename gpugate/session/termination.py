"""SIGTERM and SIGHUP end a run as Ctrl-C does: a night that a scheduler ends keeps its results."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDS_A_RUN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_before: list[dict[signal.Signals, Any]] = []  # handlers that were replaced, the latest last


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
def _replace_handlers(handler: Any, numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Replaces handlers in the main thread; in another thread nothing changes. An ignored signal, as by `nohup`, stays
    ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    # None: whoever embeds Python handles it, which cannot be put back.
    _before.append({number: signal.signal(number, handler) or signal.SIG_DFL for number in heeded})
    try:
        yield
    finally:
        if _before:  # not in a forked child
            _put_back(_before.pop())


def _put_back(handlers: dict[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def _in_child() -> None:
    for handlers in reversed(_before):
        _put_back(handlers)
    _before.clear()


os.register_at_fork(after_in_child=_in_child)
