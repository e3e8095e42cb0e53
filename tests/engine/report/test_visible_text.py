"""Control characters in words: a terminal shows them and obeys none, and our own colours stay."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.text import Text

from gpugate.commands.cli import main
from gpugate.measurement.progress import Progress
from gpugate.report import live
from gpugate.report.terminal import indent, render_text
from gpugate.report.visible_text import VisibleStream, show_controls
from tests.support import stored_runs
from tests.support.stored_runs import edit

HOSTILE = {
    "\x1b[2J\x1b[31m": r"\x1b[2J\x1b[31m",
    "\x1b]8;;http://evil\x1b\\here": r"\x1b]8;;http://evil\x1b\here",
    "\x1b]52;c;aGk=\x07": r"\x1b]52;c;aGk=\x07",
    "good\rbad\x0c": r"good\rbad\x0c",
    "\x9b2J\x85": r"\x9b2J\x85",
    "\u202etxt\u2066\u200b\u2028": r"\u202etxt\u2066\u200b\u2028",
    "\ud800": r"\ud800",
}


@pytest.mark.parametrize("words", HOSTILE)
def test_a_terminal_obeys_no_words(words: str) -> None:
    assert show_controls(words) == HOSTILE[words]
    told = live.line(Progress(words, "measuring", words)).plain
    for shown in (render_text([Text(words), indent(words, 2)], 200, colour=False), told):
        assert all(one.isprintable() or one in " \n" for one in shown)
        assert "2J" in shown or "2J" not in words


def test_letters_of_every_language_stay() -> None:
    assert show_controls("Größe, 速度\n\t→") == "Größe, 速度\n\t→"


def test_our_colours_stay_and_those_of_words_do_not() -> None:
    coloured = render_text([Text.assemble(("\x1b[8mPASS", "bold red"), " \x1b[32m")], 80, colour=True)
    assert coloured == "\x1b[1;31m\\x1b[8mPASS\x1b[0m \\x1b[32m\n"
    out = io.StringIO()
    VisibleStream(out).write(coloured)
    VisibleStream(out).write("\x1b[31m\x1b]0;title\x07")
    assert out.getvalue() == f"{coloured}\\x1b[31m\\x1b]0;title\\x07"


def test_a_terminal_of_few_characters_gets_the_codes_of_others() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    VisibleStream(out).write("▁█ 1.2x")
    out.seek(0)
    assert out.read() == r"\u2581\u2588 1.2x"


@pytest.mark.parametrize("command", ["verdict", "replay", "merge", "accept"])
def test_no_command_prints_what_a_terminal_obeys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "".join(HOSTILE).replace("\ud800", "")
    path = tmp_path / f"runs{words.replace('/', '')}" / "run.json"
    path.parent.mkdir()
    failed = stored_runs.case("failed", None, error=words)
    stored_runs.stored(path, failed, stored_runs.case("pass"), gate=True, exit_status=1, problems=[words])
    if command in ("accept", "merge"):
        edit(path, "started_at", words)
    given = {"merge": ["verdict", str(path.parent), "--merge", "n"], "accept": ["accept", str(path.parent)]}
    main(given.get(command, [command, str(path)]))
    said = "".join(capsys.readouterr())
    assert "txt" in said
    assert all(one.isprintable() or one in "\n\t" for one in said)
