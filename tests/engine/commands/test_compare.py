"""`gpugate compare` on a project of steps that pretend to sleep: its table, its exit status, and what it leaves.

One comparison has processes of its own; this process is the worker of all others. What an interruption ends is tested
elsewhere: store/test_version removes the folders, machine/test_children ends the processes, test_cli has the status.
"""

import importlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from gpugate.commands.cli import INTERRUPTED, main
from gpugate.commands.compare import NOT_SLOWER, SLOWER, UNDECIDED, UNUSABLE, Comparison, exit_status, render
from gpugate.errors import CompareError
from gpugate.judging.duet import judge_duet, judge_duets
from gpugate.machine.children import Ended as EndedChild
from gpugate.measurement.record import SideCost
from gpugate.report.terminal import render_text
from gpugate.results.duet import DuetOutcome, DuetProcess
from gpugate.session import duets
from gpugate.session.duet_worker import DuetTaker
from gpugate.session.duets import DuetPlan
from gpugate.store.codec import from_json, to_json
from gpugate.store.version import Version, git
from tests.engine.judging.test_duet import CASE, measured, process
from tests.engine.store.test_version import commit
from tests.support.tiny_project import CONFTEST, Ended, TinyProject, check_no_traceback, clear_catalogue, environment

QUICK = "\ndef quick(context):\n    return sleeping({milliseconds})\n"
RIGHT = "\ndef right(context):\n    return sleeping(2)\n"
BOTH = 'Optimization("quick", quick, {"cpu": 0.01}), Optimization("right", right, {"cpu": 0.01})'
SHORT = ("--device", "cpu", "--budget", "0.2")
SHORT_GRACE = """
    from gpugate.measurement import time_limit

    time_limit.GRACE_S = 0.5
"""


class Versions:
    """A repository whose commits differ in a step of `quick`."""

    def __init__(self, tiny: TinyProject) -> None:
        self.tiny = tiny
        git(tiny.path, "init", "-q", "-b", "main")
        self.tiny.write(".gitignore", ".gpugate-cache/\n__pycache__/\n")

    def commit(self, milliseconds: float, optimizations: str = BOTH, build: str = QUICK) -> None:
        self.write(milliseconds, optimizations, build)
        commit(self.tiny.path, f"{milliseconds} ms")

    def write(self, milliseconds: float, optimizations: str = BOTH, build: str = QUICK) -> None:
        self.tiny.workload(build.format(milliseconds=milliseconds) + RIGHT, optimizations)

    def worktrees(self) -> list[str]:
        cache = self.tiny.path / ".gpugate-cache" / "versions"
        return [path.name for path in cache.iterdir()] if cache.exists() else []


class Here(Versions):
    """Comparisons whose worker is pytest in this process, which saves importing torch."""

    def __init__(
        self,
        tiny: TinyProject,
        pytester: pytest.Pytester,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        super().__init__(tiny)
        self._pytester, self._monkeypatch, self._capsys = pytester, monkeypatch, capsys
        self._said = ""
        monkeypatch.setattr(duets, "run_module", self._run_pytest)
        for name, value in environment(tiny.path).items():  # of the processes of single versions
            monkeypatch.setenv(name, value)

    def compare(self, *words: str) -> tuple[Ended, str]:
        """Its status with what it printed, and its messages."""
        self._monkeypatch.chdir(self.tiny.path)
        status = main(["compare", *SHORT, *words])
        out, err = self._capsys.readouterr()
        check_no_traceback(out + self._said + err)
        return Ended(status, out), self._said + err

    def _run_pytest(
        self,
        module: str,
        words: Sequence[str],
        task: object,
        timeout_s: float | None,
        receive: Callable[[object], object],
        folder: Path,
    ) -> EndedChild:
        self._said += self._capsys.readouterr().err
        messages: list[object] = []
        taker = DuetTaker(from_json(DuetPlan, json.loads(json.dumps(task))), messages.append)
        clear_catalogue()
        with self._monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(importlib, "import_module", importlib.import_module)  # which the worker replaces
            ended = self._pytester.runpytest_inprocess(*words, plugins=[taker], no_reraise_ctrlc=True)
        self._capsys.readouterr()  # pytester repeats pytest's output
        for message in messages:
            receive(message)
        output = f"{ended.stdout.str()}\n{ended.stderr.str()}"
        return EndedChild(int(ended.ret), output, messages=tuple(messages))


@pytest.fixture
def here(tiny: TinyProject, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capsys) -> Here:
    return Here(tiny, pytester, monkeypatch, capsys)


@pytest.mark.usefixtures("warm_children")
def test_a_slower_side_is_named_and_one_that_fails_dies_or_hangs_costs_its_case_alone(
    tiny: TinyProject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In processes of their own."""
    versions = Versions(tiny)
    tiny.write("pytest.ini", "[pytest]\nperf_step_timeout = 1\n")
    tiny.write("conftest.py", CONFTEST + SHORT_GRACE)
    names = ("dies", "quick", "hangs", "right", "mended", "{new}")
    promises = ", ".join(f'Optimization("{name}", {name}, {{{{"cpu": 0.01}}}})' for name in names)
    build = f"""{QUICK}
def mended(context):
    {{step}}

def {{new}}(context):
    return sleeping(1)

def dies(context):
    import os
    os._exit(7)

def hangs(context):
    import ctypes
    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    return Side(lambda x: lock(mutex))
"""
    for milliseconds, new, step in ((1, "gone", "raise ValueError('no engine')"), (1.05, "new", "return sleeping(1)")):
        text = build.replace("{new}", new).replace("{step}", step)
        versions.commit(milliseconds, promises.format(new=new), text)
    monkeypatch.chdir(tiny.path)
    assert main(["compare", *SHORT, "HEAD~1", "HEAD", "--json", "made.json", "--markdown", "made.md"]) == UNUSABLE
    out, said = capsys.readouterr()
    check_no_traceback(out + said)
    document = tiny.json("made.json")
    assert len({document[name]["commit"] for name in ("base", "head")}) == 2
    outcomes = {duet["case_id"]: duet["outcome"] for duet in document["duets"]}
    assert outcomes == {"tiny/quick/cpu": "SLOWER", "tiny/right/cpu": "SAME"}, out + said
    ratio = document["duets"][0]["ratio"]
    assert ratio["low"] < 1.05 < ratio["high"] * 1.005
    assert (document["added"], document["removed"]) == (["tiny/new/cpu"], ["tiny/gone/cpu"])
    assert "2 cases: 1 SLOWER, 1 SAME" in out
    (block,) = MarkdownIt().parse((tiny.path / "made.md").read_text(encoding="utf-8"))
    assert block.type == "fence"
    assert "2 cases: 1 SLOWER, 1 SAME" in block.content
    problems = document["problems"]
    assert sorted(problems) == ["tiny/dies/cpu", "tiny/hangs/cpu", "tiny/mended/cpu"]
    assert problems["tiny/mended/cpu"].startswith("mended of the base failed while being built: ValueError: no engine")
    assert "tiny/dies/cpu: not measured: its process ended with status 7" in out
    # In C code. The second process, in which the head is the reference and builds first.
    hangs = "hangs of the head failed while running its first step: StepTimeout: no end within 6 s"
    assert problems["tiny/hangs/cpu"].startswith(hangs)
    assert "process 2 of at most 13: 4 cases\n" in said, "those that were not begun when one died"
    assert "process 3 of at most 14: 3 cases\n" in said, "those that were not begun when one hung, and the open one"
    assert (versions.worktrees(), processes_in(tiny.path)) == ([], [])


def test_the_start_has_the_number_of_cases_and_an_interruption_keeps_the_rows(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.commit(1)
    here.tiny.write("notes/new.txt", "no code")
    _, said = here.compare("main", "--processes", "1")
    same = "no tracked file differs from main: unless a step reads a new file, its times differ by chance alone\n"
    assert said.startswith(same)
    assert "process 1 of at most 1: all cases\n2 cases\n" in said
    here.write(2)
    reported: list[int] = []
    whole = here._run_pytest

    def interrupt(*words: Any, **options: Any) -> EndedChild:
        def receive(message: object) -> None:
            reported.append(len(message["measured"]))  # type: ignore[index]
            words[-1](message)
            if reported == [0, 1, 2, 0, 1]:
                raise KeyboardInterrupt

        return whole(*words[:-1], receive, **options)

    monkeypatch.setattr(duets, "run_module", interrupt)
    ended, said = here.compare("main")
    assert (ended.status, here.worktrees()) == (INTERRUPTED, [])
    assert [line.split()[0] for line in ended.text.splitlines() if line.startswith("tiny/")] == [
        "tiny/quick/cpu",
        "tiny/right/cpu",
    ]
    assert said.count(same) == 1, "the second comparison has another step"
    assert said.endswith("gpugate compare: interrupted: the table has 2 of 2 cases, by the processes until then\n")


def test_the_test_of_a_sweep_compares_its_points(here: Here) -> None:
    here.tiny.write("perf_tests/test_sweeps.py", "def test_the_knee(sweep, gate):\n    gate(sweep.knee)\n")
    points = [f'Optimization("batch-{n}", quick, {{"cpu": 0.01}}, point=Point("batch", {n}))' for n in (1, 2)]
    for step_ms in (1, 2):
        here.commit(step_ms, ", ".join(points), f"\nfrom gpugate.workload import Point\n{QUICK}")
    ended, said = here.compare("HEAD~1", "-k", "knee", "--processes", "1")
    assert "2 cases: 2 UNDECIDED" in ended.text, ended.text + said


def test_a_case_that_needs_what_this_machine_lacks_fails_no_comparison(here: Here) -> None:
    cases = 'Optimization("quick", quick, {"cpu": 0.01, "cuda": 0.01})'
    here.commit(1, cases)
    here.write(2, cases)
    ended, said = here.compare("main", "--device", "auto")
    assert ended.status == SLOWER, ended.text
    assert "tiny/quick/cuda: not measured: needs a CUDA GPU" in ended.text
    assert "\n1 case\n" in said, "the number of cases at the start is that of the ones that can be measured"
    ended, said = here.compare("main", "--device", "auto", "-m", "gpu")
    assert ended.status == UNUSABLE, "nothing was measured"
    assert "tiny/quick/cuda: not measured: needs a CUDA GPU" in ended.text, said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("main", "--processes", "0"), "--processes is '0'"),
        (("main", "--device", "tpu"), "there is no device 'tpu'"),
        (("main", "-k", "nothing_of_this_name"), "no case is selected: give --path with perf tests, or another -k"),
        (("main", "main", "--path", "no_such_folder"), "file or directory not found: no_such_folder"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(here: Here, words: tuple[str, ...], sentence: str) -> None:
    here.commit(1)
    ended, said = here.compare(*words)
    assert ended == Ended(UNUSABLE, "")
    last = said.splitlines()[-1]
    assert last.startswith("gpugate compare: ")
    assert sentence in last
    assert here.worktrees() == []


def processes_in(path: Path) -> list[str]:
    """The commands of all other processes whose folder, removed by now or not, is in the path."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            folder, command = (entry / "cwd").readlink(), (entry / "cmdline").read_text(encoding="utf-8")
        except OSError:  # it has ended, or is another user's
            continue
        if str(folder).startswith(str(path)) and entry.name != str(os.getpid()):
            found.append(command)
    return found


@pytest.mark.parametrize("counter", ["kernels", "operators"])  # of a GPU, and of a CPU
def test_differing_counts_and_memory_are_listed(tmp_path: Path, counter: str) -> None:
    slower = measured(10, 10.4)  # one process decides nothing
    slower = replace(slower, reference_counters={counter: 3}, optimized_counters={counter: 4})
    found = replace(slower, reference_cost=SideCost(1, 0, 2**30), optimized_cost=SideCost(1, 0, 2**31))
    sides = {"reference_cost": found.optimized_cost, "optimized_cost": found.reference_cost}
    swapped = replace(measured(10.4, 10), **sides)
    taken = [process(found), process(swapped, swapped=True)]
    base = Version("a", tmp_path, note="compared with the common ancestor")
    compared = Comparison(base, Version("b", tmp_path), taken, *judge_duets(taken))
    line = f"{CASE}: {counter} 3 -> 4 per step, peak memory 1024 -> 2048 MiB"
    assert f"  {line}\n  compared with the common ancestor\n" in render_text(render(compared, 140), 140, False)
    undecided = replace(compared, duets=[replace(compared.duets[0], outcome=DuetOutcome.UNDECIDED)])
    for is_cut_off, step in ((True, "it was interrupted, so run it again"), (False, "give more --processes, or")):
        shown = render_text(render(replace(undecided, is_cut_off=is_cut_off), 140), 140, False)
        assert f"\n  UNDECIDED: {step}" in shown
    first = render(replace(compared, duets=judge_duets(taken[:1])[0]), 140)
    assert "peak memory" not in render_text(first, 140, False), "the first build of a process also loads libraries"


def test_the_status_is_that_of_the_most_severe_case() -> None:
    same, slower, faster = (judge_duet(CASE, [process(measured(10, ms))] * 3) for ms in (10, 10.5, 9))
    unsure = judge_duet(CASE, [process(measured(10, 10.5))])
    assert exit_status([same, faster], {}) == NOT_SLOWER
    assert exit_status([same, slower], {}) == SLOWER
    assert exit_status([slower, unsure], {}) == UNDECIDED
    assert exit_status([slower, unsure], {"net": "no"}) == UNUSABLE
    assert exit_status([], {}) == UNUSABLE


def test_steps_are_counted_once_and_again_where_a_process_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slower, faster = (process(measured(10, head_ms)) for head_ms in (10.5, 9.9))
    made, counted = [replace(slower, wanted=(CASE, "net/dies/cpu", "net/left/cpu")), faster, slower], []

    def run(plan: DuetPlan, *_: object) -> DuetProcess:
        counted.append(plan.count)
        return made[plan.number]

    monkeypatch.setattr(duets, "run_process", run)
    assert duets.measure_duets(DuetPlan("", 1.0), Version(".", tmp_path), (), 3) == made
    assert counted == [True, True, False]


@pytest.mark.parametrize(("head_ms", "limits_s"), [(10.2, [60.0, 35.0]), (10.5, [60.0, 35.0, 50.0])])
def test_no_process_begins_that_would_end_after_the_limit_unless_a_case_seems_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head_ms: float, limits_s: list[float]
) -> None:
    seconds, left = iter([0.0, 0.0, 25.0, 25.0, 50.0, 50.0, 75.0]), []

    def run(plan: DuetPlan, head: Version, words: Sequence[str], timeout_s: float | None, _: object) -> DuetProcess:
        left.append(timeout_s)
        return process(measured(10, head_ms))

    monkeypatch.setattr(duets, "run_process", run)
    monkeypatch.setattr(duets, "perf_counter", lambda: next(seconds))
    taken = duets.measure_duets(DuetPlan(""), Version(".", tmp_path), (), limit_s=60.0)
    assert (len(taken), left) == (len(limits_s), limits_s)


def test_a_later_process_that_cannot_measure_leaves_the_ones_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(plan: DuetPlan, *_: object) -> DuetProcess:
        if plan.number:
            raise CompareError("a process was killed by SIGKILL")
        return process(measured(10, 10.5))

    monkeypatch.setattr(duets, "run_process", run)
    assert len(duets.measure_duets(DuetPlan(""), Version(".", tmp_path), ())) == 1


def test_a_process_that_is_cut_off_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = EndedChild(None, "", timeout_s=42.0)
    monkeypatch.setattr(duets, "run_module", lambda *_, **__: ended)
    with pytest.raises(CompareError, match=r"^the duet was cut off: a process did not end within 42 s, all that was"):
        duets.measure_duets(DuetPlan(""), Version(".", tmp_path), (), limit_s=42.0)


def test_what_was_measured_before_a_process_is_cut_off_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process is cut off in its second case, the third one before any."""
    other = "net/other/cpu"
    one = replace(process(measured(10, 10.5)), wanted=(CASE, other))
    both = replace(one, measured={CASE: one.measured[CASE], other: one.measured[CASE]})
    made = [EndedChild(0, "", messages=(to_json(both),)), EndedChild(None, "", 30.0, messages=(to_json(one),))]
    ends, seconds = iter([*made, EndedChild(None, "", 30.0)]), iter([0.0, 0.0, 10.0, 10.0, 25.0, 25.0])
    monkeypatch.setattr(duets, "run_module", lambda *_, **__: next(ends))
    monkeypatch.setattr(duets, "perf_counter", lambda: next(seconds))
    taken = duets.measure_duets(DuetPlan(""), Version(".", tmp_path), (), limit_s=60.0)
    assert [[*found.measured] for found in taken] == [[CASE, other], [CASE]]
    assert [dict(found.problems) for found in taken] == [{}, {}]


def test_the_times_of_the_bill_stand_beside_the_wall_time(tmp_path: Path) -> None:
    """The threads of the base wait in a loop, so that its CPU time shows no work."""
    base, head = {"kernel_ms": 8.0, "cpu_ms": 4.0, "spinning": 1.0}, {"kernel_ms": 8.4, "cpu_ms": 6.0}
    slower = process(replace(measured(10, 10.6), reference_counters=base, optimized_counters=head))
    compared = Comparison(Version("a", tmp_path), Version("b", tmp_path), [slower], *judge_duets([slower]))
    heading, _, row = render_text(render(compared, 140), 140, False).splitlines()[2:5]
    assert re.split("  +", heading)[:5] == ["case", "time per step", "interval", "GPU work", "verdict"]
    assert re.split("  +", row)[1:4:2] == ["+6.0 %", "+5.0 %"]
