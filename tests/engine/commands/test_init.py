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
    wrote, note, step = capsys.readouterr().out.splitlines()
    assert wrote == "wrote new/mine/conftest.py and new/mine/test_my_workload.py"
    assert note == "the variable OMP_NUM_THREADS is for a CPU: export it before you record"
    assert step == "next: OMP_NUM_THREADS=1 pytest new/mine -k projection"
    assert sum(len(text.splitlines()) for text in FILES.values()) < 25
    for name in FILES:
        text = (tmp_path / "new/mine" / name).read_text(encoding="utf-8")
        assert text.startswith(f"# {name}\n")
        assert f"```python\n{text}```" in readme
    for left, files in (([*FILES], "files"), ([*FILES][1:], "file")):  # what is there is not overwritten
        assert main(["init", "new/mine"]) == 2
        said = capsys.readouterr().err
        assert said.endswith(f"would be overwritten: give another folder, or move the {files} away\n")
        assert sorted(path.name for path in (tmp_path / "new/mine").iterdir()) == sorted(left)
        (tmp_path / "new/mine" / next(iter(FILES))).unlink(missing_ok=True)
