"""`gpugate init`: the README's two files; tests/engine/test_wheel.py runs them."""

from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.commands.init import FILES

ROOT = Path(__file__).parents[3]


def test_the_files_are_those_of_the_readme(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert main(["init", "new/mine"]) == 0
    wrote, step = capsys.readouterr().out.splitlines()
    assert wrote == "wrote new/mine/conftest.py and new/mine/test_my_workload.py"
    assert step == "next: pytest new/mine -k projection"
    assert sum(len(text.splitlines()) for text in FILES.values()) < 25
    for name in FILES:
        text = (tmp_path / "new/mine" / name).read_text(encoding="utf-8")
        assert text.startswith(f"# {name}\n")
        assert f"```python\n{text}```" in readme
    assert main(["init", "new/mine"]) == 2
    assert capsys.readouterr().err.endswith("would be overwritten: give another folder, or move the files away\n")


@pytest.mark.parametrize("name", FILES)
def test_it_overwrites_nothing(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text("mine", encoding="utf-8")
    assert main(["init", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"gpugate init: {tmp_path / name} would be overwritten: give another folder, or move the file away\n"
    )
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [(name, "mine")]
