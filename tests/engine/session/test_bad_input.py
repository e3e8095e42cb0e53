"""Bad input ends in one sentence that names the file or the case, no traceback of ours, and nothing overwritten."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from gpugate.store import run_file
from tests.support.patience import HANGS_S, wait_until
from tests.support.tiny_project import PROMISE, TinyProject, await_end, check_no_traceback, running

# --- baseline files ---------------------------------------------------------------------------------------------------


def refusal(text: str) -> str:
    """The one sentence."""
    (sentence,) = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    check_no_traceback(text)
    return sentence


def test_a_damaged_baseline_is_named_and_kept(tiny: TinyProject, recorded_project: TinyProject) -> None:
    tiny.take_baseline(recorded_project)
    whole = tiny.baseline.read_text(encoding="utf-8")
    tiny.baseline.write_text(whole[: len(whole) // 2], encoding="utf-8")
    before = tiny.files()
    for options in ((), ("--update-baselines", "-operf_processes=1")):
        result = tiny.run("--perf-json=run.json", *options)
        assert result.status == pytest.ExitCode.USAGE_ERROR
        assert f"{tiny.baseline} cannot be used because it is cut off or not JSON (" in refusal(result.text)
        assert tiny.files() == before


# --- declarations -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_measured_as_declared_is_one_sentence(tiny: TinyProject) -> None:
    tiny.workload(optimizations='Optimization("quick", quick, {"cpu": 0})')
    result = tiny.run("--perf-json=run.json")
    assert result.status != 0
    assert "has 0 as optimizations[0].min_speedup.cpu, which should be greater than 0" in result.text
    assert "= gpugate =" not in result.text
    assert not (tiny.path / "run.json").exists()
    check_no_traceback(result.text)


# --- interruptions ----------------------------------------------------------------------------------------------------

RIGHT = "\ndef right(context):\n    return sleeping(1)\n"


def read_terminal(descriptor: int) -> str:
    """Reads all that is written to a pseudo-terminal, until nobody has it open for writing any more."""
    parts: list[bytes] = []
    with suppress(OSError):
        while part := os.read(descriptor, 65536):
            parts.append(part)
    os.close(descriptor)
    return b"".join(parts).decode(errors="replace")


def test_a_signal_on_a_terminal_while_a_step_blocks_ends_at_once(
    tiny: TinyProject, recorded_project: TinyProject
) -> None:
    step = 'def step(x):\n        Path("blocking").touch()\n        time.sleep(3600)'  # the signal ends it here
    blocking = f"def quick(context):\n    {step}\n    return Side(step)"
    before = tiny.take_baseline(recorded_project)
    tiny.workload(RIGHT + blocking, f'Optimization("right", right, {{"cpu": 0.01}}), {PROMISE}')
    reading, terminal = os.openpty()
    command = ("--perf-device=cpu", "-k", "outputs", "--perf-json=run.json")
    with ThreadPoolExecutor(1) as reader, tiny.start_on(terminal, *command) as process:
        os.close(terminal)
        shown = reader.submit(read_terminal, reading)
        wait_until((tiny.path / "blocking").exists)
        killed = run_file.read(tiny.path / "run.json")  # as a process that is killed now leaves it
        assert (killed.interrupted, list(killed.cases)) == (True, ["tiny/right/cpu"])
        assert all((killed.cases["tiny/right/cpu"].measurement, killed.source_hashes, killed.yardsticks))
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS_S) == pytest.ExitCode.INTERRUPTED
    ended = run_file.read(tiny.path / "run.json")
    assert (ended.interrupted, ended.cases["tiny/quick/cpu"].measurement) == (True, None)
    assert tiny.baseline.read_bytes() == before
    text = shown.result()
    assert "interrupted; not finished: tiny/quick/cpu" in text
    assert re.search(r"tiny/right/cpu.* \d+ pairs", text), "no live line"
    check_no_traceback(text)


def test_ctrl_c_while_fresh_processes_record_leaves_no_orphan_and_a_second_session_with_its_files_is_refused(
    tiny: TinyProject, recorded_project: TinyProject
) -> None:
    # The fresh process blocks.
    blocking = """
def quick(context):
    if Path("recorder").exists() and int(Path("recorder").read_text()) != os.getpid():
        Path("blocking").write_text(str(os.getpid()))
        return Side(lambda x: time.sleep(3600))
    Path("recorder").write_text(str(os.getpid()))
    return sleeping(1)
"""
    before = tiny.take_baseline(recorded_project)
    tiny.workload("import os\n" + blocking)
    with tiny.begin("--perf-device=cpu", "--update-baselines", "-operf_processes=3", "--perf-json=run.json") as child:
        wait_until(lambda: (tiny.path / "blocking").exists() and (tiny.path / "blocking").read_text())
        pid, fresh = child.process.pid, int((tiny.path / "blocking").read_text())
        for option, locked in (("--update-baselines", tiny.baselines), ("--perf-json=run.json", "run.json")):
            second = tiny.run("--perf-device=cpu", option)
            assert second.status == pytest.ExitCode.USAGE_ERROR
            assert f"{locked} is in use by another process (pid {pid}): wait for its end" in refusal(second.text)
        os.kill(pid, signal.SIGINT)
        result = await_end(child)
    assert result.status == pytest.ExitCode.INTERRUPTED
    assert "ERROR: the session ended early, before the end of its recording: record again" in result.text
    assert run_file.read(tiny.path / "run.json").interrupted
    assert tiny.baseline.read_bytes() == before
    check_no_traceback(result.text)
    wait_until(lambda: not running(fresh))


# --- pytest-xdist -----------------------------------------------------------------------------------------------------


def test_a_name_that_workers_refuse_is_one_sentence_and_an_earlier_run_answers_for_none(tiny: TinyProject) -> None:
    tiny.write("run.json", '{"format": "gpugate-run"}')
    result = tiny.run("-n", "1", "--perf-json=run.json", "--gate", "--perf-set=vidoe=mine.mp4")
    assert result.status == pytest.ExitCode.USAGE_ERROR
    assert "--perf-set vidoe=mine.mp4 is for none of" in refusal(result.text)
    check_no_traceback(result.text)
    assert list(tiny.path.glob("*run.json*")) == []
