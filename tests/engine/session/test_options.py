"""The command line: every option is in the help, and a value that cannot be used is refused in one sentence."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpugate.errors import OptionError
from gpugate.machine import children
from gpugate.session.options import MEASURE, find_baselines, find_url, read_options
from gpugate.store.store_url import VARIABLE
from tests.support.tiny_project import CACHES, PROMISE, QUICK, ROOT, TinyProject

HEAVY = {"torch", "sqlalchemy", "numpy", "scipy", "rich", "pynvml", "nvtx", "sqlite3", "filelock", "asyncio", "jinja2"}
HEAVY |= {"pydantic", "pydantic_core"}


def pytest_apart(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-X", "importtime", "-m", "pytest", "-p", "gpugate.plugin", *arguments]
    return subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )


def imported(result: "subprocess.CompletedProcess[str]") -> set[str]:
    """Top-level packages that the process imported, as -X importtime tells."""
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in result.stderr.splitlines()}


def test_the_help_has_every_option_in_one_group_with_its_default_and_imports_nothing_heavy(tmp_path: Path) -> None:
    result = pytest_apart(tmp_path, "--help")
    assert result.returncode == 0
    (group,) = re.findall(r"^gpugate: .*?:\n((?:  .*\n)+)", result.stdout, re.MULTILINE)
    described = [" ".join(text.split()) for text in re.split(r"^  (?=--)", group, flags=re.MULTILINE)[1:]]
    assert [text for text in described if "(default: " not in text] == []
    documented = re.findall(r"^\| `(--[\w-]+)", (ROOT / "docs/options.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(re.split(r"[ =[]", text)[0] for text in described) == sorted(documented)
    assert "gpugate" in imported(result)
    assert imported(result) & HEAVY == set()


def test_a_project_that_measures_nothing_pays_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text("def test_plain():\n    pass\n", encoding="utf-8")
    result = pytest_apart(tmp_path)
    assert result.returncode == 0
    assert imported(result) & HEAVY == set()
    assert "== gpugate ==" not in result.stdout
    assert {path.name for path in tmp_path.iterdir()} - {"test_plain.py", "__pycache__"} <= CACHES


TOO_LONG = f"1{22 * '0'}"  # for 64 bits, and to count so far


@pytest.mark.parametrize(
    ("option", "value", "next_step"),
    [
        *(("--perf-budget", value, "give seconds above 0") for value in ("0", "-1", "nan", "inf", "soon", "1e300")),
        *(
            ("-operf_processes", value, "give a whole number from 1 to 10000")
            for value in ("0", "-2", "1.5", "many", "10001", TOO_LONG)
        ),
        *(("--perf-device", value, "use auto, cpu, cuda or cuda:N") for value in ("gpu", "cuda:", "cuda:x", "tpu:0")),
        *(("-operf_seed", value, "give a whole number from 0 to 1") for value in ("-1", "x", TOO_LONG)),
        *(("--perf-shard", value, "give I/N with I from 1 to N") for value in ("5/4", "0/4", "1/0", "half")),
        *(("--perf-json", value, "give a file name in a folder that can") for value in ("no/run.json", "perf_tests")),
        ("--perf-baselines", "a.json", "is a file: give the folder with the baselines of all machines"),
        *(("--perf-set", value, "is no NAME=VALUE: give both") for value in ("video", "video=", "=mine.mp4")),
    ],
)
def test_a_value_that_cannot_be_used_is_one_sentence(
    pytester: pytest.Pytester, option: str, value: str, next_step: str
) -> None:
    pytester.mkdir("perf_tests")
    (pytester.path / "a.json").touch()
    with pytest.raises(OptionError) as refused:
        read_options(pytester.parseconfig("-p", "gpugate.plugin", f"{option}={value}"))
    sentence = str(refused.value)
    assert ("device" if option == "--perf-device" else option.removeprefix("-o")) in sentence
    assert value in sentence
    assert next_step in sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--update-baselines=..."], '--update-baselines="..." is a placeholder: write the reason of the recording in'),
        (["--update-baselines", "new driver"], "tests to run: write --update-baselines='new driver', or put"),
        (["--update-baselines", "--perf-set=video=a", "--perf-baselines=./baselines"], "--perf-set video=a changes"),
        (["-n", "1", "--update-baselines"], "--update-baselines with -n would record workers that share a host: use"),
        (["--gate", "--update-baselines"], "--gate judges and --update-baselines records: run one after the other"),
        (["--perf-shard=1/1", "--update-baselines"], "--perf-shard 1/1 divides a workload, and"),
        (["--perf-mutate=fast"], "--perf-mutate is 'fast': use one of slow:PERCENT"),
        (["--perf-store=me:secret@host"], "--perf-store is '***': give an SQLAlchemy URL"),
        (["--perf-store=bogus://me:secret@host"], "--perf-store is '***': give an SQLAlchemy URL"),
        (["--perf-store=/tmp/x.sqlite"], "--perf-store is '/tmp/x.sqlite': give an SQLAlchemy URL such as sqlite:////"),
        (["--perf-mutate=sync", "--update-baselines"], "which no baseline may contain: record without it"),
        (["--perf-mutate=sync", "--gate"], "--gate would judge the fault sync of --perf-mutate: leave out one of the"),
        (["--nsys", "--gate"], "--nsys would disturb --gate: run one after the other"),
        (["--nsys", "--ncu"], "--nsys would disturb --ncu: run one after the other"),
        (["--perf-json=/dev/full"], "--perf-json /dev/full cannot be written: give a file name in a folder that can"),
        (["--perf-json="], "--perf-json= names nothing: give a path behind it"),
        (["--perf-report="], "--perf-report= names nothing: give a path behind it"),
        (["--perf-baselines="], "--perf-baselines= names nothing: give a path behind it"),
        (["--nsys="], "--nsys= names nothing: give a value behind it, or --nsys alone"),
        (["--ncu=0"], "--ncu is '0': give a whole number from 1 to 10000"),
        (["--nsys", "-n2"], "--nsys would disturb -n: run one after the other"),
    ],
)
def test_options_that_contradict_or_do_nothing_are_refused(
    pytester: pytest.Pytester, options: list[str], sentence: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(sentence)):
        read_options(pytester.parseconfig("-p", "gpugate.plugin", *options))


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["perf_tests"], "pytest perf_tests"),
        (["perf_tests/test_promises.py::test_speedup"], "pytest perf_tests/test_promises.py"),
        (["perf_tests", "--perf-baselines=my baselines"], "pytest perf_tests '--perf-baselines=my baselines'"),
        (["perf_tests", "--against", "off"], "pytest perf_tests --against=off"),
        ([], "pytest"),
    ],
)
def test_the_command_of_a_next_step_is_the_one_that_was_typed(
    pytester: pytest.Pytester, arguments: list[str], command: str
) -> None:
    pytester.mkdir("perf_tests")
    (pytester.path / "perf_tests/test_promises.py").touch()
    assert read_options(pytester.parseconfig("-p", "gpugate.plugin", *arguments)).command == command


def test_a_setting_is_kept_by_its_name_and_a_path_becomes_absolute(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "mine.mp4").touch()
    monkeypatch.chdir(pytester.mkdir("below"))
    words = ("--perf-set=video=../mine.mp4", "--perf-set", "words=a=b", "--perf-set=video-2=nowhere.mp4")
    settings = dict(read_options(pytester.parseconfig("-p", "gpugate.plugin", *words)).settings)
    assert Path(settings.pop("video")).samefile(pytester.path / "mine.mp4")
    assert settings == {"words": "a=b", "video-2": "nowhere.mp4"}


def test_a_fresh_process_takes_a_setting_that_is_for_other_cases_and_shows_no_proof(
    tiny: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = "def show(context):\n    Path('shown').touch()\n    return 'it learns'"
    proven = f"{PROMISE[:-1]}, proofs=(Proof('learns', show),))"
    tiny.workload(f"from gpugate.workload import Proof\n\n{show}\n\n{QUICK}", proven)
    monkeypatch.setattr(children, "task", MEASURE)
    assert tiny.run("--perf-set=other=1", "--perf-device=cpu", "-k", "outputs").status == 0
    assert not (tiny.path / "shown").exists()


@pytest.mark.parametrize(
    ("arguments", "folder"),
    [([], "baselines"), (["--perf-baselines=baselines"], "below/baselines"), (["--perf-baselines=../b"], "below/../b")],
)
def test_a_folder_of_baselines_is_seen_from_where_pytest_was_started_and_the_default_from_the_project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, arguments: list[str], folder: str
) -> None:
    monkeypatch.chdir(pytester.mkdir("below"))
    config = pytester.parseconfig("-p", "gpugate.plugin", f"--rootdir={pytester.path}", *arguments)
    assert read_options(config).baselines_path == pytester.path / folder


PROJECT = """[pytest]
perf_store = off
perf_baselines = records
"""


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--gate"], ("auto", "records", None)),
        ([], ("off", "records", None)),  # nothing is judged, so nothing is compared
        (["--against=main", "--perf-baselines=b", "--perf-store=sqlite:///a"], ("main", "b", "sqlite:///a")),
    ],
)
def test_a_projects_settings_are_those_of_each_run_that_gives_no_option(
    pytester: pytest.Pytester, arguments: list[str], found: tuple[object, ...]
) -> None:
    pytester.makeini(PROJECT)
    options = read_options(pytester.parseconfig("-p", "gpugate.plugin", *arguments))
    folder = options.baselines_path.relative_to(pytester.path)
    assert (options.against, str(folder), options.store_url) == found


def test_a_console_command_takes_the_store_and_the_baselines_of_the_project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    pytester.makeini(PROJECT)
    assert (find_url("sqlite:///a"), find_baselines(None)) == ("sqlite:///a", Path("records"))
    monkeypatch.setenv(VARIABLE, "sqlite:///b")
    assert (find_url(None), find_url("sqlite:///a")) == ("sqlite:///b", "sqlite:///a")
    with pytest.raises(OptionError, match="--store is '/nights': give an SQLAlchemy URL such as sqlite:////nights, or"):
        find_url("/nights")
    monkeypatch.chdir(pytester.mkdir("below"))
    assert find_baselines(None) == pytester.path / "records"
    pytester.makeini("[pytest]\nminversion = 99")
    with pytest.raises(OptionError, match="mend it"):
        find_baselines(None)


def test_a_fresh_process_may_have_what_a_gate_accepts_and_a_shard_from_the_projects_settings(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "task", MEASURE)
    words = "--gate --allow-missing=nvenc --perf-shard=2/2 --perf-store=sqlite:///a --perf-report=a --perf-json=b"
    pytester.makeini(f"[pytest]\naddopts = {words}")
    config = pytester.parseconfig("-p", "gpugate.plugin")
    options = read_options(config)
    assert (options.gate, options.update_baselines, options.fresh) == (False, False, True)
    assert options.allow_missing == {"nvenc"}
    assert options.shard is None  # its one case is of the shard of its parent
    assert (options.store_url, options.proofs_path, options.report_path) == (None, None, None)
    monkeypatch.setattr(children, "task", "a plan of duets")
    options = read_options(config)
    assert (options.shard, options.given_paths) == (None, ())


@pytest.mark.parametrize("word", ["--perf-store=off", "--perf-set=video=mine", "--perf-mutate=slow:1", ""])
def test_some_runs_neither_use_nor_remember_a_proof(pytester: pytest.Pytester, word: str) -> None:
    words = ["--perf-store=sqlite:///a", *filter(None, [word])]
    assert (read_options(pytester.parseconfig("-p", "gpugate.plugin", *words)).proofs_path is None) == bool(word)


def test_a_seed_that_was_printed_draws_the_same_fresh_inputs(tiny: TinyProject) -> None:
    drawn = []
    for options in (("-operf_seed=7",), ("-operf_seed=7",), ()):
        result = tiny.run("--perf-device=cpu", "-k", "outputs", "--perf-json=run.json", *options)
        drawn.append(tiny.json()["cases"]["tiny/quick/cpu"]["measurement"]["seed"])
        # The end of the line too: a seed of nine digits may begin with a 7.
        assert (", seed 7\n" in result.text) is bool(options)
    assert drawn[0] == drawn[1] != drawn[2]
