"""One process of trials, run in this one: the trials that it takes, and those that are left when a side fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpugate.catalogue import catalogue
from gpugate.machine.environment import describe
from gpugate.measurement import run
from gpugate.workload import Case, Needs, Optimization, Side, Size, Workload
from tests.support.tiny_project import PROMISE, QUICK, TinyProject
from tools.trust import worker as module
from tools.trust.plan import Plan
from tools.trust.trials import FILE, SLOWDOWNS, TrialsFile, TrustError
from tools.trust.worker import TrialTaker

CASE = "tiny/quick/cpu"
USAGE_ERROR = 4
BUDGET_S = 0.01  # over before a second build: a trial is two builds and eight pairs, after one build of none
SLOWED_TAKEN = {str(slowdown): 1 for slowdown in SLOWDOWNS[1:]}
NO_GPU = "needs a CUDA GPU, and torch sees none: run it on a machine with one"
SOME_BUILDS = """
built = []

def quick(context):
    built.append(1)
    if len(built) > {builds}:
        raise RuntimeError("CUDA error: unspecified launch failure\\nmore of it")
    return sleeping(1)
"""
BREAKS_IN_A_STEP = """
import itertools

built = itertools.count(1)

def quick(context):
    number = next(built)

    def step(x):
        if number == 6:
            raise RuntimeError("CUDA error: device lost")
        return x + x

    return Side(step)
"""
ENDS_EVERYTHING = """
def quick(context):
    raise SystemExit("bye")
"""


@dataclass(frozen=True)
class Taken:
    """The end of the process; `file` is None where none was written."""

    status: int
    done: bool
    text: str
    error: str
    file: TrialsFile | None

    @property
    def slowdowns(self) -> list[float]:
        return [trial.slowdown for trial in self.file.trials] if self.file else []


@dataclass(frozen=True)
class Worker:
    tiny: TinyProject
    pytester: pytest.Pytester

    def plan(self, aa_trials: int = 1, taken: Mapping[str, int] = SLOWED_TAKEN, process: int = 3) -> Plan:
        """By default what is missing are A/A trials of the one case."""
        output = str(self.tiny.path / "trials-003.json")
        return Plan(output, process, 1, BUDGET_S, aa_trials, taken={CASE: taken})

    def take(self, plan: Plan, *words: str) -> Taken:
        catalogue.clear()
        taker = TrialTaker(plan)
        words = ("-p", "gpugate.plugin", "perf_tests", *words)
        ended = self.pytester.runpytest_inprocess(*words, plugins=[taker], no_reraise_ctrlc=True)
        path = Path(plan.output)
        errors = [line for line in ended.stderr.lines if line.startswith("ERROR: ")]
        file = FILE.read(path) if path.exists() else None
        return Taken(int(ended.ret), taker.done, ended.stdout.str(), "\n".join(errors), file)


@pytest.fixture
def worker(tiny: TinyProject, pytester: pytest.Pytester) -> Worker:
    return Worker(tiny, pytester)


def test_it_takes_every_kind_and_leaves_one_file(worker: Worker) -> None:
    files = worker.tiny.files()
    taken = worker.take(worker.plan(taken={}))
    assert (taken.status, taken.done, taken.error) == (0, True, "")
    assert taken.file
    assert Counter(taken.slowdowns) == Counter(SLOWDOWNS)
    assert {(trial.case_id, trial.process) for trial in taken.file.trials} == {(CASE, 3)}
    assert {len(one.pairs) for trial in taken.file.trials for one in trial.instances} == {8}
    assert (taken.file.process, taken.file.case_ids, taken.file.skipped) == (3, (CASE,), {"tiny/quick/cuda": NO_GPU})
    conditions = taken.file.conditions
    assert (conditions.environment, conditions.budget_s) == (describe(torch.device("cpu")), BUDGET_S)
    assert list(conditions.source_hashes) == ["tiny"]
    assert set(worker.tiny.files()) - set(files) == {"trials-003.json"}


def test_both_sides_of_a_trial_are_one_optimization_and_one_is_slowed_as_the_trial_says(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares, seeds = [], set()

    def slow_down(build, share):
        assert share > 0  # an A/A trial has nothing around its step
        return build, share

    def measured(case, context, settings, inputs, report):
        theirs, mine = case.builder(case.reference_name), case.builder(case.optimization.name)
        build, share = mine if isinstance(mine, tuple) else (mine, 0.0)
        assert build is theirs
        assert (build.__name__, settings.budget_s, settings.fault) == (case.reference_name, BUDGET_S, None)
        shares.append(share)
        seeds.add(settings.seed)
        return ()

    monkeypatch.setattr(module, "slow_down", slow_down)
    monkeypatch.setattr(run, "measure_times", measured)
    other = "def other(context):\n    return sleeping(2)\n"
    worker.tiny.workload(QUICK + other, f'{PROMISE}, Optimization("other", other, {{"cpu": 0.01}})')
    taken = worker.take(worker.plan(aa_trials=5, taken={}))
    assert taken.slowdowns == shares
    assert Counter(shares) == {0.0: 10, **dict.fromkeys(SLOWDOWNS[1:], 2)}
    assert len(seeds) == len(shares) / 2


@pytest.mark.parametrize(
    ("build", "trials", "said"),
    [
        (
            SOME_BUILDS.format(builds=5),
            2,
            "quick failed while being built: RuntimeError: CUDA error: unspecified launch failure",
        ),
        (BREAKS_IN_A_STEP, 2, "quick failed while running its first step: RuntimeError: CUDA error: device lost"),
        (ENDS_EVERYTHING, 0, "quick failed while being built: SystemExit: bye"),
    ],
)
def test_what_fails_is_one_sentence_and_the_trials_before_it_are_kept(
    worker: Worker, build: str, trials: int, said: str
) -> None:
    worker.tiny.workload(build)
    taken = worker.take(worker.plan(aa_trials=5))
    assert (taken.status, taken.done) == (USAGE_ERROR, False)
    assert taken.error == f"ERROR: {CASE}: {said}"
    assert taken.slowdowns == [0.0] * trials


def test_no_trial_is_taken_of_a_case_that_spans_gpus(tmp_path: Path) -> None:
    side = Optimization("fast", lambda context: Side(lambda inputs: inputs), {"cpu": 1.0}, needs=Needs(gpus=2))
    net = Workload("net", side.build, lambda context, index: index, {"cpu": Size(1, 0, 0)}, (side,))
    perf: Any = SimpleNamespace(missing=lambda case: None)
    with pytest.raises(TrustError, match="none of 1 selected cases can be measured: cases that span GPUs are not"):
        TrialTaker(Plan(str(tmp_path / "out"), 1, 1, BUDGET_S, 1))._take_all(perf, {"a": Case(net, side, "cpu")})
