"""Two sessions never write one run: the second is refused before it changes anything."""

import pytest

from tests.support.patience import wait_until
from tests.support.tiny_project import QUICK, TinyProject, check_no_traceback, ended

WAITING = """
def quick(context):
    Path("began").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    return sleeping(1)
"""


@pytest.mark.parametrize("option", ["--perf-report=night", "--perf-json=run.json"])
def test_a_second_session_with_the_same_results_is_refused(tiny: TinyProject, option: str) -> None:
    tiny.workload(WAITING)
    command = ("--perf-device=cpu", "-k", "outputs", option)
    first = tiny.start(*command)
    wait_until((tiny.path / "began").exists)
    tiny.workload(QUICK)
    before = tiny.files()
    for resume in ((), ("--perf-resume",)):
        second = tiny.run(*command, *resume)
        assert second.status == pytest.ExitCode.USAGE_ERROR
        assert f"run.json is in use by another process (pid {first.pid}): wait for its end" in second.text
        check_no_traceback(second.text)
    tiny.write("other/test_plain.py", "def test_plain():\n    pass\n")
    assert tiny.run("other", option).status == 0, "plain tests write no results"
    (tiny.path / "other/test_plain.py").unlink()
    assert tiny.files() == before
    (tiny.path / "go").touch()
    assert ended(first).status == 0
    assert tiny.run(*command).status == 0
    assert list(tiny.path.rglob("run.json.*")) == []
