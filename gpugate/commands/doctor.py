"""`gpugate doctor`: examines this machine in a child process, and reports whether a gate run here can be trusted.

A missing baseline is `bad`: a gate fails on NO_BASELINE, so it could not be green. A busy machine is `bad`, with or
without a GPU: pairs remove drift, not the work of other programs, and a step that is launch-bound or fed by the host
waits for the same cores. Only the gate reports the workloads without a baseline and those that need what this machine
lacks, since only the gate knows the selection. The exit status is 0 only where a gate run can be trusted.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console
from rich.text import Text

from gpugate.errors import BaselineError, OptionError
from gpugate.judging.machine_state import PROBE_RATIO, describe_throttling, fallen_yardstick
from gpugate.machine import children
from gpugate.machine.environment import Environment, compare, compiler_problem, machine_name
from gpugate.measurement.derived import launch_slowdown
from gpugate.report.next_step import BASELINES, RECORD, describe_threads
from gpugate.report.table import Column, Table, style_of
from gpugate.report.terminal import print_parts, terminal_columns
from gpugate.session.machine_facts import Facts
from gpugate.session.options import DEFAULT_BASELINES, device_name, find_baselines
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.store import baseline
from gpugate.store.baseline import Record
from gpugate.store.codec import from_json
from gpugate.units import list_names, number_of, yardstick_label, yardstick_value

NOT_TRUSTWORTHY = 1
MEASURING_S = 120.0  # mostly the import of torch, from a cold disk
BUSY_SHARE = 0.5  # of the cores that this process may use
SHOWN = 3  # names or differences in one sentence
# `absent` is less than a GPU machine has; `bad` makes every verdict doubtful.
State = Literal["ok", "absent", "bad"]
Answer = tuple[State, str]  # with the value and, unless the state is ok, the next step


class Finding(NamedTuple):
    """One line of the diagnosis."""

    name: str
    state: State
    sentence: str


# --- the command ------------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 a gate run here would be trustworthy, 1 it would not, 2 wrong options"
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument(
        "--baselines",
        metavar="DIR",
        type=Path,
        help="where baselines are (default: the setting perf_baselines, else baselines)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the diagnosis. Raises OptionError for a device that does not exist."""
    device = device_name(arguments.device)
    with Console(stderr=True).status("looking at this machine"):
        findings = diagnose(device, find_baselines(arguments.baselines))
    table = Table("", (Column("", left=True),) * 3, tuple(findings))
    bad = [finding.name for finding in findings if finding.state == "bad"]
    sentence = f"would not be trustworthy: {', '.join(bad)}" if bad else "would be trustworthy"
    end = Text(f"a gate run here {sentence}", style=style_of("bad" if bad else "ok"))
    print_parts([*table.rich(terminal_columns()), Text(), end])
    return NOT_TRUSTWORTHY if bad else 0


def diagnose(asked: str, baselines_path: Path) -> list[Finding]:
    """Examines the machine for a device `asked`, as `--device` takes it. Raises OptionError where the device does not
    exist."""
    ended = children.run_module("gpugate.session.machine_facts", task=asked, timeout_s=MEASURING_S)
    if not ended.messages:
        step = "look after the driver and the memory that is free, or install torch anew"
        return [Finding("machine", "bad", f"the process that examined it {ended.cause}: {step}")]
    if isinstance(ended.messages[0], str):
        raise OptionError(ended.messages[0])
    return list(list_findings(from_json(Facts, ended.messages[0]), asked, baselines_path))


# --- the findings -----------------------------------------------------------------------------------------------------


def list_findings(facts: Facts, asked: str, baselines_path: Path) -> Iterator[Finding]:
    """Yields the findings in the order of reading. A CPU has no findings about clocks and other processes."""
    environment = facts.environment
    yield Finding("machine", "ok", ", ".join(environment.facts))
    yield Finding("GPU", *judge_gpu(environment, facts.driver_gpus, asked))
    try:
        files = baseline.load_all(baselines_path / machine_name(environment))
        records = {f"{name}/{key}": entry.record for name, file in files.items() for key, entry in file.cases.items()}
        yield Finding("baselines", *judge_baselines(baselines_path, environment, records))
    except BaselineError as error:
        records = {}
        yield Finding("baselines", "bad", str(error))
    busy = facts.load > BUSY_SHARE * facts.cores
    load = f"other processes keep {facts.load:.1f} of {facts.cores} cores busy"
    yield Finding("load", "bad" if busy else "ok", f"{load}: end them" if busy else load)
    problem = compiler_problem()
    yield Finding("compiler", "absent" if problem else "ok", problem or "C++ and Python.h, for torch.compile")
    if environment.device_kind == "cuda":
        ids = ", ".join(map(str, facts.foreign))
        others = f"process {ids} also uses the GPU: end it, wait for it, or choose another --device"
        yield Finding("other processes", "bad" if ids else "ok", others if ids else "none on the GPU")
        yield Finding("clocks", *judge_clocks(facts))
    yield Finding("yardsticks", *judge_yardsticks(facts, records))


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


def judge_baselines(path: Path, environment: Environment, records: Mapping[str, Record]) -> Answer:
    """Checks that there are records of this machine, and of enough processes for a variation."""
    where = "" if str(path) == DEFAULT_BASELINES else f" {BASELINES} {shlex.quote(str(path))}"
    suite = "pytest perf_tests" if Path("perf_tests").is_dir() else "pytest"
    command = f"{suite}{' -m gpu' if environment.device_kind == 'cuda' else ''}{where}"
    record_all = f"{describe_threads(environment.device_kind)}{command} {RECORD}"
    matches = [compare(record.environment, environment) for record in records.values()]
    if all(match.kind == "foreign" for match in matches):
        folder = path / machine_name(environment)
        return "bad", f"{folder} has no record of this machine, and a gate fails without one: {record_all}"
    few = [name for name, record in records.items() if len(record.processes) < DECIDING_PROCESSES]
    if few:
        counts = f"{len(few)} of {len(records)} cases are recorded by fewer than {DECIDING_PROCESSES} processes"
        return "bad", f"{counts} ({list_names(few, SHOWN)}), and a gate fails on them: {record_all}"
    counts, differences = number_of(len(records), "case"), chain.from_iterable(match.differences for match in matches)
    if differing := list(dict.fromkeys(differences)):
        loosely = "recorded under other software, so times are judged loosely"
        return "ok", f"{counts}, {loosely}: {list_names(differing, SHOWN)}"
    return "ok", f"{counts}, recorded with the present software"


def judge_clocks(facts: Facts) -> Answer:
    """Checks that neither heat nor the hardware slows the clock. A clock capped by the power limit is normal."""
    if facts.throttled_by:
        return "bad", f"slowed by {', '.join(facts.throttled_by)} under load: cool it, or use another GPU"
    if not facts.clock_mhz:
        return "ok", "NVML reports no clock here: a gate detects throttling by the yardsticks alone"
    range_mhz = f"{min(facts.clock_mhz)} to {max(facts.clock_mhz)} MHz"
    return "ok", f"SM {range_mhz} during a second of matmuls, slowed by neither heat nor hardware"


def judge_yardsticks(facts: Facts, records: Mapping[str, Record]) -> Answer:
    """Compares two probes of the yardsticks, as the gate does: with those recorded under this exact software, else with
    each other.

    A gate compares with the record of each case, so the highest recorded values must be met. One bad probe does not
    prove a bad machine: compared with records, both probes must have fallen.
    """
    if facts.quota_throttled is not None:
        return "bad", f"{describe_throttling(facts.quota_throttled)}: raise it, or use fewer threads by OMP_NUM_THREADS"
    exact = [record for record in records.values() if compare(record.environment, facts.environment).kind == "exact"]
    recorded = _highest([record.yardsticks for record in exact])
    probes, best = facts.yardsticks, _highest([probe.values for probe in facts.yardsticks])
    problems = [fallen_yardstick([probe], recorded or best) for probe in probes]
    if all(problems) if recorded else any(problems):
        against = "recorded" if recorded else "a moment apart"
        return "bad", f"{next(filter(None, problems))} {against}: repeat when the machine is idle and cool"
    if (times := launch_slowdown(probes, recorded) or 0.0) > PROBE_RATIO:
        slow = f"slow host: launches take {times:.2g} times the recorded time"
        return "bad", f"{slow}, so that no wall time would be compared with its record: repeat when the machine is idle"
    # The higher launch latency is not the better one.
    shown = (f"{yardstick_label(n)} {yardstick_value(n, value)}" for n, value in best.items() if "latency" not in n)
    against = "as recorded" if recorded else "steady, and none recorded to compare them with"
    return "ok", f"{', '.join(shown)}; {against}"


def _highest(probes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(chain.from_iterable(probes))
    return {name: max(values[name] for values in probes if name in values) for name in names}
