"""The doctor's children: real processes that answer, hang, die and are stopped, and the questions they are asked."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpugate.commands.doctor import child
from gpugate.commands.doctor.children import ANSWER, ChildError, Children, describe_end
from gpugate.errors import EnvironmentUnfitError, OptionError
from gpugate.session.run_child import Ended


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Children() as started:
        yield started


def saying(text: str) -> list[str]:
    return [sys.executable, "-c", f"print({text!r}); import sys; sys.exit(3)"]


def test_a_question_is_answered_wherever_gpugate_lies(children: Children) -> None:
    assert children.ask("package", "json", timeout_s=60) == json.__version__


def test_an_exception_is_its_type_and_its_words(children: Children) -> None:
    with pytest.raises(ChildError, match=r"^ModuleNotFoundError: No module named 'no_such_package'$"):
        children.ask("package", "no_such_package", timeout_s=60)


def test_a_device_that_is_not_there_is_refused(children: Children) -> None:
    with pytest.raises(OptionError, match="there is no device 'cuda:99'"):
        children.ask("machine", "cuda:99", timeout_s=60)


@pytest.mark.parametrize(
    ("conftest", "where"),
    [
        ("register_module('mine')", "conftest.py"),
        ("register_module('mine')", "perf_tests/conftest.py"),
        ("", "conftest.py"),
    ],
)
def test_the_workloads_are_those_that_pytest_would_know(
    children: Children, tmp_path: Path, conftest: str, where: str
) -> None:
    """No test is collected."""
    project = tmp_path / "project"
    (project / "perf_tests").mkdir(parents=True)
    (project / "perf_tests/test_it.py").write_text("import pathlib\npathlib.Path('imported').touch()\n")
    (project / where).write_text(f"from gpugate.catalogue import register_module\n{conftest}\n")
    (project / "mine.py").write_text(
        "from gpugate.workload import Optimization, Side, Size, Workload\n"
        "def build(context): return Side(lambda inputs: inputs)\n"
        "FAST = Optimization('fast', build, {'cpu': 1.0})\n"
        "WORKLOADS = (Workload('net', build, lambda context, index: index, {'cpu': Size(1, 1, 1)}, (FAST,)),)\n"
    )
    before = sorted(project.rglob("*"))
    assert children.ask("workloads", str(project), timeout_s=60) == (["net"] if conftest else [])
    assert sorted(project.rglob("*")) == before


@pytest.mark.parametrize(
    ("conftest", "error"),
    [
        (
            "from gpugate.catalogue import register_module\nregister_module('nowhere')",
            "CatalogueError: module 'nowhere'",
        ),
        ("raise SystemError", "RuntimeError: pytest ended with status 4 before it collected"),
    ],
)
def test_workloads_that_cannot_be_known_are_an_error(
    children: Children, tmp_path: Path, conftest: str, error: str
) -> None:
    (tmp_path / "conftest.py").write_text(conftest)
    with pytest.raises(ChildError, match=error):
        children.ask("workloads", str(tmp_path), timeout_s=60)


def test_what_else_is_printed_is_no_answer(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    chatter = f'noise\n{ANSWER}{{"value": 1}}\nmore noise'
    monkeypatch.setattr("gpugate.commands.doctor.children.python", lambda question: saying(chatter))
    assert children.ask("package", timeout_s=60) == 1
    monkeypatch.setattr("gpugate.commands.doctor.children.python", lambda question: saying("no idea"))
    with pytest.raises(ChildError, match=r"it ended with status 3 \(no idea\)"):
        children.ask("package", timeout_s=60)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Children() as children:
        ended = children.run([sys.executable, "-c", "open('here', 'w')"], 60)
        assert (ended.folder / "here").exists()
    assert list(tmp_path.iterdir()) == []


def test_without_room_for_what_is_temporary_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/no/such/folder")
    with pytest.raises(EnvironmentUnfitError, match=r"no folder .* \(No such file or directory\): set TMPDIR"):
        Children()


def test_a_child_has_a_folder_and_if_asked_a_home_of_its_own_and_sees_one_gpu(children: Children) -> None:
    command = [sys.executable, "-c", "import os; print(*(os.environ.get(n) for n in os.sys.argv[1:]))"]
    command += ["TMPDIR", "HOME", "CUDA_VISIBLE_DEVICES"]
    children.visible = "3"
    ended = children.run(command, 60, own_home=True)
    assert ended.output == f"{ended.folder} {ended.folder} 3\n"
    assert children.run(command, 60).output.split()[1] == os.environ["HOME"]


def test_a_program_that_is_not_there(children: Children) -> None:
    with pytest.raises(ChildError, match=r"/no/such/nsys cannot be started \(No such file or directory\)"):
        children.run(["/no/such/nsys"], 60)


def test_the_end_of_a_child_is_told_with_the_last_line_of_its_output() -> None:
    assert describe_end(Ended(1, "first\nlast\n\n")) == "it ended with status 1 (last)"
    assert describe_end(Ended(-11, "")) == "it was killed by SIGSEGV"


def test_a_long_error_of_many_lines_becomes_a_short_one_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("no library:\n  Error code : 2\n" + "TROUBLESHOOTING\n" * 99)

    monkeypatch.setitem(child.QUESTIONS, "package", fail)  # type: ignore[arg-type]
    error = child.answer("package", "av")["error"]
    assert error.startswith("RuntimeError: no library: Error code : 2 TROUBLESHOOTING")
    assert len(error) == child.LONGEST_ERROR


def test_a_cpu_is_gauged_by_two_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpugate.measurement import yardsticks

    monkeypatch.setattr(yardsticks, "CPU_MATMUL", 64)
    monkeypatch.setattr(yardsticks, "CPU_COPY_BYTES", 2**16)
    gauge = child.gauge("cpu")
    assert (gauge.clock_mhz, gauge.throttled_by, gauge.foreign) == ((), (), ())
    assert [sorted(values)[-1] for values in gauge.yardsticks] == ["memcpy_gb_per_s"] * 2
