"""Bad input ends in one sentence that names the file or the case, no traceback of ours, and nothing overwritten."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.store import run_file
from tests.support.patience import HANGS_S, wait_until
from tests.support.tiny_project import (
    PROMISE,
    QUICK,
    TinyProject,
    await_end,
    check_no_traceback,
    running,
)

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
    assert "tiny/quick has min_speedup 0 on cpu: give a number above 0" in result.text
    assert "= gpugate =" not in result.text
    assert not (tiny.path / "run.json").exists()
    check_no_traceback(result.text)


# --- interruptions ----------------------------------------------------------------------------------------------------

RIGHT = "\ndef right(context):\n    return sleeping(1)\n"
BOTH = f'{PROMISE}, Optimization("right", right, {{"cpu": 0.01}})'


def test_ctrl_c_in_a_step_leaves_valid_json_and_the_baselines(tiny: TinyProject, recorded_project: TinyProject) -> None:
    interrupting = "def right(context):\n    def step(x):\n        raise KeyboardInterrupt\n    return Side(step)"
    tiny.take_baseline(recorded_project)
    tiny.workload(f"{QUICK}\n{interrupting}", BOTH)
    before = tiny.files()
    for options in ((), ("--update-baselines", "-operf_processes=1")):
        result = tiny.run("--perf-device=cpu", "--perf-json=run.json", "-k", "outputs", *options)
        assert result.status == pytest.ExitCode.INTERRUPTED
        run = run_file.read(tiny.path / "run.json")
        assert run.interrupted
        assert run.cases["tiny/quick/cpu"].measurement is not None
        assert run.cases["tiny/right/cpu"].measurement is None
        assert "interrupted; not finished: tiny/right/cpu" in result.text
        check_no_traceback(result.text)
        (tiny.path / "run.json").unlink()
        assert tiny.files() == before
    assert "ERROR: no baseline was written because the session ended early: record again" in result.text


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
    blocking = 'def quick(context):\n    Path("blocking").touch()\n    return Side(lambda x: time.sleep(3600))'
    before = tiny.take_baseline(recorded_project)
    tiny.workload(RIGHT + blocking, f'Optimization("right", right, {{"cpu": 0.01}}), {PROMISE}')
    reading, terminal = os.openpty()
    command = ("--perf-device=cpu", "-k", "outputs", "--perf-json=run.json")
    with ThreadPoolExecutor(1) as reader, tiny.start_on(terminal, *command) as process:
        os.close(terminal)
        shown = reader.submit(read_terminal, reading)
        wait_until((tiny.path / "blocking").exists)
        assert run_file.read(tiny.path / "run.json").cases["tiny/right/cpu"].measurement is not None
        assert run_file.read(tiny.path / "run.json").interrupted, "a process that is killed now leaves this file"
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS_S) == pytest.ExitCode.INTERRUPTED
    assert run_file.read(tiny.path / "run.json").interrupted
    assert tiny.baseline.read_bytes() == before
    text = shown.result()
    assert "interrupted; not finished: tiny/quick/cpu" in text
    assert re.search(r"tiny/right/cpu.* \d+ pairs", text), "no live line"
    check_no_traceback(text)


def test_a_killed_session_leaves_its_cases_to_every_command(
    tiny: TinyProject, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write("nights/1/run.json", "an older night\n")
    killed = "import os\ndef quick(context):\n    return Side(lambda x: os.kill(os.getpid(), 9))"
    tiny.workload(RIGHT + killed, f'Optimization("right", right, {{"cpu": 0.01}}), {PROMISE}')
    assert tiny.run_apart("--perf-device=cpu", "--perf-report=nights/1").status == -signal.SIGKILL
    night = tiny.path / "nights/1"
    run = run_file.read(night / "run.json")
    assert run.interrupted
    assert list(run.cases) == ["tiny/right/cpu"]
    assert run.cases["tiny/right/cpu"].measurement is not None
    assert run.source_hashes
    assert run.yardsticks

    assert main(["diff", str(night), str(night)]) == 0
    assert "tiny/right/cpu" in capsys.readouterr().out
    assert main(["history", str(night.parent)]) == 0
    assert "right" in capsys.readouterr().out
    assert main(["replay", str(night.parent)]) == 0
    assert "1 run: 0 verdicts now other than stored" in capsys.readouterr().out
    assert main(["accept", str(night.parent)]) == 2
    assert "tiny/right/cpu was measured by 1 of the 5 processes" in capsys.readouterr().err

    tiny.workload()
    assert tiny.run("--perf-device=cpu", "--perf-report=nights/1").status == 0
    assert sorted(path.name for path in night.iterdir()) == ["junit.xml", "night.html", "run.json", "summary.md"]


def test_ctrl_c_while_fresh_processes_record_leaves_no_orphan_and_a_second_recorder_is_refused(
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
        second = tiny.run("--perf-device=cpu", "--update-baselines", "-operf_processes=1")
        assert second.status == pytest.ExitCode.USAGE_ERROR
        assert f"{tiny.baselines} is in use by another process (pid {pid}): wait for its end" in refusal(second.text)

        os.kill(pid, signal.SIGINT)
        result = await_end(child)
    assert result.status == pytest.ExitCode.INTERRUPTED
    assert "ERROR: no baseline was written because the session ended early: record again" in result.text
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


def test_ctrl_c_while_a_baseline_is_written_is_no_reason_to_record_again(
    tiny: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def interrupted(path: Path, target: Path) -> Path:
        if target.name == "tiny.json":
            os.kill(os.getpid(), signal.SIGINT)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    result = tiny.run("--perf-device=cpu", "--update-baselines", "-operf_processes=1", "--perf-json=run.json")
    assert result.status == pytest.ExitCode.INTERRUPTED
    assert tiny.baseline.exists()
    assert f"written to {tiny.baselines}" in result.text
    assert "no baseline was written" not in result.text
    assert not run_file.read(tiny.path / "run.json").interrupted


# --- two sessions -----------------------------------------------------------------------------------------------------

WAITING = """
def quick(context):
    Path("began").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    return sleeping(1)
"""


def test_a_second_session_with_the_same_results_is_refused(tiny: TinyProject) -> None:
    tiny.workload(WAITING)
    command = ("--perf-device=cpu", "-k", "outputs", "--perf-report=night")
    with tiny.begin(*command) as first:
        wait_until((tiny.path / "began").exists)
        tiny.workload(QUICK)
        before = tiny.files()
        second = tiny.run(*command)
        assert second.status == pytest.ExitCode.USAGE_ERROR
        assert f"run.json is in use by another process (pid {first.process.pid}): wait for its end" in second.text
        check_no_traceback(second.text)
        assert tiny.files() == before
        (tiny.path / "go").touch()
        assert await_end(first).status == 0
    assert tiny.run(*command).status == 0
    assert list(tiny.path.rglob("run.json.*")) == []
