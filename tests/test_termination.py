"""SIGTERM as Ctrl-C: in the process that asked for it, as long as it asks, and not in its children."""

import os
import signal
import threading

import pytest

from gpugate.termination import termination_as_ctrl_c


def test_it_is_ctrl_c_until_the_end_and_then_what_it_was_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), termination_as_ctrl_c():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_ends_by_it() -> None:
    with termination_as_ctrl_c():
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
        with termination_as_ctrl_c():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
