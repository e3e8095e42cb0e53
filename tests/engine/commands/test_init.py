"""`gpugate init`: the README's two files, which run at once."""

from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.commands.init import FILES

ROOT = Path(__file__).parents[3]


def test_the_files_are_those_of_the_readme(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert main(["init", str(tmp_path / "new/project")]) == 0
    for name in ("conftest.py", "test_my_workload.py"):
        text = (tmp_path / "new/project" / name).read_text(encoding="utf-8")
        assert text.startswith(f"# {name}\n")
        assert f"```python\n{text}```" in readme


def test_it_prints_what_it_wrote_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "mine"]) == 0
    wrote, step = capsys.readouterr().out.splitlines()
    assert wrote == "wrote mine/conftest.py and mine/test_my_workload.py"
    assert step == "next: pytest mine -k projection"


@pytest.mark.parametrize("name", FILES)
def test_it_overwrites_nothing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text("mine", encoding="utf-8")
    assert main(["init", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"gpugate init: {tmp_path / name} would be overwritten: give another folder, or move the file away\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text(encoding="utf-8") == "mine"


def test_a_second_init_names_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path)]) == 0
    assert main(["init", str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith("would be overwritten: give another folder, or move the files away\n")


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["init", str(tmp_path / "file/project")]) == 2
    assert "file/project cannot be written (Not a directory): give another folder" in capsys.readouterr().err
