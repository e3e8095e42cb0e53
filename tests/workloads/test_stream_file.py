"""The streaming file is written whole or not at all, and written anew when it is damaged."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.support.full_disk import files_up_to
from workloads.streaming.block_checksum import half_sums
from workloads.streaming.stream_file import Layout, StreamFile, beside, open_stream_file

Reading = Callable[[StreamFile, int], torch.Tensor]
LAYOUT = Layout(rows=8, points=16, blocks=12, seed=5)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[StreamFile]:
    opened = open_stream_file(tmp_path, LAYOUT)
    opened.map_pages()
    yield opened
    opened.close()


def read(file: StreamFile, number: int) -> torch.Tensor:
    block = torch.full((LAYOUT.rows, LAYOUT.points), torch.nan)
    file.read_into(number, block)
    return block


def copied(file: StreamFile, number: int) -> torch.Tensor:
    block = torch.full((LAYOUT.rows, LAYOUT.points), torch.nan)
    file.copy_into(number, block)
    return block


def reopened(file: StreamFile) -> StreamFile:
    again = open_stream_file(file.path.parent, LAYOUT)
    again.close()
    return again


def test_has_the_length_and_the_checksums_that_stand_beside_it(file: StreamFile) -> None:
    told = json.loads(beside(file.path).read_bytes())
    assert told["bytes"] == LAYOUT.bytes == file.path.stat().st_size == 12 * 8 * 16 * 4
    assert told["checksums"] == [half_sums(read(file, number)).tolist() for number in range(12)]
    assert file.checksums.tolist() == told["checksums"]
    assert {each.name for each in file.path.parent.iterdir()} == {file.path.name, beside(file.path).name}


def test_holds_seeded_whole_numbers_and_no_block_twice(file: StreamFile, tmp_path: Path) -> None:
    blocks = torch.stack([read(file, number) for number in range(12)])
    assert torch.equal(blocks, blocks.round())
    assert (blocks.min(), blocks.max()) == (-128, 127)
    assert len({tuple(each) for each in file.checksums.tolist()}) == 12
    (tmp_path / "again").mkdir()
    again = open_stream_file(tmp_path / "again", LAYOUT)
    assert again.path.read_bytes() == file.path.read_bytes()
    again.close()
    other = open_stream_file(tmp_path, Layout(8, 16, 12, seed=6))
    assert other.path.read_bytes() != file.path.read_bytes()
    other.close()


def test_an_intact_file_is_reused(file: StreamFile) -> None:
    before = file.path.stat()
    assert reopened(file).path.stat() == before


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    os.truncate(path, LAYOUT.bytes - 1)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def forget(path: Path) -> None:
    beside(path).unlink()


def half_forget(path: Path) -> None:
    beside(path).write_bytes(beside(path).read_bytes()[:-5])


def misremember(path: Path) -> None:
    beside(path).write_text(beside(path).read_text().replace('"format": 1', '"format": 2'))


def binary_nonsense(path: Path) -> None:
    beside(path).write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize("damage", [flip_a_bit, shorten, empty, forget, half_forget, misremember, binary_nonsense])
def test_a_damaged_file_is_written_anew(file: StreamFile, damage) -> None:
    content, told = file.path.read_bytes(), beside(file.path).read_bytes()
    damage(file.path)
    assert torch.equal(reopened(file).checksums, file.checksums)
    assert (file.path.read_bytes(), beside(file.path).read_bytes()) == (content, told)


@pytest.mark.parametrize("how", [read, copied])
def test_a_file_that_became_shorter_is_named(file: StreamFile, how: Reading) -> None:
    os.truncate(file.path, 11 * LAYOUT.block_bytes + 100)
    with pytest.raises(EOFError, match=rf"{file.path} ends at byte {11 * LAYOUT.block_bytes + 100} within block 11"):
        how(file, 11)


def test_a_limit_reached_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    says = rf"{tmp_path / LAYOUT.file_name} cannot be written \({os.strerror(errno.EFBIG)}\), \d+ MiB are free there: "
    with files_up_to(LAYOUT.bytes // 2), pytest.raises(OSError, match=says):
        open_stream_file(tmp_path, LAYOUT)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_behind_goes_when_the_next_one_writes(tmp_path: Path) -> None:
    ended, alive = 2**22 + 1, os.getppid()  # no process has a number above the largest that Linux gives
    for pid in (ended, alive):
        Path(tmp_path, f".{LAYOUT.file_name}.{pid}").write_bytes(b"half")
    opened = open_stream_file(tmp_path, LAYOUT)
    opened.close()
    hidden = sorted(each.name for each in tmp_path.iterdir() if each.name.startswith("."))
    assert hidden == [f".{LAYOUT.file_name}.{alive}"], "of another process that writes right now"
