"""Files of an archive are read as if they lay in their folder, and packing loses none."""

from pathlib import Path

import pytest

from tools import archive
from tools.archive import list_files, pack


def test_an_archived_file_is_read_beside_those_that_came_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "RESULTS", tmp_path)
    machine, folder = tmp_path / "h200", tmp_path / "h200/duets/6-s"
    folder.mkdir(parents=True)
    for name in ("duets-b.json", "duets-c.json", "trust.md"):
        (folder / name).write_text(name)
    assert pack(machine, machine / "trials-2026-11.tar.xz") == 2
    assert [path.name for path in folder.iterdir()] == ["trust.md"]
    (folder / "duets-a.json").write_text("duets-a.json")
    names = ["duets-a.json", "duets-b.json", "duets-c.json"]
    assert [path.read_text() for path in list_files(folder, "duets-*.json")] == names
    assert pack(machine, machine / "trials-2026-12.tar.xz") == 1
    assert [path.read_text() for path in list_files(folder, "duets-*.json")] == names
