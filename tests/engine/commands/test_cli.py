"""The console command: what it lists, what it imports, and how a subcommand ends."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from gpugate import __version__
from gpugate.commands import cli
from gpugate.commands.cli import COMMANDS, main
from gpugate.errors import BaselineError, OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(cli.__file__).parents[2]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A subcommand `made-up` beside one whose module is not there."""
    module = ModuleType("made-up")
    module.add_arguments = lambda parser: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpugate.commands.made-up", module)
    monkeypatch.setattr(cli, "COMMANDS", {"made-up": "is made up", "gone": "is gone"})
    return module


def test_help_names_every_command_and_imports_no_command_and_nothing_heavy() -> None:
    modules = (f"gpugate.commands.{name}" for name in COMMANDS)
    unwanted = {"torch", "scipy", "numpy", "matplotlib", "pytest", "rich", *modules}
    script = (
        "import sys\nfrom gpugate.commands.cli import main\n"
        "try: main(['--help'])\n"
        f"except SystemExit: print(*sorted({unwanted!r} & set(sys.modules)), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "\n")
    assert [name for name in COMMANDS if name not in ended.stdout] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_module(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"gpugate {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (OptionError("--number is 7: give 8"), 2, "--number is 7: give 8"),
        (BaselineError("it is damaged: restore it"), 2, "it is damaged: restore it"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_an_error_is_one_sentence_and_an_interruption_no_traceback(
    made_up: ModuleType, error: BaseException, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: object) -> int:
        raise error

    made_up.run = fail  # type: ignore[attr-defined]
    assert main(["made-up"]) == status
    assert capsys.readouterr().err == f"gpugate made-up: {words}\n"


def test_an_interruption_while_a_command_is_imported_is_no_traceback(
    made_up: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(parser: object) -> None:
        raise KeyboardInterrupt

    made_up.add_arguments = fail  # type: ignore[attr-defined]
    assert main(["made-up"]) == 130
    assert capsys.readouterr().err == "gpugate: interrupted\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("replay empty", "empty contains no run: give a run of --perf-json, a night, or a folder of them"),
        ("diff empty empty", "empty/run.json cannot be read (No such file or directory)"),
        ("diff text text", "text cannot be used because its field 'format' is not 'gpugate-run': give a file of"),
        ("profile nowhere", "nowhere cannot be read (No such file or directory): give a .nsys-rep or its SQLite ex"),
        ("profile empty", "empty cannot be read (Is a directory): give a .nsys-rep or its SQLite export"),
        ("profile text", "text cannot be read (file is not a database): give a .nsys-rep or its SQLite export"),
        ("plan empty --gpus 0", "--gpus is '0': give a whole number from 1 to 10000, such as 4"),
        ("history nowhere", "nowhere contains no run: give a run of --perf-json"),
        ("history empty --last 0", "--last is '0': give a whole number from 1 to "),
        ("history empty --store sqlite:///none.sqlite", "--store and folders were given"),
        ("history", "the store is off: give --store URL"),
        ("store add empty", "the store is off: give --store URL"),
        ("store add nowhere --store sqlite:///s", "nowhere contains no run: give a run of --perf-json"),
        ("accept nowhere", "nowhere contains no run: give a run of --perf-json, a night, or a folder of them"),
        ("compare HEAD --json no/file", "--json no/file cannot be written: give a file name in a folder that can be"),
        ("compare HEAD --markdown no/file", "--markdown no/file cannot be written: give a file name in a folder"),
        ("verdict empty", "empty/run.json cannot be read (No such file or directory)"),
        ("verdict text", "text cannot be used because its field 'format'"),
        ("init text/project", "text/project cannot be written (Not a directory): give another folder"),
    ],
)
def test_what_a_command_cannot_use_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("text").write_text('{"format": "gpugate-doctor", "format_version": 1}')
    assert main(words.split()) == 2
    said, problem = capsys.readouterr()
    assert (said, problem.count("\n")) == ("", 1)
    assert problem.startswith(f"gpugate {words.split()[0]}: ")
    assert sentence in problem


def unread(code: str) -> "subprocess.CompletedProcess[str]":
    """Python runs `code` with a standard output that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)


@pytest.mark.parametrize("lines", [1, 100_000], ids=["at the end", "in the middle"])
def test_a_reader_who_leaves_ends_any_command(lines: int) -> None:
    script = f"""
import sys, types
from gpugate.commands import cli
from gpugate.commands.cli import main
made = types.ModuleType("made-up")
made.add_arguments = lambda parser: None
def run(arguments):
    for number in range({lines}):
        print("line", number)
    return 0
made.run = run
sys.modules["gpugate.commands.made-up"] = made
cli.COMMANDS = {{"made-up": "is made up"}}
sys.exit(main(["made-up"]))
"""
    ended = unread(script)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_the_module_and_the_installed_script_are_this_command() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, function = project["scripts"]["gpugate"].split(":")
    assert getattr(import_module(module), function) is main
    ended = subprocess.run([sys.executable, "-m", "gpugate", "--version"], cwd=ROOT, capture_output=True, check=False)
    assert ended.stdout.decode() == f"gpugate {__version__}\n"
