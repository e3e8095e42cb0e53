"""A gate in a git repository: the recorded commit, measured in turns, separates slower code from a slower machine.

At the end, one child that measures: what becomes of one that ends early.
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpugate.errors import CompareError, FreshProcessError
from gpugate.faults.fault import Fault
from gpugate.machine.environment import describe
from gpugate.measurement import yardsticks
from gpugate.measurement.progress import silent
from gpugate.results.duet import DuetProcess
from gpugate.results.run import Provenance, RunResult
from gpugate.session import confirm, measure_case
from gpugate.session.confirm import choose_ref, run_fresh
from gpugate.session.duets import DuetPlan
from gpugate.session.perf_session import PerfSession
from gpugate.session.recording import warn_about_code
from gpugate.session.time_plan import CASE_DOUBT_S, DoubtTime
from gpugate.store.provenance import read_provenance
from gpugate.store.version import git
from tests.conftest import TWO_CORES
from tests.engine.session.test_baseline_story import spread_out
from tests.engine.session.test_session import CASE
from tests.engine.session.test_workers import OPTIONS
from tests.engine.store.test_version import commit as version_commit
from tests.support.tiny_project import CONFTEST, QUICK, TinyProject

GATE = ("--gate", "--perf-device=cpu", "--perf-json=run.json", "--perf-budget=0.3")
GONE = "1" * 40
NO_LOAD = "    work_clock.clock.computes = False\n"  # two versions differ by what they pretend to sleep alone
SLOWER = QUICK.replace("read_text())", "read_text()) * 1.1")


@pytest.fixture
def recorded_commit(tiny: TinyProject, recorded_project: TinyProject) -> TinyProject:
    """A project without a .gitignore, whose baseline is of its only commit."""
    tiny.take_baseline(recorded_project)
    tiny.write("conftest.py", CONFTEST + NO_LOAD)
    git(tiny.path, "init", "-q", "-b", "main")
    commit(tiny)
    return tiny


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "code.py").write_text("1\n")
    version_commit(folder, "first")
    return folder


def commit(project: TinyProject) -> None:
    version_commit(project.path, "recorded")
    now = read_provenance(project.path, [project.path / "baselines"])
    assert now.commit
    assert now.changes is None
    change_records(project, provenance=asdict(now))


def change_records(project: TinyProject, **fields: Any) -> None:
    def change(document: dict[str, Any]) -> None:
        for record in document["cases"]["quick/cpu"].values():
            record.update(fields)

    project.edit_baseline(change)


def code_of(project: TinyProject) -> Any:
    return project.json()["cases"]["tiny/quick/cpu"]["recorded_code"]


def test_slower_code_fails_although_the_record_is_blunt(recorded_commit: TinyProject) -> None:
    recorded_commit.edit_baseline(spread_out)
    passed = recorded_commit.run(*GATE)
    assert passed.status == 0, passed.text
    assert code_of(recorded_commit) is None, "its source is the recorded one"
    recorded_commit.workload(SLOWER)
    failed = recorded_commit.run(*GATE)
    assert failed.status == 1, failed.text
    change = recorded_commit.reasons("throughput")["code_slower"]["change"]
    assert change == pytest.approx(0.1, abs=0.03)
    assert len(code_of(recorded_commit)["processes"]) == 3
    assert "the code is slower: in turns with the recorded code" in failed.text
    recorded = str(read_provenance(recorded_commit.path).commit)[:12]
    assert (
        f"gpugate bisect tiny/quick/cpu --good {recorded}" in failed.text.partition("next: commit this code, then ")[2]
    )
    cache = recorded_commit.path / ".gpugate-cache" / "versions"
    assert list(cache.iterdir()) == []


def test_a_case_for_which_no_time_is_left_is_named(recorded_commit: TinyProject, monkeypatch) -> None:
    monkeypatch.setattr(DoubtTime, "affords", lambda *_: False)
    recorded_commit.edit_baseline(spread_out)
    recorded_commit.workload(SLOWER)
    ended = recorded_commit.run(*GATE, "-operf_processes=3")
    assert "gpugate compare has no time limit" in recorded_commit.reasons("throughput")["code_undecided"]["problem"]
    assert "\nwithout more processes or duets: 1 case (tiny/quick/cpu)" in ended.text
    recorded_commit.quick_ms(3)
    recorded_commit.run(*GATE, "-operf_processes=3")
    assert recorded_commit.outcomes()["throughput"] == "UNDECIDED", "one process alone is no alarm"


def test_a_duet_that_is_cut_off_at_half_of_the_time_names_its_case(tmp_path: Path, monkeypatch) -> None:
    session = made_up_session(tmp_path, against="HEAD", fault=Fault.parse("slow:5"))
    session.doubt = doubt = DoubtTime(3, begun=1)
    result: Any = SimpleNamespace(duration_s=6.0, measurements=[None], remembered=None)

    def run_out_of_time(*arguments: Any) -> None:
        doubt.spent_s += arguments[-1]
        raise CompareError("the process did not end")

    monkeypatch.setattr(confirm, "_measure_code", run_out_of_time)
    assert confirm.compare_code(session, CASE, result, silent).problem == "the process did not end"
    assert (doubt.left_out, doubt.find_left_s(session.elapsed_s) > 0) == ([CASE.id], True)


def test_a_duet_needs_a_record_or_code_that_the_user_names(tmp_path: Path) -> None:
    recorded: Any = SimpleNamespace(remembered="a record")
    new: Any = SimpleNamespace(remembered=None)
    table = ("off", recorded, 0, 0), ("auto", recorded, 1, 0), ("auto", new, 0, 0), ("main", new, 1, 1)
    for against, case, *duet in table:
        allowed = measure_case._allow(made_up_session(tmp_path, against=against), case, 1.0, has_changed=False)
        assert [allowed.duet, allowed.changed] == duet


def add_zeta(project: TinyProject) -> None:
    """Adds the workload again, with another name and a changed source, and with its record."""
    source = (project.path / "tiny.py").read_text().replace('Workload("tiny"', 'Workload("zeta"')
    project.write("zeta.py", source.replace("x + x", "x + x + 0"))
    project.write("conftest.py", CONFTEST + NO_LOAD + '    register_module("zeta")\n')
    document = json.loads(project.baseline.read_text())
    project.baseline.with_name("zeta.json").write_text(json.dumps({**document, "workload": "zeta"}))


def test_cases_that_changed_alike_share_the_processes_of_their_duets(recorded_commit: TinyProject, monkeypatch) -> None:
    plans: list[tuple[str, ...] | None] = []

    def take_duet(plan: DuetPlan, *_: object, **__: object) -> list[DuetProcess]:
        plans.append(plan.case_ids)
        return [DuetProcess(False, TWO_CORES, problems={"tiny/quick/cpu": "it has ended"}, added=("zeta/quick/cpu",))]

    monkeypatch.setattr(confirm, "measure_duets", take_duet)
    recorded_commit.workload(QUICK.replace("read_text())", "read_text()) * 1.0"))
    add_zeta(recorded_commit)
    recorded_commit.run(*GATE)
    assert plans == [("tiny/quick/cpu", "zeta/quick/cpu")]
    assert code_of(recorded_commit)["problem"] == "it has ended"
    other = recorded_commit.json()["cases"]["zeta/quick/cpu"]["recorded_code"]["problem"]
    assert other.startswith("zeta/quick/cpu is not in ")


def test_cases_whose_source_changed_come_first(recorded_commit: TinyProject) -> None:
    add_zeta(recorded_commit)
    recorded_commit.run(*GATE, "--against=off")
    cases = recorded_commit.json()["cases"]
    assert list(cases) == ["zeta/quick/cpu", "tiny/quick/cpu"]
    assert cases["zeta/quick/cpu"]["recorded_code"] is None, "--against=off compares nothing"


def test_a_slower_machine_with_the_recorded_code_is_no_regression(recorded_commit: TinyProject, monkeypatch) -> None:
    """The recorded code takes longer, on another host: the time of a step is committed as data."""
    recorded_commit.quick_ms(3)
    commit(recorded_commit)
    provenance = read_provenance(recorded_commit.path, [recorded_commit.path / "baselines"])
    change_records(recorded_commit, provenance=asdict(replace(provenance, host="another")))
    change_records(recorded_commit, yardsticks={"launch_latency_us": 6.5})
    monkeypatch.setattr(yardsticks, "_cpu", lambda: {"launch_latency_us": 10.0})
    ended = recorded_commit.run(*GATE, "--perf-report=nights/1")
    assert ended.status == 0, ended.text
    found = recorded_commit.reasons("throughput")
    assert list(found) == ["the_machine", "slow_host", "slower_than_record", "code_not_slower", "record_differs"]
    assert found["slow_host"]["times"] == pytest.approx(10.0 / 6.5)
    assert found["record_differs"]["differences"] == "another host"
    recorded_commit.run(*GATE, "--perf-report=nights/2")
    assert recorded_commit.json()["provenance"]["changes"] is None, "the files of the first night are no code"
    assert code_of(recorded_commit)["unchanged"] is True
    missing = recorded_commit.run(*GATE, "--against=nowhere")
    assert missing.status == pytest.ExitCode.USAGE_ERROR
    assert "'nowhere' is no commit of " in missing.text


def test_a_case_without_a_record_is_compared_with_a_named_version_alone(recorded_commit: TinyProject) -> None:
    recorded_commit.baselines.rename(recorded_commit.baselines.with_name("nvidia-h200"))
    note = f"cases have no record of this machine, {recorded_commit.baselines.name}; nvidia-h200 has records of tiny"
    assert note in recorded_commit.run(*GATE).text
    assert code_of(recorded_commit) is None
    recorded_commit.run(*GATE, "--against=main")
    assert code_of(recorded_commit)["unchanged"] is True
    assert recorded_commit.outcomes()["throughput"] == "NO_BASELINE"


@pytest.mark.parametrize("against", ["main", "auto"])
def test_a_duet_has_the_time_of_its_case_and_of_a_ref_that_is_ahead_the_ancestor_unless_it_is_recorded(
    recorded_commit: TinyProject, monkeypatch, against: str
) -> None:
    duets: list[object] = []

    def take_duet(plan: DuetPlan, *_: object, limit_s: float, **__: object) -> list[DuetProcess]:
        duets.append((read_provenance(Path(plan.base)).commit, limit_s))
        return [DuetProcess(False, TWO_CORES, problems={"tiny/quick/cpu": "nothing is measured"})]

    monkeypatch.setattr(confirm, "measure_duets", take_duet)
    began = read_provenance(recorded_commit.path).commit
    git(recorded_commit.path, "checkout", "-q", "-b", "feature")
    git(recorded_commit.path, "checkout", "-q", "main")
    recorded_commit.workload(SLOWER)
    commit(recorded_commit)
    now = read_provenance(recorded_commit.path).commit
    git(recorded_commit.path, "checkout", "-qf", "feature")
    change_records(recorded_commit, provenance=asdict(Provenance(commit=now)))
    recorded_commit.edit_baseline(spread_out)
    recorded_commit.workload(SLOWER.replace("1.1", "1.2"))
    recorded_commit.run(*GATE, f"--against={against}")
    assert duets == [(began if against == "main" else now, CASE_DOUBT_S)]
    problem = recorded_commit.reasons("throughput")["code_undecided"]["problem"]
    assert problem == "nothing is measured"


@pytest.mark.parametrize(
    ("recorded", "problem"),
    [
        (None, "does not contain its commit"),
        (Provenance(), "does not contain its commit"),
        (Provenance(commit=GONE, changes="abc"), "with uncommitted changes"),
        (
            Provenance(commit=GONE, branch="feature/faster", files=("123456789abc code.py",)),
            "^the recorded commit 111111111111 of branch feature/faster is not in this clone: a squash or rebase drops "
            "it; record on the default branch, or give --against REF$",
        ),
    ],
)
def test_a_record_that_names_no_code_is_said(repository: Path, recorded: Provenance | None, problem: str) -> None:
    with pytest.raises(CompareError, match=problem):
        choose_ref("auto", recorded, repository)
    assert choose_ref("v1.0", recorded, repository) == "v1.0"


def test_a_project_that_git_does_not_read_has_its_words(tmp_path: Path) -> None:
    """Such as a checkout of another user in a container of CI."""
    problem = "^the recorded commit 111111111111 is not found, and .* is in no git repository [(]fatal: .*: gate in a "
    with pytest.raises(CompareError, match=problem):
        choose_ref("auto", Provenance(commit=GONE), tmp_path)


def test_the_recorded_commit_is_the_default_and_else_a_commit_with_the_recorded_files(repository: Path) -> None:
    """After a squash or rebase, and after a recording before the commit; a shallow clone may lack either."""
    head = git(repository, "rev-parse", "HEAD")
    assert choose_ref("auto", Provenance(commit=head), repository) == head
    files = (f"{(git(repository, 'rev-parse', 'HEAD:code.py') or '')[:12]} code.py",)
    assert choose_ref("auto", Provenance(commit=GONE, files=files), repository) == head
    assert choose_ref("auto", Provenance(commit=head, changes="abc", files=files), repository) == head
    (repository / ".git/shallow").write_text(f"{head}\n")
    for absent in (Provenance(commit=GONE), Provenance(commit=head, changes="abc", files=("12 code.py",))):
        with pytest.raises(CompareError, match="run `git fetch --unshallow`, since this clone is shallow"):
            choose_ref("auto", absent, repository)


def test_a_recording_warns_of_code_that_no_later_gate_finds(repository: Path, monkeypatch) -> None:
    imported = SimpleNamespace(__file__=str(repository / "code.py"), __spec__=True)
    monkeypatch.setitem(sys.modules, "imported_code", imported)

    def warn(folder: Path) -> str:
        session = made_up_session(folder)
        session.result.provenance = read_provenance(folder)
        return " ".join(warn_about_code(session))

    assert warn(repository) == ""
    (repository / "code.py").write_text("2\n")
    (repository / "README.md").write_text("no code")
    assert warn(repository).startswith("recorded with uncommitted changes of code.py: no gate can compare with this")


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """An interpreter that runs `script` whatever it is told; returns where a run would be written."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{script}\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    return tmp_path / "run-1.json"


def made_up_session(root: Path, **options: Any) -> PerfSession:
    run, cpu = RunResult(describe(torch.device("cpu")), "2030-01-01T00:00:00+00:00", seed=1), torch.device("cpu")
    return PerfSession(replace(OPTIONS, **options), cpu, root, run)


@pytest.mark.parametrize("status", [0, 3])
def test_one_that_writes_no_run_is_told_by_its_last_words(tmp_path: Path, monkeypatch, status: int) -> None:
    path = child(tmp_path, monkeypatch, f"print('no such test')\nraise SystemExit({status})")
    with pytest.raises(
        FreshProcessError, match=rf"^a fresh process ended with status {status}: no such test$"
    ) as caught:
        run_fresh(made_up_session(tmp_path), ["test.py"], path)
    assert caught.value.printed == "no such test"


def test_it_is_told_what_this_process_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = child(tmp_path, monkeypatch, "import sys\nprint(*sys.argv[1:])\nraise SystemExit(3)")
    asking = made_up_session(tmp_path, budget_s=2.5, fault=Fault.parse("slow:5"), settings={"data": "a=b"})
    with pytest.raises(FreshProcessError) as caught:
        run_fresh(asking, ["a.py::b"], path)
    words = caught.value.printed.split()
    assert words[words.index("pytest") + 1] == "a.py::b"
    assert {"--perf-mutate=slow:5", "--perf-set=data=a=b", "2.5", "gpugate.plugin"} <= {*words}
    assert {f"--rootdir={tmp_path}", f"--perf-json={path}"} <= {*words}
