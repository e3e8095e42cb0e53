"""The doctor's findings: what this machine is, the packages and tools it has, and whether a gate here can be trusted.

A missing baseline is `bad`: a gate fails on NO_BASELINE, so it could not be green. A busy machine is `bad`, with or
without a GPU: pairs remove drift, not the work of other programs, and a step that is launch-bound or fed by the host
waits for the same cores. Only the gate reports the workloads without a baseline and those that need an `absent` part,
since only the gate knows the selection.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from gpugate.commands.doctor.measuring import Facts
from gpugate.errors import BaselineError
from gpugate.judging.machine_state import SLOW_LAUNCH, describe_throttling, fallen_yardstick, launch_slowdown
from gpugate.machine.cores import read_or_empty
from gpugate.machine.environment import Environment, compare, machine_name, missing_needs
from gpugate.measurement.record import Yardstick
from gpugate.profiling.nsight_tools import PERMISSION, find_tool
from gpugate.report.machine import facts as describe_machine
from gpugate.report.next_step import BASELINES, RECORD, SUITE
from gpugate.session.options import DEFAULT_BASELINES
from gpugate.statistics.policy import MIN_PROCESSES
from gpugate.store import baseline
from gpugate.store.baseline import Record
from gpugate.units import list_names, number_of, yardstick_label, yardstick_value
from gpugate.workload import Needs

BUSY_SHARE = 0.5  # of the cores that others may use; the load average also counts processes that wait for a disk
SHOWN = 3  # names or differences in one sentence
DRIVER_SETTINGS = Path("/proc/driver/nvidia/params")
OWN_STATUS = Path("/proc/self/status")
CAP_SYS_ADMIN = 21  # its bit, see capabilities(7)
# The optional packages, as Environment.packages names them, with the commands that install them.
PACKAGES = {
    "torch-tensorrt": "pip install 'gpugate[torch-tensorrt]'",
    "tensorrt": "pip install 'gpugate[tensorrt]'",
    "cvcuda": "pip install cvcuda-cu13, or -cu12 as torch's CUDA is",
    "pynvvideocodec": "pip install PyNvVideoCodec",
    "av": "pip install av",
}
TOOLS: Mapping[Literal["nsys", "ncu"], str] = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
# `absent` fails a gate only where a selected workload needs the missing part; `bad` makes every verdict doubtful.
State = Literal["ok", "absent", "bad"]
Answer = tuple[State, str]  # with the value and, unless the state is ok, the next step


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis."""

    group: Literal["machine", "packages", "tools", "trust"]
    name: str
    state: State
    sentence: str


@dataclass(frozen=True)
class Diagnosis:
    """All findings in the order of reading. `environment` is None where the machine could not even be described."""

    environment: Environment | None
    findings: tuple[Finding, ...]
    wall_s: float

    @property
    def bad(self) -> list[str]:
        return [finding.name for finding in self.findings if finding.state == "bad"]


def list_findings(facts: Facts, asked: str, baselines_path: Path) -> Iterator[Finding]:
    """Yields the findings in the order of reading. A CPU has no findings about kernels, clocks and other processes."""
    environment = facts.environment
    if environment is None:
        sentence = f"torch cannot describe it ({facts.error}): install torch anew, or look after the driver"
        yield Finding("machine", "machine", "bad", sentence)
        return
    on_gpu = environment.device_kind == "cuda"
    yield Finding("machine", "machine", "ok", ", ".join(describe_machine(environment)))
    yield Finding("machine", "GPU", *judge_gpu(environment, facts.driver_gpus, asked))
    for name, install in PACKAGES.items():
        version = environment.packages.get(name)
        yield Finding("packages", name, "ok" if version else "absent", version or f"not installed: {install}")
    yield Finding("tools", "nsys", *find_profiler("nsys"))
    yield Finding("tools", "ncu", *find_profiler("ncu"))
    if on_gpu:
        yield Finding("tools", "CUPTI", *judge_kernels(facts))
    missing = missing_needs(Needs(cpp_compiler=True), environment)
    found = "found, as Inductor needs one"
    yield Finding("tools", "C++ compiler", "absent" if missing else "ok", missing.reason if missing else found)
    try:
        files = baseline.load_all(baselines_path / machine_name(environment))
        records = {f"{name}/{key}": entry.current for name, file in files.items() for key, entry in file.cases.items()}
        yield Finding("trust", "baselines", *judge_baselines(baselines_path, environment, records))
    except BaselineError as error:
        records = {}
        yield Finding("trust", "baselines", "bad", str(error))
    yield Finding("trust", "load", *judge_load(facts))
    if on_gpu:
        yield Finding("trust", "other processes", *judge_other_processes(facts))
        yield Finding("trust", "clocks", *judge_clocks(facts))
    yield Finding("trust", "yardsticks", *judge_yardsticks(facts, environment, records))


def judge_gpu(environment: Environment, driver_gpus: int, asked: str) -> Answer:
    if environment.device_kind == "cpu":
        if driver_gpus and asked == "auto":
            problem = f"the driver shows {driver_gpus} and torch {environment.packages.get('torch')} none"
            return "bad", f"{problem}: install a CUDA build of torch that this driver supports"
        return "absent", f"{'not looked at: the device is the CPU' if driver_gpus else 'no GPU'}: CPU variants only"
    words = [
        f"compute capability {environment.compute_capability}",
        *([] if environment.power_limit_w is None else [f"power limit {environment.power_limit_w:.0f} W"]),
        *([] if environment.ecc is None else [f"ECC {'on' if environment.ecc else 'off'}"]),
        *(["a MIG slice"] if environment.mig else []),
    ]
    return "ok", ", ".join(words)


def find_profiler(tool: Literal["nsys", "ncu"]) -> Answer:
    """Finds a profiler without running it. Without permission, nsys still traces kernels and ncu measures nothing."""
    path = find_tool(tool)
    if path is None:
        return "absent", f"not found: install {TOOLS[tool]}, or put its {tool} on PATH"
    if tool == "ncu" and not may_read_counters():
        return "absent", f"{path} may not read hardware counters: {PERMISSION}"
    return "ok", path


def may_read_counters() -> bool:
    """Reads from the driver's settings whether it keeps hardware counters from users without CAP_SYS_ADMIN."""
    restricted = re.search(r"^RmProfilingAdminOnly: 1$", read_or_empty(DRIVER_SETTINGS), re.MULTILINE)
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)$", read_or_empty(OWN_STATUS), re.MULTILINE)
    return not restricted or (capabilities is not None and bool(int(capabilities[1], 16) >> CAP_SYS_ADMIN & 1))


def judge_kernels(facts: Facts) -> Answer:
    """Judges CUPTI, through which the gate counts kernels and copies; an unchecked contract is no pass."""
    if facts.kernels is None:
        step = "and a gate counts kernels with it: install a CUDA build of torch"
        return "bad", f"torch's profiler failed ({facts.error}), {step}"
    if facts.kernels == 0:
        return "bad", f"torch's profiler sees no kernel, and a gate counts them with it: {PERMISSION}"
    return "ok", "torch's profiler sees kernels"


def judge_baselines(path: Path, environment: Environment, records: Mapping[str, Record]) -> Answer:
    """Checks that there are records of this machine, and of enough processes for a variation."""
    where = "" if str(path) == DEFAULT_BASELINES else f" {BASELINES} {shlex.quote(str(path))}"
    record_all = f"{SUITE}{' -m gpu' if environment.device_kind == 'cuda' else ''}{where} {RECORD}"
    matches = [compare(record.environment, environment) for record in records.values()]
    if all(match.kind == "foreign" for match in matches):
        folder = path / machine_name(environment)
        return "bad", f"{folder} has none for this machine, and a gate fails without: {record_all}"
    few = [name for name, record in records.items() if len(record.processes) < MIN_PROCESSES]
    if few:
        counts = f"{len(few)} of {len(records)} cases are recorded by fewer than {MIN_PROCESSES} processes"
        return "bad", f"{counts} ({list_names(few, SHOWN)}), and a gate fails on them: {record_all}"
    counts, differences = number_of(len(records), "case"), chain.from_iterable(match.differences for match in matches)
    if differing := list(dict.fromkeys(differences)):
        loosely = "recorded under other software, so times are judged loosely"
        return "ok", f"{counts}, {loosely}: {list_names(differing, SHOWN)}"
    return "ok", f"{counts}, recorded with the present software"


def judge_load(facts: Facts) -> Answer:
    words = f"load average {facts.load:.1f} of the last minute on {facts.cores} cores"
    if facts.load > BUSY_SHARE * facts.cores:
        return "bad", f"{words}: end what else is running, or wait a minute if it has just ended"
    return "ok", words


def judge_other_processes(facts: Facts) -> Answer:
    if facts.foreign:
        ids = ", ".join(str(pid) for pid in facts.foreign)
        return "bad", f"process {ids} also uses the GPU: end it, wait for it, or choose another --device"
    return "ok", "none on the GPU"


def judge_clocks(facts: Facts) -> Answer:
    """Checks that neither heat nor the hardware slows the clock. A clock capped by the power limit is normal."""
    if facts.throttled_by:
        return "bad", f"slowed by {', '.join(facts.throttled_by)} under load: cool it, or use another GPU"
    if not facts.clock_mhz:
        return "ok", "NVML reports no clock here: a gate detects throttling by the yardsticks alone"
    range_mhz = f"{min(facts.clock_mhz)} to {max(facts.clock_mhz)} MHz"
    return "ok", f"SM {range_mhz} during a second of matmuls, slowed by neither heat nor hardware"


def judge_yardsticks(facts: Facts, environment: Environment, records: Mapping[str, Record]) -> Answer:
    """Compares two probes of the yardsticks, as the gate does: with those recorded under this exact software, else with
    each other.

    A gate compares with the record of each case, so the highest recorded values must be met. One bad probe does not
    prove a bad machine: compared with records, both probes must have fallen.
    """
    if not facts.yardsticks:
        return "bad", f"nothing could be measured ({facts.error}): look after the driver and the memory that is free"
    if facts.quota_throttled is not None:
        return "bad", f"{describe_throttling(facts.quota_throttled)}: raise it, or use fewer threads by OMP_NUM_THREADS"
    exact = [record for record in records.values() if compare(record.environment, environment).kind == "exact"]
    recorded = _highest([record.yardsticks for record in exact])
    probes, best = [Yardstick(values) for values in facts.yardsticks], _highest(facts.yardsticks)
    problems = [fallen_yardstick([probe], recorded or best) for probe in probes]
    if recorded and None not in problems:
        return "bad", f"{problems[-1]} recorded: repeat when the machine is idle and cool"
    if (times := launch_slowdown(probes, recorded) or 0.0) > SLOW_LAUNCH:
        slow = f"slow host: launches take {times:.2g} times the recorded time"
        step = "repeat when the machine is idle"
        return "bad", f"{slow}, so that no wall time would be compared with its record: {step}"
    if not recorded and any(problems):
        return "bad", f"{next(filter(None, problems))} a moment apart: repeat when the machine is idle and cool"
    # The higher launch latency is not the better one.
    shown = (f"{yardstick_label(n)} {yardstick_value(n, value)}" for n, value in best.items() if "latency" not in n)
    against = "as recorded" if recorded else "steady, and none recorded to compare them with"
    return "ok", f"{', '.join(shown)}; {against}"


def _highest(probes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(chain.from_iterable(probes))
    return {name: max(values[name] for values in probes if name in values) for name in names}
