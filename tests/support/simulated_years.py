"""A year of nights of all 87 cases, drawn around the records of an H200 with the variation between its processes.

The commit changes every third night, the driver on night 120. Two cases change their level; a second machine measures
each seventh night, if wanted.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from gpugate.machine.environment import Environment
from gpugate.results.run import CaseNight, Metric, Night, Provenance
from gpugate.results.summary import History
from gpugate.results.verdict import Outcome
from gpugate.store import baseline
from tests.support.recorded_nights import FOLDER

FIRST = datetime.datetime(2025, 11, 24, 3, 0, tzinfo=datetime.timezone.utc)
NIGHT_OF_DRIVER = 120
# Shares by which the speedup changes from a night on.
LEVELS = {"video/segment/cuda-graph/cuda": (200, -0.08), "resnet50-inference/cudnn-fused/cuda": (290, 0.06)}


def simulated_nights(nights: int = 365, second_machine: bool = False) -> list[Night]:
    draw = random.Random(20261124)  # noqa: S311  # the same in every run
    histories, environment = _records()
    found = list[Night]()
    for number in range(nights):
        found.append(_night(draw, number, histories, environment, "nvidia-h200-140-gib-700-w", 1.0))
        if second_machine and number % 7 == 0:
            found.append(_night(draw, number, histories, environment, "nvidia-h200-140-gib-500-w", 0.93))
    return found


@cache
def _records() -> tuple[dict[str, History], Environment]:
    files = baseline.load_all(FOLDER)
    entry = next(iter(next(iter(files.values())).cases.values()))
    histories = baseline.histories_of(files)
    return {case_id: current for case_id, (current, _) in histories.items()}, entry.current.environment


def _night(
    draw: random.Random,
    number: int,
    histories: dict[str, History],
    environment: Environment,
    machine: str,
    share: float,
) -> Night:
    driver = "590.10" if number >= NIGHT_OF_DRIVER else environment.driver
    commit = f"{random.Random(number // 3).getrandbits(160):040x}"  # noqa: S311
    return Night(
        name=f"night-{number}",
        started=FIRST + datetime.timedelta(days=number, hours=0 if share == 1 else 6),
        seed=number,
        machine=machine,
        environment=replace(environment, driver=driver),
        source_hashes={},
        provenance=Provenance(
            repository="https://example.org/team/gpugate", commit=commit, branch="main", host=machine
        ),
        interrupted=False,
        cases={one.case_id: one for one in _cases(draw, number, histories, share)},
    )


def _cases(draw: random.Random, number: int, histories: dict[str, History], share: float) -> Iterator[CaseNight]:
    for case_id, history in histories.items():
        cv = min(0.05, history.speedup_cv or 0.01)
        since, change = LEVELS.get(case_id, (0, 0.0))
        level = share * (1 + (change if number >= since else 0.0))
        factor = level * (1 + draw.gauss(0, cv / 2))
        speedup, optimized_ms = history.speedup * factor, history.optimized_ms / factor
        metrics = {
            "speedup": Metric(speedup, speedup * (1 - cv), speedup * (1 + cv)),
            "optimized_ms": Metric(optimized_ms, optimized_ms * (1 - cv), optimized_ms * (1 + cv)),
            "reference_ms": Metric(history.reference_ms),
            "anchor_speedup": Metric(history.speedup),
        }
        yield CaseNight(case_id, Outcome.PASS if level > 0.95 * share else Outcome.REGRESSED, metrics)
