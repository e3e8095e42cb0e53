"""A call of a side without an end is an error of its case, with the stacks of all threads; in C code it ends the run.

Limits are a second or more, and the calls that they end would take an hour: no busy machine decides a test.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpugate.errors import SideError
from gpugate.measurement import time_limit
from gpugate.measurement.sides import blame
from gpugate.measurement.time_limit import StepTimeout, limit_time
from gpugate.store import run_file
from tests.support.tiny_project import PROMISE, TinyProject, check_no_traceback

LIMIT_S, LONG_S = 0.2, 60.0
RIGHT = "def right(context):\n    return sleeping(1)\n\n"


def never(error: SideError) -> None:
    raise AssertionError(error)


@contextmanager
def limited() -> Iterator[None]:
    with limit_time(LIMIT_S, never):
        yield


def test_a_call_without_an_end_is_the_sides_error_with_the_stacks_of_all_threads() -> None:
    goes_on, line = threading.Event(), "test_time_limit.py:"
    helper = threading.Thread(target=goes_on.wait, name="helper")
    helper.start()
    with limited(), pytest.raises(SideError) as e, blame("fast", "running timed steps"):
        time.sleep(LONG_S)
    goes_on.set()
    helper.join()
    assert isinstance(e.value.cause, StepTimeout)
    limit, *stacks = str(e.value).split("; ")
    assert limit == "fast failed while running timed steps: StepTimeout: no end within 0.2 s (perf_step_timeout)"
    here = threading.current_thread().name
    assert any(stack.startswith(f"{here}: ") and line in stack for stack in stacks)
    assert any(stack.startswith("helper: threading.py:") for stack in stacks)


def test_each_call_has_its_own_time_and_the_limit_around_it_counts_no_time_of_it() -> None:
    def build(rest_s: float) -> None:
        with blame("slow", "being built"):
            with blame("fast", "being compared with itself", share=1e9):
                time.sleep(3 * LIMIT_S)
            time.sleep(rest_s)

    with limited():
        build(0.0)
        time.sleep(2 * LIMIT_S)  # nothing is limited here, nor in another thread
        thread = threading.Thread(target=build, args=(2 * LIMIT_S,))
        thread.start()
        thread.join()
        with pytest.raises(SideError) as caught:
            build(LONG_S)
    assert caught.value.side == "slow"


def test_handlers_and_timers_of_others_stay() -> None:
    alarm, before = [], signal.getsignal(time_limit._SIGNAL)
    old = signal.signal(signal.SIGALRM, lambda number, frame: alarm.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 2 * LIMIT_S)
        with limited(), pytest.raises(SideError), blame("fast", "running timed steps"):
            time.sleep(LONG_S)
        while not alarm:
            signal.pause()
    finally:
        signal.signal(signal.SIGALRM, old)
    assert signal.getsignal(time_limit._SIGNAL) == before


def test_c_code_without_an_end_ends_the_run_and_what_was_measured_is_kept(tiny: TinyProject) -> None:
    # A mutex that is locked twice: the wait for it starts again after a signal, so that no Python handler runs.
    hangs = """
import ctypes

def quick(context):
    mutex = ctypes.create_string_buffer(64)
    lock = ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    return Side(lambda x: lock(mutex))
"""
    tiny.write("conftest.py", tiny.path.joinpath("conftest.py").read_text() + SHORT_GRACE)
    tiny.workload(RIGHT + hangs, f'Optimization("right", right, {{"cpu": 0.01}}), {PROMISE}')
    result = tiny.run_apart("--perf-device=cpu", "--perf-json=run.json", "-k", "outputs", "-operf_step_timeout=1")
    assert result.status == pytest.ExitCode.INTERRUPTED
    run = run_file.read(tiny.path / "run.json")
    assert run.interrupted
    assert run.cases["tiny/right/cpu"].measurement is not None
    error = run.cases["tiny/quick/cpu"].error
    assert error is not None
    assert "quick failed while running its first step: StepTimeout: no end within 2 s" in error
    assert f"ERROR: tiny/quick/cpu: {error}; it hangs in code that is not Python, so the run ends here" in result.text
    check_no_traceback(result.text)


SHORT_GRACE = """
from gpugate.measurement import sides, time_limit

sides.BUILD_SHARE, time_limit.GRACE_S = 2, 0.5
"""
