"""The beginning of a session: its device, the description of the machine, and its records."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpugate.catalogue import Catalogue
from gpugate.errors import OptionError
from gpugate.machine.environment import describe, machine_name
from gpugate.results.run import Mode, RunResult
from gpugate.session.options import AUTO, DEFAULT_PROCESSES, OFF, Options
from gpugate.session.perf_session import PerfSession
from gpugate.session.time_plan import LAST_START_S, LEAST_GATED_S, share_time
from gpugate.store import baseline, profiles_file
from gpugate.store.provenance import read_provenance
from gpugate.store.version import find_commit
from gpugate.units import format_now
from gpugate.workload import Case

if TYPE_CHECKING:
    import torch

    from gpugate.session.workers import Worker


def choose_device(asked: str, worker: Worker | None = None) -> torch.device:
    """The device to measure on: the one that the user names, else CUDA where there is a GPU, else the CPU.

    Raises OptionError for a GPU that is not there, also for that of a worker.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if worker is not None and worker.gpus and count == 0:
        gpus = ", ".join(worker.gpus)
        raise OptionError(f"torch does not see one of the GPUs {gpus}: leave it out of CUDA_VISIBLE_DEVICES")
    if asked == "cpu" or (asked == "auto" and count == 0):
        return torch.device("cpu")
    index = asked.partition(":")[2]
    number = int(index) if index else 0
    if number >= count:
        there = f"torch sees {count} GPU(s)" if count else "torch sees no GPU"
        raise OptionError(f"there is no device {asked!r}, {there}: use auto, cpu or an index that is there")
    # Events, graphs and the profiler go to the current device, whatever the tensors' device is.
    torch.cuda.set_device(number)  # cuda only
    return torch.device("cuda", number)  # cuda only


def _read_gpu(device: torch.device) -> tuple[str | None, int | None]:
    """The UUID and the bytes of memory of a GPU."""
    import torch

    if device.type != "cuda":
        return None, None
    properties = torch.cuda.get_device_properties(device)  # cuda only
    return str(properties.uuid), int(properties.total_memory)


def _keep_compiling_quiet() -> None:
    """Detaches pytest from the logger `torch.__trace`: pytest attaches to loggers that do not propagate, and torch then
    logs every compilation there. Failed tests showed hundreds of empty lines."""
    trace = logging.getLogger("torch.__trace")
    trace.propagate = True
    if "TORCH_TRACE" not in os.environ:
        trace.handlers.clear()


def _check_settings(given: Mapping[str, str], selected: Collection[Case]) -> None:
    """Raises OptionError for a name of `--perf-set` that no workload of the selected cases declares."""
    known = {name: meaning for case in selected for name, meaning in case.workload.settings.items()}
    for name in sorted(given.keys() - known):
        use = "; ".join(f"{name}, {meaning}" for name, meaning in sorted(known.items()))
        advice = f"they know {use}" if known else "they know none: leave it out"
        raise OptionError(f"--perf-set {name}={given[name]} is for none of the selected workloads: {advice}")


def _describe_search(session: PerfSession) -> str | None:
    """The sentence about a machine without any record, where other machines have some; None for every other machine."""
    machine, baselines = machine_name(session.environment), session.options.baselines_path
    recorded = {path.relative_to(baselines).parts[0] for path in baselines.glob("*/**/*.json")}
    others = sorted(recorded - {profiles_file.FOLDER})
    if session.records.files or machine in others or not others or session.options.update_baselines:
        return None
    threads = os.environ.get("OMP_NUM_THREADS")
    limited = session.device.type == "cpu" and threads is not None
    because = f" (OMP_NUM_THREADS={threads} counts as so many cores)" if limited else ""
    return f"this machine is {machine}{because}, and the records are of {', '.join(others)}"


def open_session(options: Options, root: Path, catalogue: Catalogue, node_ids: Mapping[str, str]) -> PerfSession:
    """Describes the device and reads its baselines.

    Raises OptionError for a device that is not there and for a name in `--perf-set` that no selected workload knows,
    CompareError for an `--against` that is not there, and BaselineError for a file that cannot be trusted.
    """
    selected = [case for case in catalogue.cases() if case.id in node_ids]
    if not options.fresh:  # a fresh process has all settings of its parent, and only some of its cases
        _check_settings(options.settings, selected)
        if options.against not in (AUTO, OFF):
            find_commit(options.against, root)
    worker = options.worker
    device = choose_device(options.device, worker)
    gpu_uuid, memory_bytes = _read_gpu(device)
    _keep_compiling_quiet()
    now = format_now()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    # Interrupted until `finish` changes it: a killed process leaves a file that is marked as interrupted.
    result = RunResult(
        environment=describe(device),
        started_at=now if worker is None else worker.started_at,
        seed=seed if worker is None else worker.seed,
        command=options.command,
        gate=options.gate,
        recording=options.update_baselines,
        mutated=str(options.fault) if options.fault else None,
        interrupted=True,
        provenance=read_provenance(root, options.result_paths, gpu_uuid),
        memory_bytes=memory_bytes,
        shard=options.shard,
    )
    session = PerfSession(options, device, root, result, node_ids)
    files: dict[str, baseline.BaselineFile] = {}
    if not options.own_inputs:
        recorded = baseline.load_all(session.records.folder)
        known = {workload.name for workload in catalogue.workloads()}
        files = {name: file for name, file in recorded.items() if name in known}
        whole = files if recorded.keys() <= known or catalogue.is_partial(root) else recorded
        session.records.unused = baseline.find_unused(whole, {case.id for case in catalogue.cases()})
    session.records.files = {} if options.update_baselines else files
    session.proofs.compute_keys(selected)
    session.doubt.cases = sum(map(session.can_measure, selected))
    if device.type == "cpu" and not options.budget_given:
        looks = result.mode is Mode.DEVELOPER  # a gate measures a case for as long as a process of a recording does
        processes = 1 if looks else options.processes or DEFAULT_PROCESSES
        shared_s = share_time(session.doubt.cases * processes)
        session.shared_s = shared_s if looks else max(LEAST_GATED_S, shared_s)
        if looks and options.fault is None and options.profiling is None:  # a fault is to be caught in every case
            session.doubt.end_s = LAST_START_S
    if not options.fresh and (searched := _describe_search(session)) is not None:
        session.notes.add(searched)
    return session
