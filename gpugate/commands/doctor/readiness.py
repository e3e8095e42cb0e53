"""Probes of the conditions of a gate run: baselines, and a machine that is quiet, cool and as fast as recorded.

Any of these findings may be `bad`, and then the doctor's exit status is 1. A missing baseline is `bad`: a gate fails on
NO_BASELINE, so it could not be green. A busy machine is `bad`, with or without a GPU: pairs remove drift, not the work
of other programs, and a step that is launch-bound or fed by the host waits for the same cores. Only the gate reports
the workloads without a baseline and those that need an `absent` part, since only the gate knows the selection.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from gpugate.commands.doctor.child import Gauge
from gpugate.commands.doctor.children import ChildError
from gpugate.commands.doctor.finding import Answer, Group, Machine, Probe, bad, ok
from gpugate.errors import BaselineError
from gpugate.judging.machine_state import SLOW_LAUNCH, describe_throttling, fallen_yardstick, launch_slowdown
from gpugate.machine.environment import Match, compare, machine_name
from gpugate.measurement.record import Yardstick
from gpugate.report.next_step import BASELINES, REASON, RECORD, SUITE
from gpugate.session.options import DEFAULT_BASELINES
from gpugate.statistics.policy import MIN_PROCESSES
from gpugate.store import baseline
from gpugate.store.baseline import BaselineFile, Entry
from gpugate.units import list_names, number_of, yardstick_label, yardstick_value

BUSY_SHARE = 0.5  # of the cores that others may use; the load average also counts processes that wait for a disk
CATALOGUE_S = 60.0  # mostly imports
SHOWN = 3  # names or differences in one sentence


def baselines(machine: Machine) -> Answer:
    """Checks that baselines exist which a gate would use: of this machine, and of enough processes for a variation."""
    folder = machine.baselines_path / machine_name(machine.environment)
    if machine.baselines_path.exists() and not machine.baselines_path.is_dir():
        return bad(f"{machine.baselines_path} is no folder: give the folder of baselines")
    try:
        files = _files(machine)
    except BaselineError as error:
        return bad(str(error))
    entries = {f"{file.workload}/{key}": entry for file in files for key, entry in file.cases.items()}
    matches = [compare(entry.current.environment, machine.environment) for entry in entries.values()]
    if all(match.kind == "foreign" for match in matches):
        return bad(f"{folder} has none for this machine, and a gate fails without: {_record_all(machine)}")
    unknown = _unknown(folder, machine)
    if unknown is not None and unknown.certain:
        return bad(unknown.sentence)
    few = [name for name, entry in entries.items() if len(entry.current.processes) < MIN_PROCESSES]
    if few:
        counts = f"{len(few)} of {len(entries)} cases are recorded by fewer than {MIN_PROCESSES} processes"
        return bad(f"{counts} ({list_names(few, SHOWN)}), and a gate fails on them: {_record_all(machine)}")
    counts = f"{number_of(len(entries), 'case')} of {number_of(len(files), 'workload')}"
    return ok(f"{counts}, {_software(matches)}{unknown.sentence if unknown else ''}")


class _Unknown(NamedTuple):
    certain: bool
    sentence: str


def _unknown(folder: Path, machine: Machine) -> _Unknown | None:
    """Returns the file that stops a gate, since no workload here has its name, or why that is unknown; else None."""
    try:
        names = machine.children.ask("workloads", str(Path.cwd()), timeout_s=CATALOGUE_S)
        if names:  # a folder without workloads is no evidence against a baseline
            baseline.load_all(folder, names)
    except BaselineError as error:
        return _Unknown(True, str(error))
    except ChildError as error:
        return _Unknown(False, f"; whether all of these workloads are still known could not be found out ({error})")
    return None


def _software(matches: Sequence[Match]) -> str:
    differences = list(dict.fromkeys(chain.from_iterable(match.differences for match in matches)))
    if not differences:
        return "recorded with the present software"
    return f"recorded under other software, so times are judged loosely: {list_names(differences, SHOWN)}"


def _record_all(machine: Machine) -> str:
    path = str(machine.baselines_path)
    where = "" if path == DEFAULT_BASELINES else f" {BASELINES} {shlex.quote(path)}"
    return f"{SUITE}{' -m gpu' if machine.has_gpu else ''}{where} {RECORD} {REASON}"


def _files(machine: Machine) -> list[BaselineFile]:
    """Reads every baseline file of this machine. Raises BaselineError for a file that cannot be trusted."""
    folder = machine.baselines_path / machine_name(machine.environment)
    return list(baseline.load_all(folder).values())


def load(machine: Machine) -> Answer:
    words = f"load average {machine.load:.1f} of the last minute on {machine.cores} cores"
    if machine.load > BUSY_SHARE * machine.cores:
        return bad(f"{words}: end what else is running, or wait a minute if it has just ended")
    return ok(words)


def other_processes(gauge: Gauge, machine: Machine) -> Answer:
    if gauge.foreign:
        ids = ", ".join(str(pid) for pid in gauge.foreign)
        return bad(f"process {ids} also uses the GPU: end it, wait for it, or choose another --device")
    return ok("none on the GPU")


def clocks(gauge: Gauge, machine: Machine) -> Answer:
    """Checks that neither heat nor the hardware slows the clock. A clock capped by the power limit is normal."""
    if gauge.throttled_by:
        return bad(f"slowed by {', '.join(gauge.throttled_by)} under load: cool it, or use another GPU")
    if not gauge.clock_mhz:
        return ok("NVML reports no clock here: a gate detects throttling by the yardsticks alone")
    low, high = min(gauge.clock_mhz), max(gauge.clock_mhz)
    range_mhz = f"{low} to {high}" if low < high else f"{low}"
    return ok(f"SM {range_mhz} MHz during a second of matmuls, slowed by neither heat nor hardware")


def yardsticks(gauge: Gauge, machine: Machine) -> Answer:
    """Compares two probes of the yardsticks, as the gate does: with those recorded under this exact software, else with
    each other.

    One bad probe does not prove a bad machine: compared with records, both probes must have fallen.
    """
    if gauge.throttled is not None:
        return bad(f"{describe_throttling(gauge.throttled)}: raise it, or use fewer threads by OMP_NUM_THREADS")
    probes = [Yardstick(values) for values in gauge.yardsticks]
    recorded = _recorded(machine)
    expected = recorded or _best(probe.values for probe in probes)
    problems = [fallen_yardstick([probe], expected) for probe in probes]
    values = ", ".join(
        f"{yardstick_label(name)} {yardstick_value(name, value)}" for name, value in _better_values(probes)
    )
    if recorded and None not in problems:
        return bad(f"{problems[-1]} recorded: repeat when the machine is idle and cool")
    if (times := launch_slowdown(probes, recorded) or 0.0) > SLOW_LAUNCH:
        slow = f"slow host: launches take {times:.2g} times the recorded time"
        return bad(f"{slow}, so that no wall time would be compared with its record: repeat when the machine is idle")
    if not recorded and any(problems):
        return bad(f"{next(filter(None, problems))} a moment apart: repeat when the machine is idle and cool")
    return ok(f"{values}; {'as recorded' if recorded else 'steady, and none recorded to compare them with'}")


def _better_values(probes: Sequence[Yardstick]) -> Iterable[tuple[str, float]]:
    """Returns the better value of both probes, without the launch latency: less is better there."""
    return ((name, value) for name, value in _best(probe.values for probe in probes).items() if "latency" not in name)


def _recorded(machine: Machine) -> dict[str, float]:
    """Returns the yardsticks that a gate expects. A gate compares with each case's own, so the highest must be met."""
    try:
        entries = [entry for file in _files(machine) for entry in file.cases.values()]
    except BaselineError:
        return {}
    return _best(entry.current.yardsticks for entry in entries if _same_software(entry, machine))


def _same_software(entry: Entry, machine: Machine) -> bool:
    return compare(entry.current.environment, machine.environment).kind == "exact"


def _best(probes: Iterable[Mapping[str, float]]) -> dict[str, float]:
    best: dict[str, float] = {}
    for values in probes:
        for name, value in values.items():
            best[name] = max(value, best.get(name, value))
    return best


PROBES = (
    Probe(Group.TRUST, "baselines", baselines, vital=True),
    Probe(Group.TRUST, "load", load, vital=True),
)


def measured_probes(gauge: Gauge) -> tuple[Probe, ...]:
    """Returns the probes that judge the machine under load."""
    return (
        Probe(Group.TRUST, "other processes", partial(other_processes, gauge), needs_gpu=True, vital=True),
        Probe(Group.TRUST, "clocks", partial(clocks, gauge), needs_gpu=True, vital=True),
        Probe(Group.TRUST, "yardsticks", partial(yardsticks, gauge), vital=True),
    )
