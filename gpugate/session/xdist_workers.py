"""Under pytest-xdist: one worker per GPU at most, each with its own GPU, and the results brought together."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gpugate.errors import OptionError

if TYPE_CHECKING:
    import pytest

    from gpugate.results.run import RunResult
    from gpugate.session.options import Options

OUTPUT_KEY = "gpugate"


def worker_number(config: pytest.Config) -> int | None:
    """0 for worker gw0 and so on; None in the controller and without xdist."""
    worker_id = getattr(config, "workerinput", {}).get("workerid")
    return None if worker_id is None else int(worker_id.removeprefix("gw"))


def check_workers(config: pytest.Config, options: Options) -> None:
    """Raises OptionError for more workers than GPUs, and for recording in any worker: neither is a measurement."""
    workers = _worker_count(config.getoption("tx", None) or ())
    if not workers or worker_number(config) is not None:
        return
    from gpugate.machine.nvml import gpu_count

    gpus = gpu_count()
    # A worker takes the GPU of its own number; a device that was named is one device for all of them.
    if workers > (max(1, gpus) if options.device in ("auto", "cuda") else 1):
        where = f"on {gpus} GPU(s)" if options.device == "auto" else f"on {options.device}, with {gpus} GPU(s) here"
        raise OptionError(f"-n {workers} would run {workers} tests at once {where}, which is no measurement: use -n 0")
    if options.update_baselines:
        raise OptionError(f"--update-baselines with -n {workers} would record workers that share a host: use -n 0")
    if workers > 1:
        config.option.dist = "loadgroup"  # all tests of a case in one worker, which measures it once


def _worker_count(specs: Sequence[str]) -> int:
    """Of xdist's `--tx`, where `3*popen` means three."""
    counts = (spec.partition("*")[0] if "*" in spec else "1" for spec in specs)
    return sum(int(count) if count.isdecimal() else 1 for count in counts)


def send(config: pytest.Config, run: RunResult) -> None:
    """Hands a worker's results to the controller."""
    from gpugate.store.codec import to_json

    output: dict[str, Any] = config.workeroutput  # type: ignore[attr-defined]
    output[OUTPUT_KEY] = json.dumps(to_json(run))


def received(output: dict[str, Any], so_far: RunResult | None) -> RunResult | None:
    """What a worker sent, joined with what the others sent before."""
    from gpugate.results.run import RunResult
    from gpugate.results.series_of_cases import ladders, sweeps
    from gpugate.store.codec import from_json
    from gpugate.store.json_file import parse

    text = output.get(OUTPUT_KEY)
    if text is None:
        return so_far
    run = from_json(RunResult, parse(text))
    if so_far is None:
        return run
    cases = {**so_far.cases, **run.cases}
    return dataclasses.replace(
        so_far,
        cases=cases,
        ladders=ladders(cases),
        sweeps=sweeps(cases),
        yardsticks=[*so_far.yardsticks, *run.yardsticks],
        source_hashes={**so_far.source_hashes, **run.source_hashes},
        interrupted=so_far.interrupted or run.interrupted,
        problems=list(dict.fromkeys([*so_far.problems, *run.problems])),
        wall_s=max(so_far.wall_s, run.wall_s),
    )
