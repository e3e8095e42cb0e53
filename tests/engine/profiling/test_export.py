"""nsys on this machine: the one that can profile, and the export of an existing report."""

import os
from pathlib import Path

import pytest

from gpugate.profiling import export
from gpugate.profiling.export import ProfileError, export_report
from tests.support.fake_nsys import on_path

EXPORTS = 'for word; do case "$word" in --output=*) printf new > "${word#--output=}";; esac; done'


def report(folder: Path) -> Path:
    path = folder / "case.nsys-rep"
    path.write_text("report")
    return path


def test_a_report_is_exported_beside_itself_in_the_environment_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(tmp_path, monkeypatch, f'echo "[$SECRET]" > {tmp_path}/seen; {EXPORTS}')
    monkeypatch.setenv("SECRET", "token")
    path = export_report(report(tmp_path), {"PATH": "/usr/bin:/bin"})
    assert (path, path.read_text()) == (tmp_path / "case.sqlite", "new")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bin", "case.nsys-rep", "case.sqlite", "seen"]
    assert (tmp_path / "seen").read_text() == "[]\n"
    assert export_report(path) == path


@pytest.mark.parametrize(("age_s", "content"), [(100, "new"), (-100, "old")])
def test_an_export_is_made_anew_only_when_it_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int, content: str
) -> None:
    on_path(tmp_path, monkeypatch, EXPORTS)
    path = report(tmp_path)
    there = path.with_suffix(".sqlite")
    there.write_text("old")
    made = path.stat().st_mtime
    os.utime(there, (made, made - age_s))
    assert export_report(path).read_text() == content


def test_an_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path(tmp_path, monkeypatch, f"{EXPORTS}; echo first; echo no importer >&2; exit 1")
    with pytest.raises(ProfileError, match=r"`nsys export` ended with status 1 \(no importer\): run it by hand"):
        export_report(report(tmp_path))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bin", "case.nsys-rep"]


def test_a_report_or_nsys_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProfileError, match=r"no\.nsys-rep is no file: give a \.nsys-rep"):
        export_report(tmp_path / "no.nsys-rep")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(export.PLACES, "nsys", ())
    with pytest.raises(ProfileError, match="no nsys was found: install it, put it on PATH, or try"):
        export_report(report(tmp_path))


def test_tools_that_are_nowhere_and_tools_beside_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(export.PLACES, "nsys", (f"{tmp_path}/*/nsys",))
    assert export.find_tool("nsys") is None
    for version in ("2025.1", "2025.3"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "nsys").touch(mode=0o755)
    assert export.find_tool("nsys") == f"{tmp_path}/2025.3/nsys"
    (tmp_path / "nsys").touch(mode=0o755)
    assert export.find_tool("nsys") == f"{tmp_path}/nsys"
