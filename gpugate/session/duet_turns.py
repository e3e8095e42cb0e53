"""Live duets in two processes: each has one version of a side, and one stands still while the other one runs.

They serve two versions that one process cannot hold: another Python or torch, another gpugate, or too little memory.
Where the memory is too small for both sides at once, one is built and timed after the other's end.
"""

from __future__ import annotations

import json
import select
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any, NoReturn

import torch

from gpugate.errors import CompareError
from gpugate.measurement import counters
from gpugate.measurement.both_sides import BothSides
from gpugate.measurement.difference import difference
from gpugate.measurement.idle_side import resume_workers, stop_workers
from gpugate.measurement.progress import silent
from gpugate.measurement.record import Difference, Measurement, Pair, SideCost, TimedBuild
from gpugate.measurement.run import measure_live
from gpugate.measurement.settings import WARM_UP_S, Settings
from gpugate.measurement.sides import BuiltSide
from gpugate.measurement.time_limit import BUILD_SHARE
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.measurement.warm_up import least_block_ms, warm_up
from gpugate.results.duet import Arrangement
from gpugate.session.child_process import ENGINE, interpreter_command
from gpugate.session.duet_side import PROTOCOL, read_tensors
from gpugate.session.duets import DuetPlan
from gpugate.session.other_tree import Layout
from gpugate.session.socket_child import SocketChild
from gpugate.workload import Case, Context, Side

BASE, HEAD = VERSIONS = ("base", "head")
RECEIVED_BYTES = 65536  # at most, at once
POLL_S = 0.2  # between two looks for a process that ended without closing its socket
# Of `perf_step_timeout`, for a reply to a build with its first step and outputs: the limits of the process are earlier.
LONGEST_SHARE = 3 * BUILD_SHARE
FEWEST_BLOCKS = 4  # of a side in a turn, where one side is measured after the other
_NEW_PYTHON = "give --base-python a Python of at least 3.10 that has torch and the requirements of gpugate"
_NO_OWN_ENGINE = "compare without --own-engine, or give a later version"


class TurnError(CompareError):
    """A version's process failed, or ended; with `out_of_memory`, its memory or its GPU's is too small."""

    def __init__(self, sentence: str, out_of_memory: bool = False) -> None:
        super().__init__(sentence)
        self.out_of_memory = out_of_memory


class DistantSide(BuiltSide):
    """A built side in another process, whose blocks this one requests."""

    process: SideProcess

    def timed_block(self, inputs: Sequence[Any], time_ms: object, steps: int | None = None) -> float:
        return float(self.process.request("block", steps=steps or self.steps_per_block)["step_ms"])

    def close(self) -> None:
        if not self.process.ended:
            self.process.request("close")


class SideProcess(SocketChild):
    """A process of `gpugate.session.duet_side` from its start until `stack` closes."""

    def __init__(self, stack: ExitStack, command: Sequence[str], root: Path, orders: dict[str, Any]) -> None:
        self.version = str(orders["version"])
        self.other: SideProcess | None = None  # of the other version
        self.ended = False
        self._longest_s = LONGEST_SHARE * orders["step_timeout_s"]
        try:
            super().__init__(stack, command, {**orders, "protocol": PROTOCOL}, cwd=root)
        except OSError as error:
            if error.filename != command[0]:  # such as too many open files
                raise
            raise CompareError(f"{command[0]} cannot be started ({error.strerror}): {_NEW_PYTHON}") from error
        self.group = {-self.child.pid}

    def greet(self, next_step: str) -> str:
        """Waits until the process is ready; returns the versions of its software. Raises CompareError, with
        `next_step`, where the process cannot take part in a duet."""
        try:
            hello = self._receive()
        except TurnError as error:
            raise CompareError(f"{error}: {next_step}") from None
        if hello["protocol"] != PROTOCOL:
            known = f"gpugate {hello['gpugate']} of the {self.version} has protocol {hello['protocol']} of duets"
            raise CompareError(f"{known}, and this gpugate has {PROTOCOL}: {_NO_OWN_ENGINE}")
        return str(hello["software"])

    def request(self, do: str, **arguments: object) -> dict[str, Any]:
        """Sends a request and returns the reply; meanwhile the other process stands still. Raises TurnError."""
        if self.other is not None and not self.other.ended:
            stop_workers(self.other.group)
        resume_workers(self.group)
        with suppress(BrokenPipeError):  # the end of the process is found below, with its reason
            self.socket.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
        return self._check(self._receive())

    def build(self, file: Path | None, device: torch.device) -> tuple[DistantSide, dict[str, Any]]:
        try:
            reply = self.request("build", file=None if file is None else str(file))
        except TurnError:
            if not self.ended:
                self.request("close")
            raise
        pipeline = Side(step=_step_elsewhere, **reply["pipeline"])
        side = DistantSide(reply["name"], pipeline, TorchFlags(), device, SideCost(**reply["cost"]))
        side.process, side.workers = self, self.group
        return side, reply

    def _receive(self) -> dict[str, Any]:
        """The reply, which is one line; a process may end or hang in the middle of it."""
        until = monotonic() + self._longest_s
        line, ended = b"", False
        while not line.endswith(b"\n"):
            if select.select([self.socket], [], [], 0 if ended else POLL_S)[0]:
                part = b""
                with suppress(ConnectionResetError):
                    part = self.socket.recv(RECEIVED_BYTES)
                if not part:
                    raise self._end()
                line += part
                continue
            if ended:  # a child of its own may have the socket open still
                raise self._end()
            ended = self.child.poll() is not None
            if monotonic() > until:
                self.child.kill()
                raise self._end(f"did not answer within {self._longest_s:g} s")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def close(self) -> None:
        """Lets the process remove what is temporary, before its group is killed."""
        resume_workers(self.group)
        self.child.send_signal(signal.SIGINT)
        super().close()

    def _end(self, reason: str | None = None) -> TurnError:
        """The error of a process that takes no requests any more."""
        self.ended = True
        return TurnError(f"the process of the {self.version} {self.describe_end(reason)}")

    def _check(self, reply: dict[str, Any]) -> dict[str, Any]:
        if "error" in reply:
            raise TurnError(str(reply["error"]), bool(reply.get("out_of_memory")))
        return reply


class LivePair:
    """The two processes of a comparison, started when they are needed; a pair of which one ended is replaced."""

    def __init__(self, plan: DuetPlan, layouts: Sequence[Layout], device: str, step_timeout_s: float) -> None:
        """`layouts` are those of the base and the head."""
        python, own = plan.base_python, plan.own_engine
        self._roots = {BASE: Path(plan.base).absolute(), HEAD: Path.cwd()}
        self._layouts = dict(zip(VERSIONS, map(asdict, layouts), strict=True))
        self._pythons = {BASE: python or sys.executable, HEAD: sys.executable}
        self._engines = {one: _own_engine(one, root) if own else ENGINE for one, root in self._roots.items()}
        self._orders = {"device": device, "step_timeout_s": step_timeout_s}
        self._next_steps = {BASE: _NEW_PYTHON if python else _NO_OWN_ENGINE, HEAD: _NO_OWN_ENGINE}
        self._stack = ExitStack()
        self._processes: dict[str, SideProcess] = {}
        self.software: dict[str, str] = {}

    def __enter__(self) -> LivePair:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._processes = {}
        self._stack.close()

    def cases(self) -> list[str]:
        """The ids of the base's cases. Raises CompareError where a version cannot be driven."""
        self._start()
        return self._base_cases

    def _start(self) -> dict[str, SideProcess]:
        """The running processes. Both import their software at the same time."""
        if self._processes and not any(process.ended for process in self._processes.values()):
            return self._processes
        self.close()
        found = {}
        for version, root in self._roots.items():
            python, engine = self._pythons[version], self._engines[version]
            command = interpreter_command(python, engine, "gpugate.session.duet_side", [])
            orders = {**self._orders, "version": version, "layout": self._layouts[version]}
            found[version] = SideProcess(self._stack, command, root, orders)
        self.software = {version: process.greet(self._next_steps[version]) for version, process in found.items()}
        base, head = found[BASE], found[HEAD]
        base.other, head.other = head, base
        head.request("load")
        self._base_cases = list(base.request("load")["cases"])
        self._processes = found
        return found

    def measure(
        self, case: Case, context: Context, settings: Settings, swapped: bool, together: bool = True
    ) -> tuple[Measurement, Arrangement]:
        """Measures both versions in turns; one after another where memory is short, or not `together`.

        Raises TurnError where a version cannot be measured.
        """
        if together:
            try:
                return self._measure(case, context, settings, swapped, True), "in turns"
            except TurnError as error:
                if not error.out_of_memory:
                    raise
            self.close()  # with all that the processes may still hold
        return self._measure(case, context, settings, swapped, False), "one after another"

    def _measure(self, case: Case, context: Context, settings: Settings, swapped: bool, together: bool) -> Measurement:
        processes = self._start()
        with tempfile.TemporaryDirectory(prefix="gpugate-duet-") as folder:
            inputs, seed = str(Path(folder, "inputs.npy")), f"{settings.seed} {case.workload.name}"
            made = processes[HEAD].request("begin", case=case.id, seed=seed, file=inputs, forms=None)
            processes[BASE].request("begin", case=case.id, seed=seed, file=inputs, forms=made["forms"])
            order = [processes[version] for version in (VERSIONS[::-1] if swapped else VERSIONS)]
            sides = _Sides(order, Path(folder), context.device)
            measure = measure_live if together else _measure_one_after_another
            found = measure(case, context, settings, silent, sides)
        reference, optimized = sides.counters
        return replace(
            found,
            reference_counters=reference,
            optimized_counters=optimized,
            seed=made["seed"],
            input_sets=made["input_sets"],
        )


class _Sides:
    """Both sides of one case, the reference first, as `gpugate.measurement.run.LiveSides`."""

    def __init__(self, processes: Sequence[SideProcess], folder: Path, device: torch.device) -> None:
        self.processes, self.device = processes, device
        self.counters: list[dict[str, float]] = [{}, {}]
        self._files = [folder / "reference.npy", folder / "optimized.npy"]
        self._outputs: list[dict[str, Any]] = [{}, {}]  # the replies of the first builds

    def build_one(self, number: int) -> DistantSide:
        """Builds the reference, 0, or the other side, 1."""
        first = not self._outputs[number]
        side, reply = self.processes[number].build(self._files[number] if first else None, self.device)
        if first:
            self._outputs[number] = reply
        return side

    def build(self, reference_first: bool) -> BothSides:
        started, built = perf_counter(), dict[int, DistantSide]()
        with ExitStack() as undo:
            for number in (0, 1) if reference_first else (1, 0):
                built[number] = self.build_one(number)
                undo.callback(built[number].close)
            undo.pop_all()
        return BothSides(built[0], built[1], reference_first, perf_counter() - started, "")

    def compare(self) -> list[Difference]:
        for reply in self._outputs:
            if "problem" in reply:
                return [Difference(float("inf"), float("inf"), None, "fresh inputs", str(reply["problem"]))]
        pairs = zip(*(map(self._read, (1, 0))), strict=True)
        return [difference(output, expected, "fresh inputs") for output, expected in pairs]

    def _read(self, number: int) -> list[torch.Tensor]:
        return read_tensors(str(self._files[number]), self._outputs[number]["forms"])

    def count(self, both: BothSides, steps_ms: Sequence[float | None]) -> None:
        for number, step_ms in enumerate(steps_ms):
            self.count_one(number, step_ms)

    def count_one(self, number: int, step_ms: float | None) -> None:
        self.counters[number] = self.processes[number].request("count", step_ms=step_ms)["counters"]


def _measure_one_after_another(
    case: Case, context: Context, settings: Settings, report: object, sides: _Sides
) -> Measurement:
    """Builds and times each version, twice, in ABBA order, while the other one has no side; each takes half the budget.

    The k-th blocks of both make a pair.
    """
    started, kind = perf_counter(), context.device.type
    builds: list[TimedBuild] = []
    costs: list[SideCost] = []
    differences: list[Difference] = []
    for reference_first in (True, False):
        blocks_ms: list[list[float]] = [[], []]
        steps = [1, 1]
        for number in (0, 1) if reference_first else (1, 0):
            with closing(sides.build_one(number)) as side:
                costs.append(side.cost)
                warm_up(side, (), _no_clock, least_block_ms(side), WARM_UP_S[kind])
                until = perf_counter() + settings.budget_s / 4
                while len(blocks_ms[number]) < FEWEST_BLOCKS or perf_counter() < until:
                    blocks_ms[number].append(side.timed_block((), _no_clock))
                steps[number] = side.steps_per_block
                if settings.count and not reference_first:
                    sides.count_one(number, median(blocks_ms[number]))
        if reference_first:
            differences = sides.compare()
            if any(one.problem for one in differences):
                break
        pairs = tuple(Pair(one, other, reference_first) for one, other in zip(*blocks_ms, strict=False))
        builds.append(TimedBuild(reference_first, pairs, 0, (), *steps))
    return Measurement(
        case_id=case.id,
        instances=tuple(builds),
        stopped_because="budget" if builds else "outputs not comparable",
        differences=tuple(differences),
        reference_cost=costs[0],
        optimized_cost=costs[1],
        counters_missing=counters.why_missing(context.device),
        wall_s=perf_counter() - started,
    )


def _own_engine(version: str, root: Path) -> Path:
    for folder in (root, root / "src"):
        if (folder / "gpugate" / "__init__.py").is_file():
            return folder
    raise CompareError(f"the {version} has no gpugate of its own in {root}: {_NO_OWN_ENGINE}")


def _step_elsewhere(inputs: object) -> NoReturn:
    raise NotImplementedError("its steps run in another process")


def _no_clock(run: object) -> NoReturn:
    raise NotImplementedError("blocks are timed in another process")
