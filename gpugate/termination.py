"""SIGTERM ends a run as Ctrl-C does, so that a night which a scheduler ends keeps and tells what it has measured."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_before: list[Any] = []  # handlers that were replaced, the latest last: forked children get them back


@contextmanager
def termination_as_ctrl_c() -> Iterator[None]:
    """In the main thread; elsewhere nothing changes. Forked children end by it as they would have before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # None: whoever embeds Python handles it, which cannot be put back.
    _before.append(signal.signal(signal.SIGTERM, signal.default_int_handler) or signal.SIG_DFL)
    try:
        yield
    finally:
        if _before:  # not in a forked child
            signal.signal(signal.SIGTERM, _before.pop())


def _in_child() -> None:
    if _before:
        signal.signal(signal.SIGTERM, _before[0])
        _before.clear()


os.register_at_fork(after_in_child=_in_child)
