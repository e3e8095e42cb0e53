"""The GPUs of this machine as NVML reports them, without torch: their names, cores, processes and settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_CORES = 4096  # of a host, whose mask NVML fills


def gpu_count() -> int:
    """Counts the GPUs that CUDA would show to this process, without importing torch; 0 where NVML is absent."""
    names = list_visible_gpus()
    return 1 if any(map(_is_slice, names)) else len(names)


def list_visible_gpus() -> list[str]:
    """Lists the GPUs and MIG slices that CUDA_VISIBLE_DEVICES leaves, each as its value for a process of its own.

    Without the variable the names are UUIDs. The list is empty where NVML is absent.
    """
    with _nvml() as nvml:
        if nvml is None:
            return []
        handles = [_query(nvml, nvml.nvmlDeviceGetHandleByIndex, index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [str(_query(nvml, nvml.nvmlDeviceGetUUID, handle) or "") for handle in handles]
    return _visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))


def read_near_cores(name: str) -> frozenset[int]:
    """Reads the cores on the NUMA node of a GPU of `list_visible_gpus`; empty where NVML does not report them."""
    with _nvml() as nvml:
        if nvml is None:
            return frozenset()
        if name.isdecimal():
            handle = _query(nvml, nvml.nvmlDeviceGetHandleByIndex, int(name))
        else:
            handle = _query(nvml, nvml.nvmlDeviceGetHandleByUUID, name)
        if handle is None:
            return frozenset()
        gpu = _query(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
        words = _query(nvml, nvml.nvmlDeviceGetCpuAffinity, gpu, MOST_CORES // 64) or ()
    return frozenset(core for core in range(64 * len(words)) if words[core // 64] >> core % 64 & 1)


def foreign_processes(gpu_index: int) -> list[int]:
    """Lists the other processes that compute on the GPU, by id; 0 is a process whose id NVML does not report.

    `gpu_index` counts as torch does. The list is empty where NVML is absent or reports no processes.
    """
    import torch

    with _nvml() as nvml:
        if nvml is None:
            return []
        handle = _device_handle(nvml, gpu_index, torch.cuda.get_device_properties(gpu_index).uuid)
        running = _query(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return _without_this_process([int(process.pid) for process in running])


def gpu_facts(index: int, uuid: object) -> dict[str, Any]:
    """Reads driver version, MIG, ECC and power limit, named as in Environment; None for a value not reported."""
    with _nvml() as nvml:
        if nvml is None:
            return {}
        handle = _device_handle(nvml, index, uuid)
        # Driver settings belong to the whole GPU; a MIG slice does not report them.
        gpu = _query(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle) or handle
        mig, ecc = _query(nvml, nvml.nvmlDeviceGetMigMode, gpu), _query(nvml, nvml.nvmlDeviceGetEccMode, gpu)
        limit_mw = _query(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, gpu)
        return {
            "driver": _query(nvml, nvml.nvmlSystemGetDriverVersion),
            "mig": None if mig is None else bool(mig[0]),
            "ecc": None if ecc is None else bool(ecc[0]),
            "power_limit_w": None if limit_mw is None else limit_mw / 1000,
        }


@contextmanager
def _nvml() -> Iterator[Any]:
    """Yields the initialized pynvml module, or None where there is no NVIDIA driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _query(nvml: Any, query: Any, *arguments: Any) -> Any:
    """Runs one NVML query; returns None where this machine does not support it."""
    try:
        return query(*arguments)
    except nvml.NVMLError:
        return None


def _device_handle(nvml: Any, index: int, uuid: object) -> Any:
    """Finds a GPU or MIG slice by its UUID: NVML and CUDA may number GPUs differently."""
    for prefix in ("GPU-", "MIG-"):
        handle = _query(nvml, nvml.nvmlDeviceGetHandleByUUID, f"{prefix}{uuid}")
        if handle is not None:
            return handle
    return _query(nvml, nvml.nvmlDeviceGetHandleByIndex, index)


def _is_slice(name: str) -> bool:
    return name.startswith("MIG-")


def _visible(uuids: list[str], variable: str | None) -> list[str]:
    """Selects the GPUs in CUDA_VISIBLE_DEVICES, by index or by the beginning of a UUID, up to the first entry that
    names no GPU, several GPUs, or an earlier one again."""
    if variable is None:
        return uuids
    entries = [part.strip() for part in variable.split(",")]
    if _is_slice(entries[0]):  # CUDA shows one slice to a process, so that each needs a process of its own
        return list(dict.fromkeys(filter(_is_slice, entries)))
    found: dict[int, str] = {}
    for entry in entries:
        matches = [i for i, uuid in enumerate(uuids) if entry == str(i) or (entry and uuid.startswith(entry))]
        if len(matches) != 1 or matches[0] in found:
            break
        found[matches[0]] = entry if entry.isdecimal() else uuids[matches[0]]
    return list(found.values())


def _without_this_process(pids: list[int]) -> list[int]:
    """Drops this process by its id; where NVML counts in another namespace, one id that no process here has."""
    own = os.getpid()
    if own in pids:
        return [pid for pid in pids if pid != own]
    unknown = next((pid for pid in pids if not Path(f"/proc/{pid}").exists()), None)
    if unknown is not None:
        pids = pids.copy()
        pids.remove(unknown)
    return pids
