"""JSON files with a header: strict text, one sentence for each file that cannot be used, and whole files only."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpugate.errors import BaselineError
from gpugate.store.codec import FormatError
from gpugate.store.json_file import JsonFile, parse


@dataclass(frozen=True)
class Body:
    a: int


FILE = JsonFile("ours", 3, Body, BaselineError, "mend", "make room", oldest_version=2)


@pytest.mark.parametrize("text", ['{"a": ', "", "[" * 100_000, "1" * 5_000], ids=["cut off", "empty", "deep", "digits"])
def test_text_that_is_no_json(text: str) -> None:
    with pytest.raises(FormatError, match=r"^it is cut off or not JSON \(.*\)$"):
        parse(text)


def test_a_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "ours.json"
    (tmp_path / "link.json").symlink_to("ours.json")
    path.touch(0o600)
    FILE.write(tmp_path / "link.json", Body(1))
    assert (tmp_path / "link.json").is_symlink()
    assert path.read_text() == '{\n  "format": "ours",\n  "format_version": 3,\n  "a": 1\n}\n'
    assert (FILE.read(path), path.stat().st_mode & 0o777) == (Body(1), 0o600)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "cannot be read (No such file or directory): mend"),
        (b"\xff", "cannot be read (it is not UTF-8 text): mend"),
        (b"[1, 2]", "cannot be used because its field 'format' is not 'ours': mend"),
        (b"{}", "cannot be used because its field 'format' is not 'ours': mend"),
        (
            b'{"format": "ours", "format_version": true, "a": 1}',
            "cannot be used because format_version is True, not a whole number from 1 on: mend",
        ),
        (
            b'{"format": "ours", "format_version": 4, "b": 1}',
            "cannot be used because a newer gpugate wrote it (format 4, this one reads 2 to 3): update gpugate",
        ),
        (
            b'{"format": "ours", "format_version": 1, "b": 1}',
            "cannot be used because an older gpugate wrote it (format 1, this one reads 2 to 3): mend",
        ),
        (
            b'{"format": "ours", "format_version": 2, "a": 1.5}',
            "cannot be used because a is 1.5, not a valid integer: mend",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named_in_one_sentence(tmp_path: Path, text: bytes | None, sentence: str) -> None:
    path = tmp_path / "ours.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(BaselineError) as refused:
        FILE.read(path)
    assert str(refused.value) == f"{path} {sentence}"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no/such/ours.json", "No such file or directory"),
        ("", "it is not a regular file"),
        ("fifo", "it is not a regular file"),
    ],
)
def test_a_path_that_cannot_be_written_is_named_in_one_sentence(tmp_path: Path, name: str, problem: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(BaselineError) as refused:
        FILE.write(tmp_path / name, Body(1))
    assert str(refused.value) == f"{tmp_path / name} cannot be written ({problem}): make room"
    assert [entry.name for entry in tmp_path.iterdir()] == ["fifo"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, failure: BaseException
) -> None:
    path = tmp_path / "ours.json"
    FILE.write(path, Body(1))

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(os, call, fail)
    with pytest.raises((BaselineError, KeyboardInterrupt)) as failed:
        FILE.write(path, Body(2))
    if isinstance(failure, OSError):
        assert str(failed.value) == f"{path} cannot be written (No space left on device): make room"
    assert FILE.read(path) == Body(1)
    assert list(tmp_path.iterdir()) == [path]
