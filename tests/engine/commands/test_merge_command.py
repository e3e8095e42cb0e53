"""`gpugate merge DIR ... --output NIGHT`: the files of the night, and its exit status."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.commands.cli import main
from gpugate.judging.decide_again import decide_again
from gpugate.store import run_file
from tests.engine.session.test_merging import split, whole_night
from tests.support.stored_runs import case
from tests.support.tiny_project import TinyProject, check_no_traceback


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """The folders of the two shards of a green night, in the folder of that night."""
    return write_shards(tmp_path, exit_status=0)


def write_shards(folder: Path, exit_status: int) -> list[Path]:
    night = whole_night(folder / "whole.json", case("a"), case("b"), exit_status=exit_status)
    paths = [folder / "night/shards" / str(one.shard.number) for one in split(night, 2)]
    for path, one in zip(paths, split(night, 2), strict=True):
        path.mkdir(parents=True)
        run_file.write(path / "run.json", one.run)
    return paths


def merge(folder: Path, *shards: Path) -> int:
    return main(["merge", *map(str, shards), "--output", str(folder / "night")])


def test_shards_become_a_night_with_its_summary_and_its_page(
    tmp_path: Path, shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert merge(tmp_path, *shards) == 0
    words = "gate: 2 cases, all good; 2 cases measured (2 PASS), in 12 s, seed 7"
    assert capsys.readouterr().out == f"{tmp_path}/night of 2 shards: {words}\n"
    night = tmp_path / "night"
    assert {path.name for path in night.iterdir()} >= {"run.json", "summary.md", "night.html", "shards"}
    assert (night / "summary.md").read_text().startswith("### gate: 2 cases, all good")
    assert main(["verdict", str(night)]) == 0
    assert main(["replay", str(night)]) == 0


def test_a_held_verdict_makes_the_night_red_whatever_exit_status_its_shard_has(tmp_path: Path) -> None:
    shards = write_shards(tmp_path, exit_status=0)
    run = run_file.read(shards[0] / "run.json")
    name = next(iter(run.cases)).split("/")[1]
    regressed = replace(run, cases={f"tiny/{name}/cuda": case(name, 2.8, held=("throughput",))})
    run_file.write(shards[0] / "run.json", regressed)
    run_file.write(shards[0] / "run.json", decide_again(run_file.read(shards[0] / "run.json")))
    assert merge(tmp_path, *shards) == 1
    assert main(["verdict", str(tmp_path / "night")]) == 1


def test_a_folder_without_a_run_is_a_missing_shard(
    tmp_path: Path, shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (shards[1] / "run.json").unlink()
    assert merge(tmp_path, *shards) == 1
    said, complaints = capsys.readouterr()
    assert (
        complaints == f"gpugate merge: {shards[1]}/run.json does not exist, so its shard ended before its first case\n"
    )
    assert "\nERROR: shard 2 of 2 is missing: measure it with --perf-shard 2/2, and merge again\n" in said
    assert "shard 2 of 2 is missing" in (tmp_path / "night/summary.md").read_text()
    assert main(["verdict", str(tmp_path / "night")]) == 2


def test_what_cannot_be_merged_writes_nothing(
    tmp_path: Path, shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert merge(tmp_path, shards[0], shards[0]) == 2
    assert merge(tmp_path, tmp_path / "nowhere") == 2
    assert merge(tmp_path, tmp_path / "whole.json") == 2
    assert main(["merge", *map(str, shards), "--output", str(shards[0])]) == 2
    (shards[1] / "run.json.outdated").touch()
    assert merge(tmp_path, *shards) == 2
    (shards[1] / "run.json.outdated").unlink()
    (shards[1] / "run.json").write_text("{}")
    assert merge(tmp_path, *shards) == 2
    refused = [line for line in capsys.readouterr().err.splitlines() if "does not exist" not in line]
    said = ["both shard 1 of 2", "none of the 1 shards has a run", "is a whole night", "is the folder of a shard"]
    said += ["is outdated", "cannot be used because its field 'format'"]
    assert [part in line for part, line in zip(said, refused, strict=True)] == [True] * 6
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_of_another_gpugate_is_refused(
    tmp_path: Path, shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_file.read(shards[1] / "run.json")
    other = replace(run.environment, packages={**run.environment.packages, "gpugate": "0.0.1"})
    run_file.write(shards[1] / "run.json", replace(run, environment=other))
    assert merge(tmp_path, *shards) == 2
    assert "was decided by gpugate 0.0.1" in capsys.readouterr().err


def test_two_shards_of_a_gate_are_one_gate(tiny: TinyProject, recorded_project: TinyProject) -> None:
    """A project's gate, measured in two sessions; one of its cases has no record, so that the gate is red."""
    tiny.take_baseline(recorded_project)
    tiny.workload(
        optimizations='Optimization("quick", quick, {"cpu": 0.01}), Optimization("new", quick, {"cpu": 0.01})'
    )
    folders = [f"night/shards/{number}" for number in (1, 2)]
    statuses = [
        tiny.run("--gate", "--against=off", "--perf-device=cpu", f"--perf-shard={number}/2", f"--perf-report={folder}")
        for number, folder in enumerate(folders, 1)
    ]
    assert sorted(ended.status for ended in statuses)[1] == 1
    assert main(["merge", *(str(tiny.path / folder) for folder in folders), "--output", str(tiny.path / "night")]) == 1
    night = tiny.json("night/run.json")
    assert set(night["cases"]) == {"tiny/quick/cpu", "tiny/new/cpu"}
    assert (night["gate"], night["exit_status"], night["interrupted"], night["shard"]) == (True, 1, False, None)
    assert night["cases"] == {
        **tiny.json("night/shards/1/run.json")["cases"],
        **tiny.json("night/shards/2/run.json")["cases"],
    }
    for ended in statuses:
        check_no_traceback(ended.text)
