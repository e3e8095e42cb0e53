"""The trials of a folder, which no foreign trial gets into."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpugate.machine.environment import Environment
from tests.support.simulated_trials import Noise, trials
from tools.trust.trials import FILE, Conditions, TrialsFile, TrustError, read_all, trials_path

GPU = Environment(
    "cuda", "NVIDIA H200", "a CPU", 16, "3.12.3", packages={"torch": "2.11.0", "gpugate": "0.1.0"}, driver="580.1"
)
CONDITIONS = Conditions(GPU, 6.0, {"toy": "0123", "net": "4567"})
NO_GPU = {"toy/fast/cuda": "needs a CUDA GPU"}


def file_of(process: int, **changes: object) -> TrialsFile:
    taken = trials(Noise(pair=0.001), processes=1, repeats=1, seed=process)
    known = tuple(replace(trial, process=process) for trial in taken)
    return replace(TrialsFile(process, CONDITIONS, ("toy/fast/cpu",), NO_GPU, known), **changes)  # type: ignore[arg-type]


def keep(folder: Path, *files: TrialsFile) -> None:
    for file in files:
        FILE.write(trials_path(folder, file.process), file)


def test_a_copy_does_not_count_twice(tmp_path: Path) -> None:
    keep(tmp_path, file_of(1))
    (tmp_path / "trials-002.json").write_bytes((tmp_path / "trials-001.json").read_bytes())
    with pytest.raises(TrustError, match=r"trials-002.json holds the trials of process 1: it is a copy or was renamed"):
        read_all(tmp_path)


OTHER_DRIVER = replace(CONDITIONS, environment=replace(GPU, driver="590.2"))


@pytest.mark.parametrize(
    ("now", "differences"),
    [
        (
            replace(OTHER_DRIVER, budget_s=0.5, source_hashes={"net": "ffff"}),
            "driver 580.1 -> 590.2; budget 6 s -> 0.5 s; the source of net changed",
        ),
        (
            replace(CONDITIONS, environment=replace(GPU, packages={"torch": "2.12.0", "gpugate": "0.1.0"})),
            "torch 2.11.0 -> 2.12.0",
        ),
    ],
)
def test_trials_of_other_conditions_are_not_counted_together(tmp_path: Path, now: Conditions, differences: str) -> None:
    keep(tmp_path, file_of(1), file_of(2, conditions=now))
    with pytest.raises(TrustError) as error:
        read_all(tmp_path)
    path = tmp_path / "trials-002.json"
    assert str(error.value) == f"{path} is of other conditions than earlier trials ({differences}): give another folder"


def test_another_gpu_of_the_kind_and_another_workload_are_the_same_conditions(tmp_path: Path) -> None:
    other = replace(CONDITIONS, environment=replace(GPU, gpu_index=3), source_hashes={"unheard-of": "ffff"})
    keep(tmp_path, file_of(1), file_of(2, conditions=other))
    taken = read_all(tmp_path)
    assert len(taken.trials) == 2 * len(file_of(1).trials)
    assert taken.last_process == 2
