"""The command line and the settings, read once: no other module reads pytest's configuration."""

from __future__ import annotations

import itertools
import os
import re
import reprlib
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from gpugate.errors import OptionError
from gpugate.faults.fault import SPELLING, Fault
from gpugate.machine import children
from gpugate.measurement import time_limit
from gpugate.measurement.settings import Settings
from gpugate.results.fleet_plan import Shard
from gpugate.session.workers import Worker, read_worker
from gpugate.statistics.policy import DECIDING_PROCESSES
from gpugate.store.night_files import RUN
from gpugate.store.store_url import VARIABLE, choose_url, find_file, proofs_folder
from gpugate.store.version import STORE_FOLDER
from gpugate.units import MOST_PROCESSES, MOST_SECONDS
from gpugate.workload import SET

MOST_SEED = 10**18  # less than 64 bits hold
DEFAULT_PROCESSES, DEFAULT_ON_SEVERAL_GPUS = 5, 11
DEFAULT_BASELINES = "baselines"
AUTO, OFF = "auto", "off"  # values of --against; any other value is a git ref
MEASURE = "measure for the parent"  # the task of a fresh process
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_SHARD = re.compile(r"(\d{1,5})/(\d{1,5})")
Tool = Literal["nsys", "ncu", "torch-trace"]
# The option of each profiler, and the default folder of its profiles.
PROFILERS: dict[Tool, str] = {"nsys": "gpugate-nsys", "ncu": "gpugate-ncu", "torch-trace": "gpugate-traces"}
DEFAULT_KERNELS = 1000
# The default and the effect of each setting of pytest's configuration.
SETTINGS = {
    "perf_store": ("", f"the project's own --perf-store, also for the commands of gpugate; {VARIABLE} comes before it"),
    "perf_baselines": (
        DEFAULT_BASELINES,
        "the project's own --perf-baselines, also for the commands of gpugate; relative to pytest's rootdir",
    ),
    "perf_processes": (
        "",
        f"processes that --update-baselines records, this one included; without it {DEFAULT_PROCESSES}, and "
        f"{DEFAULT_ON_SEVERAL_GPUS} on a machine with several GPUs; before an alarm, a run that judges asks at most as "
        f"many, and at most {DECIDING_PROCESSES}; with 1, a run takes no further pairs of an undecided case",
    ),
    "perf_seed": (
        "",
        "draws the fresh inputs of the run that printed this seed; without it each session draws another seed",
    ),
    "perf_step_timeout": (
        f"{time_limit.DEFAULT_S:g}",
        "seconds: a block of steps, finish, engaged or close that takes longer is an error of its case, with the "
        f"stacks of all threads; a build, its first step and a proof may take {time_limit.BUILD_SHARE} times as long; "
        "give more for a debugger",
    ),
}
# Options that need timings, which a profiler disturbs; the workers of `-n` would share a profile.
_NOT_PROFILED = {name: name for name in ("--gate", "--update-baselines", "--perf-json", "--perf-report", "--against")}
_NOT_PROFILED |= {"--explain": "--explain", "numprocesses": "-n", "tx": "-n"}


@dataclass(frozen=True)
class Profiling:
    """Profiles of both sides of every case instead of measurements, by one tool, in one folder."""

    tool: Tool
    folder: Path
    kernels: int = DEFAULT_KERNELS  # the number of launches of kernels that ncu counts


@dataclass(frozen=True)
class Options:
    """The options that the user gave. `device` is 'auto', 'cpu', 'cuda' or 'cuda:N'."""

    gate: bool
    update_baselines: bool
    reason: str
    processes: int | None  # None: as many as `recording.planned_processes` takes for the machine
    device: str
    seed: int | None  # None: another one each session
    budget_s: float | None  # None: a run on a CPU plans the time of each case, and on a GPU a case has the usual one
    json_path: Path | None
    baselines_path: Path
    command: str  # that selects the same tests with the same baselines
    allow_missing: frozenset[str]
    settings: Mapping[str, str] = field(default_factory=dict)  # by name, which only workloads understand
    own_inputs: bool = False  # settings are given, and the folder of baselines knows nothing of them
    fault: Fault | None = None  # put into every optimized side, on purpose
    report_path: Path | None = None  # the directory of this night
    store_url: str | None = None  # None: this process adds no run to a store
    proofs_path: Path | None = None  # the folder of remembered proofs; None: none is remembered
    against: str = OFF  # the version to compare with: off, auto or a git ref
    step_timeout_s: float = time_limit.DEFAULT_S  # of what a side does without an end
    fresh: bool = False  # measures for the process that started it, which judges and shows the proofs
    explain: bool = False  # an autopsy of every case, not only of those that fail
    profiling: Profiling | None = None  # what is taken instead of measurements
    shard: Shard | None = None  # that is measured; None: all selected cases
    worker: Worker | None = None  # of xdist, whose controller writes one run for all

    @property
    def deciding_processes(self) -> int:
        """The most processes that measure a case before an alarm, this one included."""
        if self.update_baselines or self.fresh:
            return 1
        return min(self.processes or DECIDING_PROCESSES, DECIDING_PROCESSES)

    @property
    def given_paths(self) -> tuple[Path, ...]:
        """The files of the run that the user asked for, which all workers have in common."""
        night = None if self.report_path is None else self.report_path / RUN
        return tuple(path for path in (self.json_path, night) if path is not None)

    @property
    def run_paths(self) -> tuple[Path, ...]:
        """The files that this process writes at its end."""
        return self.given_paths if self.worker is None else (self.worker.path,)

    @property
    def case_paths(self) -> tuple[Path, ...]:
        """The files that get each finished case, so that a session that is killed keeps them."""
        if self.given_paths or self.worker is None:
            return self.given_paths
        return (self.worker.folder / "run.json",)

    @property
    def result_paths(self) -> tuple[Path, ...]:
        """The results of runs with these options as patterns of git: an unfinished run has files beside its own, and
        earlier nights stand beside this one."""
        runs = [path.with_name(f"{path.name}*") for path in self.given_paths]
        if self.report_path is not None:
            runs += [self.report_path, *(path.parent for path in self.report_path.parent.glob(f"*/{RUN}"))]
        store = None if self.store_url is None else find_file(self.store_url)
        runs += [] if store is None else [store.with_name(f"{store.name}*")]
        return (self.baselines_path, *runs)


# Every option with its effect and its default, as `pytest --help` has them. A value in brackets may be left out.
OPTIONS = {
    "--gate": "fail on every verdict but PASS and IMPROVED, and on a missing GPU (default: off)",
    "--update-baselines[=REASON]": "record the measured times as the new baselines, which keep the REASON "
    "(default: off)",
    "--perf-device DEVICE": "measure on auto, cpu, cuda or cuda:N (default: auto)",
    "--perf-budget SECONDS": "sample each case for SECONDS, without the time of its builds (default: "
    f"{Settings.budget_s:g}; on a CPU, all cases share two minutes; 3 to 6 where it gates or records)",
    "--perf-json FILE": "write all measurements and verdicts to FILE (default: nowhere)",
    "--perf-report DIR": "write this night to DIR: run.json, junit.xml, summary.md and the page night.html "
    "(default: nowhere)",
    "--perf-store URL": "add the run to the store at this SQLAlchemy URL, such as postgresql://user@host/gpugate; off "
    f"adds it to none (default: {VARIABLE}, else {STORE_FOLDER} in pytest's rootdir)",
    "--perf-shard I/N": "measure shard I of N, from 1/N to N/N, of the selected cases; gpugate verdict --merge makes "
    "one night of all shards (default: all cases)",
    "--perf-set NAME=VALUE": "give workloads the setting NAME, such as a folder of your own data; repeat it for "
    "several settings (default: none)",
    "--perf-baselines DIR": f"read and write baselines in DIR (default: {DEFAULT_BASELINES} of pytest's rootdir)",
    "--allow-missing NAMES": "let a gate pass without these packages or engines, separated by commas; cuda and gpus "
    "are the GPUs (default: none)",
    "--perf-mutate FAULT": "put a known fault into every optimized side, so that a check must fail; not with --gate: "
    f"{', '.join(SPELLING.values())} (default: none)",
    "--against REF": "compare each case in turns with the ancestor that HEAD and REF share; auto compares with the "
    "recorded commit where a record alarms or the source changed, off nothing (default: auto with --gate, else off)",
    "--explain": "explain for every case where its time went since the record, or against its reference without a "
    "record (default: for cases that fail)",
    "--nsys[=DIR]": "judge nothing; write an Nsight Systems report of a few warm steps of each side to DIR, by "
    f"default {PROFILERS['nsys']} (default: off)",
    "--ncu[=N]": "judge nothing; run one step of each side under Nsight Compute, which counts the first N launches of "
    f"kernels, by default {DEFAULT_KERNELS}, and keep its report in {PROFILERS['ncu']} (default: off)",
    "--torch-trace[=DIR]": "judge nothing; write PyTorch's trace of a few warm steps of each side, for Perfetto, to "
    f"DIR, by default {PROFILERS['torch-trace']} (default: off)",
}
# The value of an option whose value is left out, and that of one which is not given.
BARE = {"--update-baselines": "", "--ncu": str(DEFAULT_KERNELS)}
BARE |= {f"--{tool}": PROFILERS[tool] for tool in ("nsys", "torch-trace")}
NOT_GIVEN: dict[str, Any] = {"--perf-device": "auto", "--allow-missing": "", "--perf-set": []}


def add_options(parser: pytest.Parser) -> None:
    """Every option of the suite, in one group of `pytest --help`, each with its default."""
    group = parser.getgroup("gpugate", "gpugate: does a GPU optimization still pay?")
    for usage, text in OPTIONS.items():
        name, _, value = usage.rstrip("]").replace("[=", " ").partition(" ")
        how: dict[str, Any] = {"metavar": value} if value else {"action": "store_true"}
        how |= {"nargs": "?", "const": BARE[name]} if name in BARE else {}
        how |= {"default": NOT_GIVEN[name]} if name in NOT_GIVEN else {}
        how |= {"action": "append"} if name == "--perf-set" else {}
        group.addoption(name, help=text.replace("%", "%%"), **how)


def add_settings(parser: pytest.Parser) -> None:
    """The rarely changed values, which pytest reads from a project's configuration or from `-o NAME=VALUE`."""
    for name, (default, text) in SETTINGS.items():
        parser.addini(name, f"gpugate: {text} (default: {default or 'none'})", default=default)


def find_url(given: str | None) -> str:
    """The URL of the store that a console command was given, else that of the project. Raises OptionError where it is
    off."""
    project = None if given else _read_project()
    root, setting = (Path(), "") if project is None else (project.rootpath, project.getini("perf_store"))
    found = choose_url(given, root, setting, option="--store")
    if found is None:
        raise OptionError("the store is off: give --store URL")
    return found


def find_project() -> Path:
    """The root folder of the project around the working folder."""
    return _read_project().rootpath


def find_baselines(given: Path | None) -> Path:
    """The folder of baselines that a console command was given, else that of the project around the working folder."""
    own = given or _own_baselines(_read_project())
    return own.relative_to(Path.cwd()) if own.is_relative_to(Path.cwd()) else own


def _read_project() -> pytest.Config:
    """The configuration of pytest in the project around the working folder, without its conftest.py files."""
    try:
        return pytest.Config.fromdictargs({}, ["--noconftest", "-p", "gpugate.plugin"])
    except pytest.UsageError as error:
        raise OptionError(f"pytest's configuration cannot be read ({error}): mend it") from None


def read_options(config: pytest.Config) -> Options:
    """Raises OptionError, naming the option and the value, for what cannot be used."""
    value = config.getoption
    _check_together(config)
    fresh = children.task == MEASURE
    budget, processes = value("perf_budget"), config.getini("perf_processes")
    # A child has the cases of its parent, whose shard and files may stand in the project's own settings.
    is_child, given = children.task is not None, value("perf_shard")
    shard = None if is_child or given is None else parse_shard(given)
    own_store, seed = config.getini("perf_store"), config.getini("perf_seed")
    store_url = None if fresh else choose_url(value("perf_store"), config.rootpath, setting=own_store)
    return Options(
        gate=value("gate") and not fresh,
        update_baselines=value("update_baselines") is not None and not fresh,
        reason=check_reason("--update-baselines", value("update_baselines") or ""),
        processes=whole_number("perf_processes", processes) if processes else None,
        device=device_name(value("perf_device")),
        seed=whole_number("perf_seed", seed, example=7, least=0, most=MOST_SEED) if seed else None,
        budget_s=seconds("--perf-budget", budget) if budget else None,
        step_timeout_s=seconds("perf_step_timeout", config.getini("perf_step_timeout")),
        json_path=writable("--perf-json", _path(config, "--perf-json")) if fresh or not is_child else None,
        report_path=None if is_child else _path(config, "--perf-report"),
        store_url=None if shard else store_url,
        proofs_path=_proofs_path(config, store_url),
        baselines_path=_baselines(config),
        settings=_settings(config),
        own_inputs=bool(value("perf_set")) and _are_the_default(config),
        command=_command(config),
        allow_missing=frozenset(filter(None, re.split(r"[,\s]+", value("allow_missing")))),
        fault=None if value("perf_mutate") is None else Fault.parse(value("perf_mutate")),
        against=_against(config, is_child),
        fresh=fresh,
        explain=value("explain"),
        profiling=_profiling(config),
        shard=shard,
        worker=read_worker(config),
    )


def _against(config: pytest.Config, is_child: bool) -> str:
    """The value of --against; a child measures for its parent, which compares."""
    given: str | None = config.getoption("against")
    if given == "":
        raise OptionError("--against= names nothing: give a git ref, auto or off")
    if is_child:
        return OFF
    return given or (AUTO if config.getoption("gate") else OFF)


def _profiling(config: pytest.Config) -> Profiling | None:
    """Raises OptionError for what excludes a profile: a second profiler, workers, an option that judges."""
    asked = profilers(config)
    if not asked:
        return None
    tool, *more = asked
    value = config.getoption(f"--{tool}")
    if not value:
        raise OptionError(f"--{tool}= names nothing: give a value behind it, or --{tool} alone")
    _refuse_ambiguous(config, f"--{tool}", value)
    judging = [word for name, word in _NOT_PROFILED.items() if config.getoption(name, None) not in (None, False, [])]
    if others := [*(f"--{one}" for one in more), *judging]:
        raise OptionError(f"--{tool} would disturb {others[0]}: run one after the other")
    folder = config.invocation_params.dir / (PROFILERS["ncu"] if tool == "ncu" else value)
    kernels = whole_number("--ncu", value) if tool == "ncu" else DEFAULT_KERNELS
    return Profiling(tool, folder, kernels)


def profilers(config: pytest.Config) -> list[Tool]:
    """The profilers that options select."""
    return [tool for tool in PROFILERS if config.getoption(f"--{tool}") is not None]


def _refuse_ambiguous(config: pytest.Config, option: str, value: str) -> None:
    """Raises OptionError where the word behind an option that needs no value may be a folder of tests."""
    if (option, value) in itertools.pairwise(str(word) for word in config.invocation_params.args):
        raise OptionError(
            f"{option} {value} could mean tests to run: write {option}={shlex.quote(value)}, or put the tests first"
        )


def _check_together(config: pytest.Config) -> None:
    """Raises OptionError for options that contradict each other."""
    value = config.getoption
    records, gate, fault = value("update_baselines") is not None, value("gate"), value("perf_mutate")
    own, shard = value("perf_set"), value("perf_shard")
    has_workers = any(config.getoption(name, None) for name in ("numprocesses", "tx"))
    if records:
        _refuse_ambiguous(config, "--update-baselines", value("update_baselines"))
    for sentence, refused in {
        f"--perf-set {', '.join(own[:1])} changes the inputs, and {DEFAULT_BASELINES}/ has records of the default "
        "inputs: give --perf-baselines another folder": records and own and _are_the_default(config),
        f"--perf-shard {shard} divides a workload, and --update-baselines records whole ones: record without shards": (
            shard is not None and records
        ),
        f"--gate would judge the fault {fault} of --perf-mutate: leave out one of the two, also in addopts and "
        "PYTEST_ADDOPTS": gate and fault is not None,
        "--gate judges and --update-baselines records: run one after the other": gate and records,
        "--update-baselines with -n would record workers that share a host: use -n 0": records and has_workers,
        "--perf-mutate injects a fault, which no baseline may contain: record without it": (
            records and fault is not None
        ),
        "--against judges and --update-baselines records: run one after the other": (
            records and value("against") not in (None, OFF)
        ),
    }.items():
        if refused:
            raise OptionError(sentence)


def _command(config: pytest.Config) -> str:
    """`pytest perf_tests` as it was typed, without what selects single tests."""
    given = config.args if config.args_source is config.ArgsSource.ARGS else []
    paths = dict.fromkeys(argument.partition("::")[0] for argument in given)
    baselines = config.getoption("perf_baselines")
    # Behind a space pytest would take the folder for tests, and may move its rootdir there.
    elsewhere = [f"--perf-baselines={baselines}"] if baselines else []
    own = [f"{SET}{word}" for word in config.getoption("perf_set")]
    fault = config.getoption("perf_mutate")
    mutated = [] if fault is None else [f"--perf-mutate={fault}"]
    alone = [f"--against={OFF}"] if config.getoption("against") == OFF else []  # a ref may not stand in a recording
    return shlex.join(["pytest", *paths, *elsewhere, *own, *alone, *mutated])


def _path(config: pytest.Config, option: str) -> Path | None:
    """The path that `option` names; None where it is not given. Raises OptionError for an empty one, such as that of a
    script whose variable is not set."""
    text = config.getoption(option)
    if text == "":
        raise OptionError(f"{option}= names nothing: give a path behind it")
    return None if text is None else config.invocation_params.dir / text


def _settings(config: pytest.Config) -> dict[str, str]:
    """The values of `--perf-set` by name. The path of a file or a folder becomes absolute: fresh processes start in the
    root folder.
    """
    settings = {}
    for word in config.getoption("perf_set"):
        name, _, value = word.partition("=")
        if not name or not value:
            raise OptionError(f"--perf-set {word!r} is no NAME=VALUE: give both, such as --perf-set data=FOLDER")
        path = config.invocation_params.dir / value
        settings[name] = str(path) if path.exists() else value
    return settings


def _baselines(config: pytest.Config) -> Path:
    """The folder of baselines: a given path is relative to the working folder, the default to the project."""
    found = _path(config, "--perf-baselines") or _own_baselines(config)
    if found.is_file():
        raise OptionError(f"--perf-baselines {found} is a file: give the folder with the baselines of all machines")
    return found


def _own_baselines(config: pytest.Config) -> Path:
    return config.rootpath / (config.getini("perf_baselines") or DEFAULT_BASELINES)


def _are_the_default(config: pytest.Config) -> bool:
    return _baselines(config).resolve() == _own_baselines(config).resolve()


def seconds(option: str, text: str) -> float:
    """A number of seconds. Raises OptionError, naming the option, for anything else."""
    with suppress(ValueError):
        if 0 < (value := float(text)) <= MOST_SECONDS:
            return value
    raise OptionError(f"{option} is {reprlib.repr(text)}: give seconds above 0, {MOST_SECONDS:g} at most, such as 6")


def whole_number(
    option: str, text: str, example: int = DEFAULT_PROCESSES, least: int = 1, most: int = MOST_PROCESSES
) -> int:
    """A whole number in these bounds. Raises OptionError, naming the option, for anything else."""
    if text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most:
        return int(text)
    allowed = f"a whole number from {least} to {most}"
    raise OptionError(f"{option} is {reprlib.repr(text)}: give {allowed}, such as {example}")


def check_reason(option: str, text: str) -> str:
    """The reason of a recording. Raises OptionError for the placeholder of a printed command."""
    if text == "...":
        raise OptionError(f'{option}="..." is a placeholder: write the reason of the recording in its place')
    return text


def _proofs_path(config: pytest.Config, store_url: str | None) -> Path | None:
    """The folder of remembered proofs. A fault is no proof, and nothing shows that a user's own data did not change."""
    own = config.getoption("perf_mutate") is not None or config.getoption("perf_set")
    return None if store_url is None or own else proofs_folder(store_url, config.rootpath)


def device_name(text: str) -> str:
    """`text` itself, as `choose_device` takes it. Raises OptionError for what names no device."""
    if not _DEVICE.fullmatch(text):
        raise OptionError(f"there is no device {text!r}: use auto, cpu, cuda or cuda:N")
    return text


def writable(option: str, path: Path | None) -> Path | None:
    """`path` itself. Raises OptionError for a folder or a device, which a session would replace, and for a file in a
    folder that is missing or takes no files."""
    if path is not None and ((path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK)):
        raise OptionError(f"{option} {path} cannot be written: give a file name in a folder that can be written")
    return path


def parse_shard(text: str) -> Shard:
    """The shard that `I/N` names. Raises OptionError for one that is not there."""
    found = _SHARD.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise OptionError(f"--perf-shard is {text!r}: give I/N with I from 1 to N, such as 1/4")
    return Shard(int(found[1]), int(found[2]))
