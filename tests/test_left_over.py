"""Children that are left over when a run ends."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from gpugate import left_over
from gpugate.left_over import none_left_over
from tests.patience import HANGS_S

ENDING_S = 0.2
FORK = multiprocessing.get_context("fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def sleeping(daemon: bool) -> multiprocessing.process.BaseProcess:
    child = FORK.Process(target=time.sleep, args=(3600,), daemon=daemon)
    child.start()
    return child


def ends_with(child: multiprocessing.process.BaseProcess) -> Callable[[], float]:
    """A clock on which the time to end is over when this child has ended, however long that takes it."""
    began = time.monotonic()

    def now() -> float:
        hangs = time.monotonic() > began + HANGS_S
        return (0.0 if child.is_alive() else ENDING_S) + 2 * ENDING_S * hangs

    return now


def test_one_that_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, well = sleeping(daemon=True), sleeping(daemon=True)
    monkeypatch.setattr(left_over, "ENDING_S", ENDING_S)
    monkeypatch.setattr(left_over, "time", SimpleNamespace(monotonic=ends_with(well)))
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
