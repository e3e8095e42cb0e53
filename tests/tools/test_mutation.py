"""A mutant is tested in place of its module."""

from pathlib import Path

import pytest

from tools.mutation import judge

CODE = "def add(a, b):\n    return a + b\n"
TEST = "from sums import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n"


def test_a_mutant_is_killed_and_the_unchanged_module_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("sums.py").write_text(CODE)
    Path("test_sums.py").write_text(TEST)
    codes = (CODE, CODE.replace("+", "-"), "import nothing")
    assert [judge(Path("sums.py"), code, ["test_sums.py"]) for code in codes] == ["survived", "killed", "killed"]
