"""The trials of a folder, which no foreign trial gets into."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.machine.environment import Environment
from gpugate.store.codec import from_json, to_json
from tests.support.simulated_trials import Noise, trials
from tests.support.stored_runs import edit
from tests.support.tiny_project import ROOT
from tools.trust.command import main
from tools.trust.trials import FILE, Conditions, Taken, TrialsFile, TrustError, read_all, trials_path

GPU = Environment(
    "cuda", "NVIDIA H200", "a CPU", 16, "3.12.3", packages={"torch": "2.11.0", "gpugate": "0.1.0"}, driver="580.1"
)
CONDITIONS = Conditions(GPU, 6.0, {"toy": "0123", "net": "4567"})
NO_GPU = {"toy/fast/cuda": "needs a CUDA GPU"}


def file_of(process: int, **changes: object) -> TrialsFile:
    taken = trials(Noise(pair=0.001), processes=1, repeats=1, seed=process)
    known = tuple(replace(trial, process=process) for trial in taken)
    return replace(TrialsFile(process, CONDITIONS, ("toy/fast/cpu",), NO_GPU, known), **changes)  # type: ignore[arg-type]


def rounded(file: TrialsFile) -> TrialsFile:
    """As times are written, which tests of the codec are about."""
    return from_json(TrialsFile, to_json(file))


def keep(folder: Path, *files: TrialsFile) -> None:
    for file in files:
        FILE.write(trials_path(folder, file.process), file)


def test_a_folder_is_read_as_one(tmp_path: Path) -> None:
    assert read_all(tmp_path) == Taken()
    other = file_of(
        12, conditions=replace(CONDITIONS, source_hashes={"third": "89ab"}), skipped={"third/x/cuda": "why"}
    )
    keep(tmp_path, file_of(2), other)
    for name in ("trials-1.json.bak", "mytrials-001.json", "trials-x.json", "trust.json", ".trials-001.json.7.tmp"):
        (tmp_path / name).write_text("no trials", encoding="utf-8")
    taken = read_all(tmp_path)
    assert taken.trials == rounded(file_of(2)).trials + rounded(other).trials
    assert taken.conditions == replace(CONDITIONS, source_hashes={"toy": "0123", "net": "4567", "third": "89ab"})
    assert taken.skipped == {**NO_GPU, "third/x/cuda": "why"}
    assert taken.last_process == 12


def test_a_copy_does_not_count_twice(tmp_path: Path) -> None:
    keep(tmp_path, file_of(1))
    (tmp_path / "trials-002.json").write_bytes((tmp_path / "trials-001.json").read_bytes())
    with pytest.raises(TrustError, match=r"trials-002.json holds the trials of process 1: it is a copy or was renamed"):
        read_all(tmp_path)


OTHER_DRIVER = replace(CONDITIONS, environment=replace(GPU, driver="590.2"))
OTHER_PACKAGES = replace(CONDITIONS, environment=replace(GPU, packages={"torch": "2.12.0", "gpugate": "0.2.0"}))
OTHER_SOURCE = replace(CONDITIONS, source_hashes={"toy": "ffff"})
OTHER_EVERYTHING = replace(OTHER_DRIVER, budget_s=0.5, source_hashes={"net": "ffff"})


@pytest.mark.parametrize(
    ("now", "differences"),
    [
        (OTHER_DRIVER, ["driver 580.1 -> 590.2"]),
        (OTHER_PACKAGES, ["gpugate 0.1.0 -> 0.2.0", "torch 2.11.0 -> 2.12.0"]),
        (replace(CONDITIONS, budget_s=0.5), ["budget 6 s -> 0.5 s"]),
        (OTHER_SOURCE, ["the source of toy changed"]),
        (OTHER_EVERYTHING, ["driver 580.1 -> 590.2", "budget 6 s -> 0.5 s", "the source of net changed"]),
        (replace(CONDITIONS, environment=replace(GPU, gpu_index=3)), []),  # another GPU of the same kind
        (replace(CONDITIONS, source_hashes={"unheard-of": "ffff"}), []),
        (CONDITIONS, []),
    ],
)
def test_trials_of_other_conditions_are_not_counted_together(
    tmp_path: Path, now: Conditions, differences: list[str]
) -> None:
    assert CONDITIONS.differences(now) == differences
    keep(tmp_path, file_of(1), file_of(2, conditions=now))
    if not differences:
        assert len(read_all(tmp_path).trials) == 2 * len(file_of(1).trials)
        return
    with pytest.raises(TrustError) as error:
        read_all(tmp_path)
    told = "; ".join(differences)
    path = tmp_path / "trials-002.json"
    assert str(error.value) == f"{path} is of other conditions than earlier trials ({told}): give another folder"


def test_a_source_is_compared_with_whichever_process_knew_it(tmp_path: Path) -> None:
    keep(tmp_path, file_of(1, conditions=replace(CONDITIONS, source_hashes={"net": "4567"})), file_of(2))
    keep(tmp_path, file_of(3, conditions=OTHER_SOURCE))
    with pytest.raises(TrustError, match=r"trials-003.json is of other conditions .*\(the source of toy changed\)"):
        read_all(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("trials 0 slowdown", -1, "trials[0].slowdown is -1, not greater than or equal to 0"),
        ("trials 0 process", 0, "trials[0].process is 0, not greater than or equal to 1"),
        ("conditions budget_s", 0, "conditions.budget_s is 0, not greater than or equal to 1e-30"),
    ],
)
def test_a_folder_of_trials_with_a_value_that_means_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object, words: str
) -> None:
    path = tmp_path / "trials-001.json"
    shutil.copy(ROOT / "results/cpu/trust/trials-001.json", path)
    edit(path, field, value)
    assert main(["--report-only", "--output", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"python -m tools.trust: {path} cannot be used because " in said
    assert words in said
    assert said.endswith(": delete it and take its trials again\n")
    assert said.count("\n") == 1
