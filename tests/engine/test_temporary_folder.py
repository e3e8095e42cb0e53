"""A full folder for temporary files is named, whatever came of it."""

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from gpugate.errors import SideError, temporary_folder_problem
from gpugate.store.version import CACHE_FOLDER
from tests.support.tiny_project import TinyProject


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def missing(path: Path) -> OSError:
    return FileNotFoundError(2, "No such file or directory", str(path))


def test_a_file_that_is_not_there_names_the_folder_that_did_not_take_it(folder: Path) -> None:
    assert temporary_folder_problem(missing(folder / "gpugate-trace-1/trace.json")) == (
        f"the folder for temporary files {folder} did not take trace.json (No such file or directory): "
        "make room in it, or set TMPDIR to another one"
    )
    assert temporary_folder_problem(missing(folder.parent / "trace.json")) is None
    assert temporary_folder_problem(missing(folder / "project/.gpugate-cache")) is None  # of a project that lies there
    assert temporary_folder_problem(missing(folder / "gpugate-project/trace.json")) is None
    assert temporary_folder_problem(ValueError("no")) is None
    of_the_side = SideError("fast", "being built", missing(folder / "weights.pt"))
    assert temporary_folder_problem(of_the_side) is None


def test_where_no_folder_takes_anything_those_that_were_tried_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(FileNotFoundError) as raised:
        tempfile.gettempdir()
    assert temporary_folder_problem(raised.value) == (
        "no usable temporary directory found in ['/nowhere']: make room in it, or set TMPDIR to another one"
    )


def test_a_full_folder_is_one_sentence_of_the_case(tiny: TinyProject, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk lets the profiler write no trace, and the profiler raises nothing."""
    monkeypatch.setattr(torch.autograd.profiler.profile, "export_chrome_trace", lambda self, path: None)
    result = tiny.run("--perf-device=cpu", "-k", "outputs")
    assert result.status == 1, result.text
    told = f"tiny/quick/cpu: the folder for temporary files {tempfile.gettempdir()} did not take trace.json (No such"
    assert told in result.text
    assert "the engine failed" not in result.text


def test_a_project_that_cannot_be_written_is_named_also_without_a_folder_for_temporary_files(
    tiny: TinyProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def refuse(path: Path, *words: Any, **options: Any) -> None:
        if path.name == CACHE_FOLDER:
            monkeypatch.setattr(tempfile, "gettempdir", no_folder)  # from now on, since pytest needs one before
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        make(path, *words, **options)

    def no_folder() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(Path, "mkdir", refuse)
    ended = tiny.run("--perf-device=cpu", "--perf-json=run.json", "--capture=no")
    cache = tiny.path / CACHE_FOLDER
    step = "make room, or set XDG_CACHE_HOME to a folder that can be written"
    error = tiny.json()["cases"]["tiny/quick/cpu"]["error"]
    assert error == f"{cache} cannot be written (Read-only file system): {step}"
    assert "No usable temporary directory" not in ended.text
    assert ended.status == 1
