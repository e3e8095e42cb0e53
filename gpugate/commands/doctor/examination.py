"""The whole examination: every probe runs once, even where another probe fails; the machine under load comes last."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpugate.commands.doctor import packages, readiness, tools
from gpugate.commands.doctor.child import Described, Gauge
from gpugate.commands.doctor.children import ChildError, Children
from gpugate.commands.doctor.finding import Answer, Group, Machine, Probe, ProbeResult, ProbeState, absent, bad, ok
from gpugate.machine.environment import Environment
from gpugate.machine.processes import list_children
from gpugate.report.machine import facts
from gpugate.session.run_child import kill_group
from gpugate.store.codec import from_json

DESCRIBE_S = 60.0  # mostly the import of torch, from a cold disk
GAUGE_S = 60.0
AT_ONCE = 4  # children; each imports large packages


@dataclass(frozen=True)
class Diagnosis:
    """All findings in the order of reading. `environment` is None where the machine could not even be described."""

    environment: Environment | None
    findings: tuple[ProbeResult, ...]
    wall_s: float

    @property
    def bad(self) -> list[str]:
        return [finding.name for finding in self.findings if finding.state is ProbeState.BAD]


def examine(asked: str, baselines_path: Path, children: Children) -> Diagnosis:
    """Runs all probes for a device `asked`, as `--device` takes it. Raises OptionError where the device does not exist,
    and no other error."""
    began, load_average = time.perf_counter(), os.getloadavg()[0]  # before the children add to it
    try:
        described = from_json(Described, children.ask("machine", asked, timeout_s=DESCRIBE_S))
    except ChildError as error:
        problem = bad(f"torch cannot describe it ({error}): install torch anew, or look after the driver")
        return Diagnosis(None, (_finding(Group.MACHINE, "machine", problem),), time.perf_counter() - began)
    environment = described.environment
    children.visible = _visible(environment.gpu_index)
    machine = Machine(
        asked, environment, described.driver_gpus, baselines_path, load_average, os.cpu_count() or 1, children
    )
    findings = [*_all(MACHINE, machine), *_together([*packages.PROBES, *tools.PROBES], machine)]
    findings += [*_all(readiness.PROBES, machine), *_measure_under_load(machine)]
    return Diagnosis(environment, tuple(findings), time.perf_counter() - began)


def _visible(gpu_index: int | None) -> str | None:
    """Returns the CUDA_VISIBLE_DEVICES that leaves only the chosen GPU, which is then number 0."""
    if gpu_index is None:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(gpu_index) if visible is None else visible.split(",")[gpu_index].strip()


def _all(probes: Sequence[Probe], machine: Machine) -> list[ProbeResult]:
    return [_look(probe, machine) for probe in probes]


def _together(probes: Sequence[Probe], machine: Machine) -> list[ProbeResult]:
    """Runs the probes in threads, since probes mostly wait for their children.

    An interruption reaches only the main thread: it kills the children, and the threads then end.
    """
    with ThreadPoolExecutor(min(AT_ONCE, machine.environment.cpu_count)) as pool:
        asked = [pool.submit(_look, probe, machine) for probe in probes]
        try:
            return [future.result() for future in asked]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in list_children():
                kill_group(child)
            raise


def _measure_under_load(machine: Machine) -> list[ProbeResult]:
    """Measures the machine under load, last and alone: children of other probes would use the GPU and load the CPU."""
    probes = readiness.measured_probes
    try:
        gauge = from_json(Gauge, machine.children.ask("gauge", machine.environment.device_kind, timeout_s=GAUGE_S))
    except ChildError as error:
        sentence = f"nothing could be measured ({error}): look after the driver and the memory that is free"
        return [_finding(Group.TRUST, "yardsticks", bad(sentence))]
    return _all(probes(gauge), machine)


def _look(probe: Probe, machine: Machine) -> ProbeResult:
    if probe.needs_gpu and not machine.has_gpu:
        return _finding(probe.group, probe.name, absent(_no_gpu(machine)))
    try:
        answer = probe.look(machine)
    except Exception as error:  # a failing probe must not prevent the others
        sentence = f"it could not be looked at ({type(error).__name__}: {error}): please report this"
        answer = bad(sentence) if probe.vital else absent(sentence)
    return _finding(probe.group, probe.name, answer)


def _finding(group: Group, name: str, answer: Answer) -> ProbeResult:
    return ProbeResult(group, name, answer.state, answer.sentence)


def _no_gpu(machine: Machine) -> str:
    return "no GPU" if not machine.driver_gpus else "not looked at: the device is the CPU"


def _machine(machine: Machine) -> Answer:
    return ok(", ".join(facts(machine.environment)))


def _gpu(machine: Machine) -> Answer:
    environment = machine.environment
    if not machine.has_gpu and machine.driver_gpus and machine.asked == "auto":
        shown = f"the driver shows {machine.driver_gpus} and torch {environment.packages.get('torch')} none"
        return bad(f"{shown}: install a CUDA build of torch that this driver supports")
    if not machine.has_gpu:
        return absent(f"{_no_gpu(machine)}: CPU variants only")
    words = [
        f"compute capability {environment.compute_capability}",
        *([] if environment.power_limit_w is None else [f"power limit {environment.power_limit_w:.0f} W"]),
        *([] if environment.ecc is None else [f"ECC {'on' if environment.ecc else 'off'}"]),
        *(["a MIG slice"] if environment.mig else []),
    ]
    return ok(", ".join(words))


MACHINE = (Probe(Group.MACHINE, "machine", _machine), Probe(Group.MACHINE, "GPU", _gpu))
