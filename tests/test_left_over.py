"""Children that are left over when a run ends."""

import multiprocessing
import os
import signal
import time

import pytest

from gpugate import left_over
from gpugate.left_over import none_left_over

FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def sleeping(daemon: bool) -> multiprocessing.process.BaseProcess:
    child = FORK.Process(target=time.sleep, args=(60,), daemon=daemon)
    child.start()
    return child


def test_one_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_over, "ENDING_S", 0.2)
    stopped, well = sleeping(daemon=True), sleeping(daemon=True)
    assert stopped.pid is not None
    os.kill(stopped.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.pid, os.WSTOPPED | os.WNOWAIT)  # a signal takes effect when it likes
    with pytest.raises(KeyError, match="what the run raised"), none_left_over():
        raise KeyError("what the run raised")
    assert (stopped.exitcode, well.exitcode) == (-signal.SIGKILL, -signal.SIGTERM)


def test_one_that_may_outlive_it_goes_on() -> None:
    with none_left_over():
        child = sleeping(daemon=False)
    try:
        assert child.is_alive()
    finally:
        child.kill()
        child.join()
