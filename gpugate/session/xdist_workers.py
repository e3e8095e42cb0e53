"""Under pytest-xdist: at most one worker per GPU, each with a GPU of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpugate.errors import OptionError
from gpugate.machine import nvml

if TYPE_CHECKING:
    import pytest

    from gpugate.session.options import Options

# In the output of a worker, which xdist brings to the controller: its results, or the reason of its refusal.
RESULTS, REFUSAL = "gpugate", "gpugate-refusal"


def worker_number(config: pytest.Config) -> int | None:
    """0 for worker gw0 and so on; None in the controller and without xdist."""
    worker_id = getattr(config, "workerinput", {}).get("workerid")
    return None if worker_id is None else int(worker_id.removeprefix("gw"))


def check_workers(config: pytest.Config, options: Options) -> None:
    """Raises OptionError for more workers than GPUs, and for recording in any worker: neither is a measurement."""
    workers = _worker_count(config.getoption("tx", None) or ())
    if not workers or worker_number(config) is not None:
        return
    gpus = nvml.gpu_count()
    # A worker takes the GPU of its own number; a device that was named is one device for all of them.
    if workers > (max(1, gpus) if options.device in ("auto", "cuda") else 1):
        where = f"on {gpus} GPU(s)" if options.device == "auto" else f"on {options.device}, with {gpus} GPU(s) here"
        raise OptionError(f"-n {workers} would run {workers} tests at once {where}, which is no measurement: use -n 0")
    if options.update_baselines:
        raise OptionError(f"--update-baselines with -n {workers} would record workers that share a host: use -n 0")
    if workers > 1:
        config.option.dist = "loadgroup"  # all tests of a case in one worker, which measures it once


def _worker_count(specs: Sequence[str]) -> int:
    """The number of workers in xdist's `--tx`, where `3*popen` means three."""
    counts = (spec.partition("*")[0] if "*" in spec else "1" for spec in specs)
    return sum(int(count) if count.isdecimal() else 1 for count in counts)
