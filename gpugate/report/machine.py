"""The machine during a run in words: how fast its own ceilings were, and what else kept it busy."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from gpugate import units
from gpugate.judging.machine_state import PROBE_RATIO, describe_throttling
from gpugate.measurement.derived import LAUNCH_LATENCY, launch_slowdown
from gpugate.measurement.record import Measurement
from gpugate.results.run import RunResult
from gpugate.units import yardstick_label, yardstick_value


def yardsticks(run: RunResult) -> list[str]:
    """`matmul bf16 788 TFLOP/s` and so on: the medians of the run's probes."""
    values: dict[str, list[float]] = {}
    for probe in run.yardsticks:
        for name, value in probe.values.items():
            values.setdefault(name, []).append(value)
    return [f"{yardstick_label(name)} {yardstick_value(name, median(found))}" for name, found in values.items()]


def load(run: RunResult) -> list[str]:
    """The load during the measurements of the run, and launches that are far slower than recorded."""
    measured = [case.measurement for case in run.cases.values() if case.measurement is not None]
    return [*describe_load(measured), *describe_slow_launches(run)]


def describe_slow_launches(run: RunResult) -> list[str]:
    """`slow host: launches take 1.5 times the recorded 6.5 us`; empty where they do not."""
    records = [case.remembered.yardsticks for case in run.cases.values() if case.remembered is not None]
    recorded = [values[LAUNCH_LATENCY] for values in records if LAUNCH_LATENCY in values]
    then = {LAUNCH_LATENCY: median(recorded)} if recorded else {}
    if (times := launch_slowdown(run.yardsticks, then) or 0.0) <= PROBE_RATIO:
        return []
    return [f"slow host: launches take {times:.2g} times the recorded {yardstick_value(*then.popitem())}"]


def describe_load(measured: Sequence[Measurement]) -> list[str]:
    """`other processes kept up to 1.4 CPU cores busy` during the measurements, where that is known, and throttling."""
    counters = [one.optimized_counters for one in measured]
    cores, shares = ([one[name] for one in counters if name in one] for name in ("other_cores", "throttled_periods"))
    busy = [f"other processes kept up to {max(cores):.2g} CPU cores busy"] if cores else []
    return busy + ([describe_throttling(max(shares))] if shares else [])


def describe_unfit(case_ids: Sequence[str], noun: str) -> str | None:
    """`2 cases not counted, since the machine was not well (ENV_INVALID): tiny/a/cuda, tiny/b/cuda`, if any."""
    if not case_ids:
        return None
    names = units.list_names(sorted(set(case_ids)), most=3)
    return f"{units.number_of(len(case_ids), noun)} not counted, since the machine was not well (ENV_INVALID): {names}"
