"""The GPUs of this machine as NVML reports them, without torch: their names, cores, processes and settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_CORES = 4096  # of a host, whose mask NVML fills


def list_visible_gpus() -> list[str]:
    """Lists the GPUs and MIG slices that CUDA_VISIBLE_DEVICES leaves, each as its value for a process of its own.

    Without the variable the names are UUIDs. The list is empty where NVML is absent.
    """
    with _nvml() as ask:
        handles = [ask("DeviceGetHandleByIndex", index) for index in range(ask("DeviceGetCount") or 0)]
        uuids = [str(ask("DeviceGetUUID", handle) or "") for handle in handles]
    return _visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES")) if uuids else []


def read_near_cores(name: str) -> frozenset[int]:
    """Reads the cores on the NUMA node of a GPU of `list_visible_gpus`; empty where NVML does not report them."""
    with _nvml() as ask:
        by_index = name.isdecimal()
        handle = ask("DeviceGetHandleByIndex", int(name)) if by_index else ask("DeviceGetHandleByUUID", name)
        if handle is None:
            return frozenset()
        gpu = ask("DeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle
        words = ask("DeviceGetCpuAffinity", gpu, MOST_CORES // 64) or ()
    return frozenset(core for core in range(64 * len(words)) if words[core // 64] >> core % 64 & 1)


def foreign_processes(gpu_index: int) -> list[int]:
    """Lists the other processes that compute on the GPU, by id; 0 is a process whose id NVML does not report.

    `gpu_index` counts as torch does. The list is empty where NVML is absent or reports no processes.
    """
    import torch

    with _nvml() as ask:
        handle = _device_handle(ask, gpu_index, torch.cuda.get_device_properties(gpu_index).uuid)
        running = ask("DeviceGetComputeRunningProcesses", handle) or []
    return _without_this_process([int(process.pid) for process in running])


def gpu_facts(index: int, uuid: object) -> dict[str, Any]:
    """Reads driver version, MIG, ECC and power limit, named as in Environment; None for a value not reported."""
    with _nvml() as ask:
        handle = _device_handle(ask, index, uuid)
        # Driver settings belong to the whole GPU; a MIG slice does not report them.
        gpu = ask("DeviceGetDeviceHandleFromMigDeviceHandle", handle) or handle
        mig, ecc = ask("DeviceGetMigMode", gpu), ask("DeviceGetEccMode", gpu)
        limit_mw = ask("DeviceGetEnforcedPowerLimit", gpu)
        return {
            "driver": ask("SystemGetDriverVersion"),
            "mig": None if mig is None else bool(mig[0]),
            "ecc": None if ecc is None else bool(ecc[0]),
            "power_limit_w": None if limit_mw is None else limit_mw / 1000,
        }


@contextmanager
def _nvml() -> Iterator[Callable[..., Any]]:
    """Yields a function that runs an NVML query by its name, such as `DeviceGetCount`.

    It returns None where there is no NVIDIA driver, and where this machine does not support the query.
    """
    import pynvml

    def ask(query: str, *arguments: Any) -> Any:
        try:
            return getattr(pynvml, f"nvml{query}")(*arguments)
        except pynvml.NVMLError:
            return None

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield lambda query, *arguments: None
        return
    try:
        yield ask
    finally:
        pynvml.nvmlShutdown()


def _device_handle(ask: Callable[..., Any], index: int, uuid: object) -> Any:
    """Finds a GPU or MIG slice by its UUID: NVML and CUDA may number GPUs differently."""
    for prefix in ("GPU-", "MIG-"):
        handle = ask("DeviceGetHandleByUUID", f"{prefix}{uuid}")
        if handle is not None:
            return handle
    return ask("DeviceGetHandleByIndex", index)


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
