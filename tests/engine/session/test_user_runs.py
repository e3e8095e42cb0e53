"""The results of a run for its user: the table, the policy, the files, and pytest's own options working as anywhere."""

import errno
import logging
import os
import textwrap
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest import junitxml

from gpugate.commands.cli import main
from gpugate.results.verdict import Outcome
from gpugate.session import perf_session
from gpugate.store import run_file
from gpugate.store.version import git
from tests.support.tiny_project import PROMISE, QUICK, Ended, TinyProject, check_no_traceback
from tests.support.warm_python import WarmPython

NO_GPU = "needs a CUDA GPU, and torch sees none: run it on a machine with one"
PROMISES = (
    "test_outputs_match_the_baseline",
    "test_speedup_is_what_was_promised",
    "test_throughput_is_what_it_was",
    "test_the_optimization_engaged",
)
# A second optimization that is wrong, and a third that is right.
WRONG = f"""
{QUICK}

def wrong(context):
    return Side(lambda x: 3 * x)

def right(context):
    return sleeping(2)
"""
THREE = ", ".join(f'Optimization("{name}", {name}, {{"cpu": 0.01}})' for name in ("quick", "wrong", "right"))


def passed(text: str, verbose_outcome: str = "PASSED") -> list[str]:
    """Names of the tests with that outcome, from the output of -v."""
    lines = (line.split() for line in text.splitlines() if "::" in line)
    return [words[0].partition("::")[2] for words in lines if words[1:2] == [verbose_outcome]]


@dataclass(frozen=True)
class Whole:
    """A developer's run with every file that it may write."""

    project: TinyProject
    ended: Ended


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> Whole:
    project = TinyProject(tmp_path_factory.mktemp("whole"))
    files = ("--perf-json=run.json", "--junitxml=junit.xml", "--benchmark-json=benchmark.json")
    with pytest.MonkeyPatch.context() as patch:
        warm_python.start_children(patch)
        return Whole(project, project.run_apart("-v", *files))


def test_a_developers_run_shows_the_table_and_every_reason_and_passes(whole: Whole) -> None:
    result = whole.ended
    assert result.status == 0
    assert passed(result.text) == [f"{name}[tiny/quick/cpu]" for name in PROMISES]
    assert passed(result.text, "SKIPPED") == [f"{name}[tiny/quick/cuda]" for name in PROMISES]
    table = result.text.partition("= gpugate =")[2]
    assert "tiny/quick" in table
    assert f"not measured\n  1 case: {NO_GPU}\n      tiny/quick/cuda" in table
    assert "1 case measured (1 PASS), 1 case skipped" in table
    assert "\x1b" not in result.text
    assert "autopsy" not in result.text


def test_a_developers_run_passes_without_a_record_where_a_gate_fails(
    tiny: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = 'OMP_NUM_THREADS=1 pytest perf_tests -k "tiny/quick/cpu" --update-baselines="..."'
    lenient, strict = tiny.run(), tiny.run("--perf-device=cpu", "-v", "--gate")
    assert (lenient.status, strict.status) == (0, 1)
    assert passed(strict.text, "FAILED") == [f"{PROMISES[2]}[tiny/quick/cpu]"]
    assert f"next: {command}\n  1 case passes and is not recorded yet" in lenient.text
    assert f"next: {command}\n" in strict.text
    assert git(tiny.path, "init", "-q") is not None
    assert f"next: commit this code, then {command}" in tiny.run("-k", "outputs").text
    assert "NO_BASELINE throughput of tiny/quick/cpu: " in strict.text.partition("= FAILURES =")[2]
    for result in (lenient, strict):
        assert command in result.text
        check_no_traceback(result.text)
    assert not (tiny.path / "baselines").exists()


def test_a_missing_gpu_fails_a_gate_unless_it_is_allowed(tiny: TinyProject) -> None:
    """The screen alone says why; where another case is measured, pytest lists the failed tests as ever."""
    reason = f"{NO_GPU}; --allow-missing cuda lets a gate pass"
    assert tiny.run("-m", "gpu").status == 0
    strict = tiny.run("-m", "gpu", "--gate", "-v", "--allow-missing=gpus", "--junitxml=junit.xml")
    assert strict.status == 1
    assert len(passed(strict.text, "FAILED")) == len(PROMISES)
    assert strict.text.count(NO_GPU) == strict.text.count(reason) == 1
    assert "FAILURES" not in strict.text
    assert "short test summary" not in strict.text
    assert f'failures="{len(PROMISES)}"' in (tiny.path / "junit.xml").read_text(encoding="utf-8")
    mixed = tiny.run("-k", "outputs", "--gate")
    assert mixed.status == 1
    assert f"tiny/quick/cuda was not measured: {reason}" in mixed.text.partition("= FAILURES =")[2]
    for result in (strict, mixed):
        check_no_traceback(result.text)
    assert tiny.run("-k", "outputs", "--gate", "--allow-missing", "gpus, cuda").status == 0


def test_a_gate_by_workers_that_can_measure_nothing_has_one_reason_too(tiny: TinyProject) -> None:
    gate = tiny.run("-n", "1", "-m", "gpu", "--gate")
    assert (gate.status, gate.text.count(NO_GPU)) == (1, 1), gate.text
    assert "4 not measured" in gate.text
    assert "FAILURES" not in gate.text


def test_junit_carries_speedup_interval_and_verdict(whole: Whole) -> None:
    tiny = whole.project
    speedup = tiny.json()["cases"]["tiny/quick/cpu"]["summary"]["speedup"]
    carried = {}
    for case in ElementTree.parse(tiny.path / "junit.xml").iter("testcase"):  # noqa: S314  # pytest has just written it
        carried[case.attrib["name"]] = {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
    told = carried["test_speedup_is_what_was_promised[tiny/quick/cpu]"]
    assert (told["verdict"], told["reason_code"]) == ("PASS", "promise_kept")
    assert float(told["speedup"]) == pytest.approx(speedup["median"])
    assert float(told["speedup_low"]) == pytest.approx(speedup["low"])
    assert float(told["speedup_high"]) == pytest.approx(speedup["high"])
    assert carried["test_throughput_is_what_it_was[tiny/quick/cpu]"]["reason_code"] == "no_record"
    assert "optimized_ms" in carried["test_throughput_is_what_it_was[tiny/quick/cpu]"]
    assert carried["test_speedup_is_what_was_promised[tiny/quick/cuda]"] == {}


def test_pytest_benchmark_sees_the_samples(whole: Whole) -> None:
    tiny = whole.project
    seen = tiny.json("benchmark.json")
    (made,) = seen["benchmarks"]
    columns = tiny.json()["cases"]["tiny/quick/cpu"]["measurement"]["instances"]["optimized_ms"]
    samples_ms = [sample for instance in columns for sample in instance]
    assert [1e3 * sample_s for sample_s in made["stats"]["data"]] == pytest.approx(samples_ms, rel=1e-5)
    assert (made["name"], made["group"], made["extra_info"]["verdict"]) == ("tiny/quick/cpu", "tiny", "PASS")
    assert made["params"] == {"workload": "tiny", "optimization": "quick", "device": "cpu"}


@pytest.mark.parametrize("absent", ["benchmark cacheprovider xdist junitxml", "terminal"])
def test_other_plugins_may_be_absent(tiny: TinyProject, absent: str) -> None:
    words = (word for name in absent.split() for word in ("-p", f"no:{name}"))
    assert tiny.run("--perf-device=cpu", "--perf-json=run.json", *words).status == 0
    assert tiny.outcomes()["equivalence"] == Outcome.PASS


@pytest.mark.parametrize(
    ("selected", "interrupted"), [("outputs or throughput", True), ("(quick or wrong) and outputs", False)]
)
def test_x_interrupts_a_run_unless_its_last_test_failed(tiny: TinyProject, selected: str, interrupted: bool) -> None:
    tiny.workload(WRONG, THREE)
    stopped = tiny.run("-x", "-v", "-k", selected, "--perf-json=run.json")
    assert stopped.status == 1
    assert passed(stopped.text, "FAILED") == [f"{PROMISES[0]}[tiny/wrong/cpu]"]
    assert "tiny/right/cpu" not in tiny.json()["cases"]
    assert tiny.outcomes("tiny/wrong/cpu")["equivalence"] == Outcome.WRONG
    assert tiny.json()["interrupted"] == ("interrupted" in stopped.text) == interrupted


def test_everything_of_a_case_is_released_before_the_next(tiny: TinyProject) -> None:
    held = """
import weakref
MODELS = weakref.WeakSet()

def remembered():
    model = torch.nn.Linear(8, 8)
    alive = len(MODELS)
    MODELS.add(model)
    with Path("alive").open("a") as file:
        print(alive, file=file)
    return model

def quick(context):
    model = remembered()
    return Side(lambda x: 2 * x, model=model)

def right(context):
    model = remembered()
    return Side(lambda x: 2 * x, model=model)
"""
    optimizations = ", ".join(f'Optimization("{name}", {name}, {{"cpu": 0.01}})' for name in ("quick", "right"))
    tiny.workload(held, optimizations)
    assert tiny.run("-k", "outputs", "--perf-budget", "0.2").status == 0
    alive = (tiny.path / "alive").read_text(encoding="utf-8").split()
    assert len(alive) >= 2  # a build of each case, and more of them on a machine that has the time
    assert set(alive) == {"0"}


def test_what_torch_writes_down_of_compiling_is_not_shown_with_a_failure(
    tiny: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = logging.getLogger("torch.__trace")
    monkeypatch.setattr(trace, "propagate", False)  # as torch leaves it
    monkeypatch.setattr(trace, "handlers", [])
    traced = """
        def wrong(context):
            torch._logging.trace_structured("artifact", payload_fn=lambda: "a graph")
            return Side(lambda x: 3 * x)
    """
    tiny.workload(textwrap.dedent(traced), 'Optimization("wrong", wrong, {"cpu": 0.01})')
    result = tiny.run()
    assert result.status == pytest.ExitCode.TESTS_FAILED
    assert "WRONG equivalence of tiny/wrong/cpu" in result.text
    assert "torch.__trace" not in result.text


@pytest.mark.parametrize("name", ["junit.xml", "summary.md", "night.html", "run.json", "night/run.json"])
def test_a_file_of_a_gate_that_finds_no_room_makes_every_file_of_its_run_red(
    tiny: TinyProject, recorded_project: TinyProject, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    replace_file = Path.replace

    def fill_at_the_end(path: Path, target: Path) -> Path:
        measured = not name.endswith("run.json") or b'"interrupted": false' in path.read_bytes()
        if str(target).endswith(f"/{name}") and "cut off" not in path.read_text(encoding="utf-8") and measured:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace_file(path, target)

    def open_file(path: str, *words: str, **others: str) -> Any:
        if name == "junit.xml":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return Path(path).open(*words, **others)

    tiny.take_baseline(recorded_project)
    monkeypatch.setattr(Path, "replace", fill_at_the_end)
    monkeypatch.setattr(junitxml, "open", open_file, raising=False)
    result = tiny.run("--perf-device=cpu", "--gate", "--perf-report=night", "--perf-json=run.json")
    assert result.status != 0
    (said,) = [line for line in result.text.splitlines() if "cannot be written" in line]
    assert "ERROR: " in said
    assert "No space left on device" in said
    assert "Traceback" not in result.text
    assert "INTERNALERROR" not in result.text
    assert main(["verdict", str(tiny.path / "run.json")]) != 0
    assert main(["verdict", str(tiny.path / "night")]) != 0
    headline, _, summary = (tiny.path / "night/summary.md").read_text(encoding="utf-8").partition("\n")
    if name == "summary.md":
        assert headline.startswith("**No result**")
    else:
        assert headline.endswith(f", 1 problem, exit status {result.status}")
        assert "No space left on device" in summary
    page = tiny.path / "night/night.html"
    assert not page.exists() or "gate red" in page.read_text(encoding="utf-8")
    assert page.exists() == (name.endswith("run.json") or name == "junit.xml")
    for path in ("run.json", "night/run.json"):
        if not path.endswith(name):
            run = run_file.read(tiny.path / path)
            assert (run.problems, run.exit_status) == ([said.removeprefix("ERROR: ")], result.status)
            assert not run.interrupted


def test_what_is_the_users_own_is_not_held_against_what_ships(tiny: TinyProject) -> None:
    assert tiny.run("--perf-device=cpu", "--update-baselines", "-operf_processes=1").status == pytest.ExitCode.OK
    own = tiny.path / "own.mp4"
    own.write_bytes(b"whatever the workload makes of it")
    judged = tiny.run("--perf-device=cpu", "--perf-set=video=own.mp4")
    assert "1 case passes and is not recorded yet" in judged.text
    assert "--perf-set=video=own.mp4" in judged.text  # what to do next is with it


def test_the_error_of_a_side_is_text_on_the_terminal_and_in_the_summary(tiny: TinyProject) -> None:
    words = "\\x1b[31m\\x1b]52;c;aGk=\\x07\\u202e ![x](http://evil/x.png) <img> @you #12"
    step = f'\n\ndef hostile(context):\n    raise ValueError("{words}")\n'
    tiny.workload(QUICK + step, f'{PROMISE}, Optimization("hostile", hostile, {{"cpu": 0.01}})')
    ended = tiny.run("--perf-device=cpu", "--perf-report=night")
    assert ended.status == 1
    shown = words.partition(" ")[0]
    assert f"ValueError: {shown} ![x](http://evil/x.png)" in ended.text
    summary = (tiny.path / "night/summary.md").read_text(encoding="utf-8")
    assert "ValueError: \\x1b[31m" in summary
    assert all(one.isprintable() or one in "\n\t" for one in ended.text + summary)


@pytest.mark.parametrize(("words", "sharing"), [((), 1), (("--gate",), 3)])
def test_without_a_budget_a_gate_shares_the_time_as_the_processes_of_a_recording_do(
    tiny: TinyProject, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sharing: int
) -> None:
    asked: list[int] = []

    def share_time(cases: int) -> float:
        asked.append(cases)
        return 0.2

    monkeypatch.setattr(perf_session, "share_time", share_time)
    tiny.run("--perf-device=cpu", "-k", "outputs", "--perf-budget=", "-operf_processes=3", *words)
    assert asked == [sharing]
