"""`gpugate replay PATH`: stored runs decided again, and the verdicts that this changes."""

from pathlib import Path

import pytest

from gpugate.commands.cli import main
from tests.support.stored_runs import NO_TENSORRT, case, edit, stored


@pytest.fixture
def nights(tmp_path: Path) -> Path:
    """Two nights, the later one first by name: a case that got slower, one that was skipped, one that failed once."""
    folder = tmp_path / "nights"
    folder.mkdir()
    skipped = case("engine", None, skipped=NO_TENSORRT)
    broken = case("broken", None, error="no")
    stored(folder / "b.json", case("net", 3.0), skipped, broken, started_at="2030-01-01T23:30:00+00:00")
    # In UTC half an hour after the other one.
    stored(folder / "a.json", case("net", 2.98), skipped, case("broken"), started_at="2030-01-01T19:00:00-05:00")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_nights_stand_in_the_order_of_their_start_and_nothing_differs(
    nights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(nights)
    assert main(["replay", str(nights)]) == 0
    said, complaints = capsys.readouterr()
    assert said.index("b.json") < said.index("a.json")
    tally = "1 case measured (1 PASS), 1 case skipped, 1 case failed, in 12 s, seed 7"
    assert f"2030-01-01T23:30:00+00:00  b.json  NVIDIA H200: {tally}" in said
    assert "a.json  NVIDIA H200: 2 cases measured (2 PASS), 1 case skipped, in 12 s, seed 7" in said
    assert "2 runs: 0 verdicts now other than stored" in said
    assert "->" not in said
    assert (complaints, contents(nights)) == ("", before)


@pytest.mark.parametrize(
    ("field", "now", "told"),
    [("outcome", "WRONG", "WRONG -> PASS"), ("reasons 0 code", "proven", "PASS, with another reason or other numbers")],
)
def test_what_does_not_follow_from_the_measurements_is_told(
    nights: Path, capsys: pytest.CaptureFixture[str], field: str, now: str, told: str
) -> None:
    edit(nights / "a.json", f"cases tiny/net/cuda verdicts 0 {field}", now)
    assert main(["replay", str(nights)]) == 1
    assert f"equivalence of tiny/net/cuda: {told}" in capsys.readouterr().out


def test_bad_files_are_named_and_the_others_decided(nights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = (nights / "a.json").read_text()
    (nights / "c.json").write_text(good[:3000])
    (nights / "g.json").mkdir()
    before = contents(nights)
    assert main(["replay", str(nights)]) == 2
    said, complaints = capsys.readouterr()
    c, g = complaints.splitlines()
    assert c.startswith(f"gpugate replay: {nights}/c.json cannot be used because it is cut off or not JSON (")
    assert f"{nights}/g.json cannot be read (Is a directory)" in g
    assert "2 runs: 0 verdicts now other" in said
    assert contents(nights) == before


def test_a_run_of_another_version_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.json"
    stored(path, case("pass"))
    edit(path, "environment packages gpugate", "0.0.9")
    assert main(["replay", str(path)]) == 2
    said, complaints = capsys.readouterr()
    assert (said, complaints.count("\n")) == ("", 1)
    assert complaints.startswith(
        f"gpugate replay: {path} was decided by gpugate 0.0.9 and this is gpugate 0.1.0, whose"
    )
