"""SIGTERM and SIGHUP as Ctrl-C: in the process that asked for it, as long as it asks, and not in its children."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from gpugate.machine.termination import delay_signals, treat_termination_as_ctrl_c

ENDING = [signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", ENDING)
def test_it_is_ctrl_c_until_the_end_and_then_what_it_was_before(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), treat_termination_as_ctrl_c():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.fixture
def nohup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("changed", [treat_termination_as_ctrl_c, delay_signals])
def test_what_nohup_ignores_stays_ignored(nohup: None, changed: Callable[[], AbstractContextManager[None]]) -> None:
    with changed():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGINT, *ENDING])
def test_a_signal_that_is_held_takes_effect_at_the_end(number: signal.Signals) -> None:
    done = []

    def write_both() -> None:
        with delay_signals():
            for name in ("first", "second"):
                os.kill(os.getpid(), number)
                done.append(name)
        done.append("third")

    with pytest.raises(KeyboardInterrupt), treat_termination_as_ctrl_c():
        write_both()
    assert done == ["first", "second"]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_ends_by_it() -> None:
    with treat_termination_as_ctrl_c(), delay_signals():
        child = os.fork()
        if not child:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os._exit(7)
        _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_another_thread_changes_nothing() -> None:
    seen = []

    def ask() -> None:
        with treat_termination_as_ctrl_c():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
