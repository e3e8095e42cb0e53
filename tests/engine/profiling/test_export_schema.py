"""Exports that cannot be used, or only in part: one sentence each, with what to do next."""

import os
import random
import sqlite3
import sys
from pathlib import Path

import pytest

from gpugate.profiling.export_schema import ProfileError, open_export
from gpugate.profiling.summary import summarize
from tests.support.profile_exports import ExportWriter

MS = 1_000_000


def export(folder: Path, schema_version: str = "3.24.14") -> Path:
    writer = ExportWriter(folder / "report.sqlite", schema_version)
    writer.step(1 * MS, 11 * MS)
    for number in range(500):
        writer.launch(2 * MS + number * 10_000, 2 * MS + number * 10_000 + 5000)
    return writer.written()


def changed(path: Path, script: str) -> Path:
    with sqlite3.connect(path) as connection:
        connection.executescript(script)
    connection.close()
    return path


def said(path: Path, steps: int | None = None) -> str:
    with pytest.raises(ProfileError) as raised:
        summarize(path, steps)
    words = str(raised.value)
    assert str(path) in words
    assert "\n" not in words
    return words


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file or directory): give a .nsys-rep or its SQLite export" in said(tmp_path / "no.sqlite")


def test_a_folder(tmp_path: Path) -> None:
    assert "Is a directory" in said(tmp_path)


def test_what_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(b"NVIDIA " * 1000)
    assert "cannot be read (file is not a database): give a .nsys-rep" in said(path)


def test_a_database_of_someone_else(tmp_path: Path) -> None:
    path = changed(tmp_path / "other.sqlite", "CREATE TABLE mail (id)")
    assert "has no table that nsys writes" in said(path)


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_a_file_that_was_cut_off(tmp_path: Path, part: float) -> None:
    path = export(tmp_path)
    os.truncate(path, int(path.stat().st_size * part))
    assert "cannot be read (" in said(path)


def test_a_file_whose_middle_was_overwritten(tmp_path: Path) -> None:
    path = export(tmp_path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 2 * 4096))
    assert "or export it again with `nsys export" in said(path)


def test_a_report_that_marks_no_steps(tmp_path: Path) -> None:
    path = changed(export(tmp_path), "DELETE FROM NVTX_EVENTS WHERE eventType = 59")
    assert "contains no step (an NVTX range 'step' of the domain 'gpugate'): profile with" in said(path)


def test_a_report_with_other_steps_than_were_captured(tmp_path: Path) -> None:
    assert "contains 1 steps and not 3: profile again" in said(export(tmp_path), steps=3)


def test_a_report_of_a_program_that_called_no_cuda(tmp_path: Path) -> None:
    path = changed(export(tmp_path), "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME")
    assert "no CUDA call begins in its steps: profile with --trace=cuda,nvtx" in said(path)


def test_a_report_that_holds_neither_steps_nor_calls(tmp_path: Path) -> None:
    path = changed(export(tmp_path), "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME; DROP TABLE NVTX_EVENTS")
    assert "no step and no CUDA call" in said(path, steps=3)


def test_a_report_without_kernels_is_summarized_and_says_so(tmp_path: Path) -> None:
    found = summarize(changed(export(tmp_path), "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL"))
    assert found.counters["kernel_launches"] == 500
    assert (found.kernels, found.gaps, found.active.window_ms) == ((), (), 0)
    assert found.notes == ("no kernel ran because of the steps: profile with --trace=cuda if some should have",)


def test_a_table_without_a_column_that_matters_is_left_out_and_named(tmp_path: Path) -> None:
    script = "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN correlationId TO correlation"
    found = summarize(changed(export(tmp_path), script))
    assert found.counters["kernels"] == 0
    assert found.notes[0].startswith(
        "kernels were not read, because CUPTI_ACTIVITY_KIND_KERNEL has no column correlationId:"
    )


def test_a_column_that_only_helps_may_be_missing(tmp_path: Path) -> None:
    drops = "".join(
        f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN {name};"
        for name in ("globalPid", "graphNodeId", "demangledName", "gridX", "deviceId")
    )
    found = summarize(changed(export(tmp_path), drops))
    assert (found.kernels[0].name, found.kernels[0].count, found.kernels[0].grid) == (
        "void at::native::add",
        500,
        (0, 1, 1),
    )
    assert found.notes == ()


def test_names_that_are_missing_or_not_utf8_are_no_reason_to_fail(tmp_path: Path) -> None:
    broken = "UPDATE StringIds SET value = CAST(x'ff61' AS TEXT) WHERE value LIKE '%add()'"
    assert summarize(changed(export(tmp_path), broken)).kernels[0].name == "\ufffda"
    steps = "UPDATE NVTX_EVENTS SET text = 'step' WHERE eventType = 59; DROP TABLE StringIds"
    assert {kernel.name for kernel in summarize(changed(export(tmp_path), steps)).kernels} == {"unnamed"}


def test_the_export_is_never_written(tmp_path: Path) -> None:
    path = export(tmp_path)
    before = path.read_bytes()
    summarize(path)
    with open_export(path) as found, pytest.raises(sqlite3.OperationalError, match="readonly"):
        found.run("CREATE TABLE main.ours (id)")
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not tell the kinds of SQLite's errors apart")
def test_a_wrong_query_of_ours_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such column"), open_export(export(tmp_path)) as found:
        found.run("SELECT nonsense FROM kernel")


def test_a_path_may_hold_what_a_uri_must_not(tmp_path: Path) -> None:
    folder = tmp_path / "a b?mode=rw#%20"
    folder.mkdir()
    assert summarize(export(folder)).steps == 1


REAL = Path(__file__).parents[2] / "data/two-layer-net+all+cuda.optimized.sqlite"
TREACHEROUS = (158, 170, 255)  # seeds that spoil a name, which SQLite itself finds nothing wrong with


@pytest.mark.parametrize("seed", [*range(20), *TREACHEROUS])
def test_an_export_with_a_few_bytes_changed_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    chosen, content = random.Random(seed), bytearray(REAL.read_bytes())  # noqa: S311 no secret
    for _ in range(chosen.randint(1, 10)):
        content[chosen.randrange(len(content))] = chosen.randrange(256)
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(content)
    told = str(path)
    try:
        summarize(path)
    except ProfileError as error:
        told = str(error)
    assert str(path) in told
    assert "\n" not in told


def test_a_number_that_is_missing_is_damage(tmp_path: Path) -> None:
    loose = """
        CREATE TABLE loose AS SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL;
        DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL;
        ALTER TABLE loose RENAME TO CUPTI_ACTIVITY_KIND_KERNEL;
        UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = NULL;
    """
    path = changed(export(tmp_path), loose)
    assert "cannot be read (" in said(path)
