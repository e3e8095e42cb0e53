"""Under pytest-xdist: one worker per GPU at most, each with its own GPU, and the results brought together."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from gpugate.errors import OptionError

if TYPE_CHECKING:
    import pytest

    from gpugate.result import RunResult

OUTPUT_KEY = "gpugate"


def worker_number(config: pytest.Config) -> int | None:
    """0 for worker gw0 and so on; None in the controller and without xdist."""
    worker_id = getattr(config, "workerinput", {}).get("workerid")
    return None if worker_id is None else int(worker_id.removeprefix("gw"))


def check_workers(config: pytest.Config, record: bool) -> None:
    """Raises OptionError for more workers than GPUs, and for recording in any worker: neither is a measurement."""
    workers = len(config.getoption("tx", None) or ())
    if not workers or worker_number(config) is not None:
        return
    from gpugate.environment import gpu_count

    gpus = gpu_count()
    if workers > max(1, gpus):
        raise OptionError(
            f"-n {workers} would run {workers} tests at once on {gpus} GPU(s), which is no measurement: use -n 0"
        )
    if record:
        raise OptionError(f"--update-baselines with -n {workers} would record workers that share a host: use -n 0")


def send(config: pytest.Config, run: RunResult) -> None:
    """Hands a worker's results to the controller."""
    from gpugate.codec import to_json

    output: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]
    output[OUTPUT_KEY] = json.dumps(to_json(run))


def received(output: dict[str, Any], so_far: RunResult | None) -> RunResult | None:
    """What a worker sent, joined with what the others sent before."""
    from gpugate.codec import from_json, parse
    from gpugate.result import RunResult

    text = output.get(OUTPUT_KEY)
    if text is None:
        return so_far
    run = from_json(RunResult, parse(text))
    if so_far is None:
        return run
    return dataclasses.replace(
        so_far,
        cases={**so_far.cases, **run.cases},
        yardsticks=[*so_far.yardsticks, *run.yardsticks],
        source_hashes={**so_far.source_hashes, **run.source_hashes},
        interrupted=so_far.interrupted or run.interrupted,
        wall_s=max(so_far.wall_s, run.wall_s),
    )
