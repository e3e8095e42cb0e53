"""What a gate run needs to be worth its verdicts: baselines, and a machine that is quiet, cool and as fast as recorded.

Any of these may be `bad`, and then the doctor's exit status is 1. A missing baseline is: a gate fails on NO_BASELINE,
so it could not be green. A busy machine is, with or without a GPU: pairs remove drift, not somebody else's work, and
what is launch-bound or fed by the host waits for the same cores. Which workloads have no baseline yet, and which need
something that is `absent`, only the gate itself tells, since only it knows which ones are selected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from gpugate.commands.doctor.child import Gauge
from gpugate.commands.doctor.children import ChildError
from gpugate.commands.doctor.finding import Answer, Group, Machine, Probe, bad, ok
from gpugate.errors import BaselineError
from gpugate.judging.machine_state import fallen_yardstick
from gpugate.machine.environment import Match, compare, machine_name
from gpugate.measurement.record import Yardstick
from gpugate.report.next_step import REASON, RECORD, SUITE
from gpugate.statistics.policy import MIN_PROCESSES
from gpugate.store import baseline
from gpugate.store.baseline import BaselineFile, Entry
from gpugate.units import listed, number_of, yardstick_label, yardstick_value

BUSY_SHARE = 0.5  # of the cores that others may use; the load average also counts what waits for a disk
CATALOGUE_S = 60.0  # mostly imports
SHOWN = 3  # names or differences in one sentence


def baselines(machine: Machine) -> Answer:
    """Whether there are any that a gate would use: of this machine, and by enough processes to know their variation."""
    folder = machine.baselines_path / machine_name(machine.environment)
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
        told = f"{len(few)} of {len(entries)} cases are recorded by fewer than {MIN_PROCESSES} processes"
        return bad(f"{told} ({listed(few, SHOWN)}), and a gate fails on them: {_record_all(machine)}")
    told = f"{number_of(len(entries), 'case')} of {number_of(len(files), 'workload')}"
    return ok(f"{told}, {_software(matches)}{unknown.sentence if unknown else ''}")


class _Unknown(NamedTuple):
    certain: bool
    sentence: str


def _unknown(folder: Path, machine: Machine) -> _Unknown | None:
    """The file that stops a gate, since no workload here has its name, or why that cannot be told; else None."""
    try:
        names = machine.children.ask("workloads", str(Path.cwd()), timeout_s=CATALOGUE_S)
        if names:  # else it is asked in a folder without workloads, and nothing follows
            baseline.load_all(folder, names)
    except BaselineError as error:
        return _Unknown(True, str(error))
    except ChildError as error:
        return _Unknown(False, f"; whether all of these workloads are still known could not be found out ({error})")
    return None


def _software(matches: Sequence[Match]) -> str:
    differences = list(dict.fromkeys(chain.from_iterable(match.differences for match in matches)))
    if not differences:
        return "recorded with the software of now"
    return f"recorded under other software, so times are judged loosely: {listed(differences, SHOWN)}"


def _record_all(machine: Machine) -> str:
    return f"{SUITE}{' -m gpu' if machine.has_gpu else ''} {RECORD} {REASON}"


def _files(machine: Machine) -> list[BaselineFile]:
    """Every baseline of this machine, of whatever workload. Raises BaselineError for one that cannot be trusted."""
    folder = machine.baselines_path / machine_name(machine.environment)
    return list(baseline.load_all(folder).values())


def load(machine: Machine) -> Answer:
    told = f"load average {machine.load:.1f} of the last minute on {machine.cores} cores"
    if machine.load > BUSY_SHARE * machine.cores:
        return bad(f"{told}: end what else is running, or wait a minute if it has just ended")
    return ok(told)


def other_processes(gauge: Gauge, machine: Machine) -> Answer:
    if gauge.foreign:
        ids = ", ".join(str(pid) for pid in gauge.foreign)
        return bad(f"process {ids} also uses the GPU: end it, wait for it, or choose another --device")
    return ok("none on the GPU")


def clocks(gauge: Gauge, machine: Machine) -> Answer:
    """Steady means: not slowed by heat or by the hardware. A clock that the power limit caps is how a GPU runs."""
    if gauge.throttled_by:
        return bad(f"slowed by {', '.join(gauge.throttled_by)} under load: cool it, or use another GPU")
    if not gauge.clock_mhz:
        return ok("not told by NVML here, so a gate does not see throttling but by the yardsticks")
    low, high = min(gauge.clock_mhz), max(gauge.clock_mhz)
    range_mhz = f"{low} to {high}" if low < high else f"{low}"
    return ok(f"SM {range_mhz} MHz during a second of matmuls, slowed by neither heat nor hardware")


def yardsticks(gauge: Gauge, machine: Machine) -> Answer:
    """Two probes, as the gate compares them: against those recorded under this very software, else with each other.

    One bad probe is no sick machine, so against recorded ones both must have fallen.
    """
    probes = [Yardstick(values) for values in gauge.yardsticks]
    recorded = _recorded(machine)
    expected = recorded or _best(probe.values for probe in probes)
    problems = [fallen_yardstick([probe], expected) for probe in probes]
    told = ", ".join(f"{yardstick_label(name)} {yardstick_value(name, value)}" for name, value in _shown(probes))
    if recorded and None not in problems:
        return bad(f"{problems[-1]} recorded: repeat when the machine is idle and cool")
    if not recorded and any(problems):
        return bad(f"{next(filter(None, problems))} a moment apart: repeat when the machine is idle and cool")
    return ok(f"{told}; {'as recorded' if recorded else 'steady, and none recorded to compare them with'}")


def _shown(probes: Sequence[Yardstick]) -> Iterable[tuple[str, float]]:
    """The better of the probes; latency is better when it is less, and too jumpy to be shown."""
    return ((name, value) for name, value in _best(probe.values for probe in probes).items() if "latency" not in name)


def _recorded(machine: Machine) -> dict[str, float]:
    """What a gate expects of the yardsticks: it compares with each case's own, so all of them reach the highest."""
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
    """What is judged from the machine under load."""
    return (
        Probe(Group.TRUST, "other processes", partial(other_processes, gauge), needs_gpu=True, vital=True),
        Probe(Group.TRUST, "clocks", partial(clocks, gauge), needs_gpu=True, vital=True),
        Probe(Group.TRUST, "yardsticks", partial(yardsticks, gauge), vital=True),
    )
