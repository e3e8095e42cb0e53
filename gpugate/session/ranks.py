"""A job of ranks: this process is rank 0, and every other rank is a child process that runs this file and repeats its
calls.

The engine measures rank 0 as it measures any side: pairs, order, outputs, counters and faults need no second form. A
step is announced in one message to each other rank, which does the same step of its own side. The messages are read in
order, so that a step needs no barrier: rank 0 may be many steps ahead, as on a GPU, where its host enqueues.
The collectives of the step itself keep the ranks together; the reference, which has none, leaves them apart, so before
each timed block all ranks wait for each other. An announcement takes 10 us of rank 0 per other rank, in both sides of a
pair alike.

A process meets the others at a file in a fresh temporary folder. A rank that fails or ends is the end of the job: the
others are killed, and what rank 0 waits for is aborted, so that its error names the rank and the cause.
"""

from __future__ import annotations

import gc
import importlib
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpugate.errors import RankError
from gpugate.faults.fault import OF_RANKS, Fault
from gpugate.faults.mutate import FaultyBuild, apply
from gpugate.machine import children
from gpugate.machine.children import CLOSING_S, Child, encode, kill_group
from gpugate.measurement.collectives import all_reduce_alone_ms, watch_collectives, whole_step
from gpugate.measurement.ranks import RankedSide, await_all_ranks
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.workload import Build, Context, Side

TIMEOUT_S = 60.0  # to meet, and of a collective
CAUSE_S = 4.0  # for the cause to arrive, once communication failed
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
# Abort communicators after a time-out or an error, and let this process live: it has the results of the night.
_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}


class RankJob:
    """The job of one case, from the start of its ranks to their end. `timeout_s` limits a collective and an answer."""

    def __init__(self, count: int, device: torch.device, timeout_s: float = TIMEOUT_S) -> None:
        self.count = count
        self._device, self._timeout_s = device, timeout_s
        self._stack = ExitStack()
        self._others: dict[int, Child] = {}  # by rank
        self._replies: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._failure: str | None = None
        self._closing = False
        self._sides = 0

    def __enter__(self) -> RankJob:
        from pytest import MonkeyPatch  # noqa: PT013  # the other ranks need no pytest

        with ExitStack() as undo:
            undo.push(self.__exit__)
            folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gpugate-ranks-")))
            file = str(folder / "rendezvous")
            orders = {"file": file, "timeout_s": self._timeout_s, "torch": torch.__version__, "count": self.count}
            variables = self._stack.enter_context(MonkeyPatch.context())
            for name, value in {**_NCCL, **_of_rank(0, self.count)}.items():
                variables.setenv(name, value)
            for number in range(1, self.count):
                task = {**orders, "rank": number, "device": str(_device_of(number, self._device))}
                child = Child("gpugate.session.ranks", task=task, environment=_of_rank(number, self.count))
                self._others[number] = self._stack.enter_context(child)
                child.messages.limit_sending(self._timeout_s)
            for number in self._others:
                threading.Thread(target=self._watch, args=(number,), name="gpugate-ranks", daemon=True).start()
            # Each has imported torch, so that the time-out is that of the meeting alone.
            self.request_all("greet", max(TIMEOUT_S, self._timeout_s))
            self.announce("meet")
            with self.blame_ranks():
                join(file, 0, self.count, self._device, self._timeout_s)
            self._stack.callback(_leave)
            undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._closing = True
        if any(error):
            self._end_ranks()
        else:
            for child in self._others.values():
                child.messages.limit_sending(CLOSING_S)
            with suppress(RankError):
                self.announce("leave")
        self._stack.close()

    @property
    def process_ids(self) -> list[int]:
        """The ids of the processes of the other ranks."""
        return [child.process.pid for child in self._others.values()]

    def announce(self, do: str, **arguments: object) -> None:
        if self._failure is not None:
            raise RankError(self._failure)
        line = encode({"do": do, **arguments})
        for number, child in self._others.items():
            try:
                child.messages.send_encoded(line)
            except BlockingIOError:
                self._fail(number, f"it read no announcement within {self._timeout_s:g} s: it hangs")
            except OSError:  # the end of the process is found by its watcher, with its cause
                pass
        if self._failure is not None:
            raise RankError(self._failure)

    def build(self, build: Build, context: Context) -> Side:
        """Builds the side on every rank. Raises RankError for a build function that another process cannot import."""
        self._sides += 1
        number = self._sides
        self.announce(
            "build",
            side=number,
            **_describe(build),
            items=context.items,
            seed=context.seed,
            cache=str(context.cache_dir),
            settings=dict(context.settings),
        )
        with self.blame_ranks():
            return RankedSide(build(context), self, number)

    @contextmanager
    def watch(self) -> Iterator[list[Mapping[str, float]]]:
        self.announce("watch")
        found: list[Mapping[str, float]] = []
        yield found
        found += self.request_all("report", self._timeout_s)

    @contextmanager
    def blame_ranks(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            with self._changed:
                self._changed.wait_for(lambda: self._failure is not None, CAUSE_S)
            if self._failure is not None:
                raise RankError(self._failure) from error
            if "imed out" in str(error):
                late = f"a collective did not end within {self._timeout_s:g} s: a rank skipped it, or is that slow"
                raise RankError(late) from error
            raise
        except BaseException:  # Ctrl-C: the others wait in a collective that this rank left
            self._closing = True
            self._end_ranks()
            raise

    def request_all(self, do: str, timeout_s: float) -> list[dict[str, Any]]:
        """Announces a request that every rank answers; returns the replies by rank."""
        self._replies.clear()
        self.announce(do)

        def is_over() -> bool:
            return self._failure is not None or len(self._replies) == len(self._others)

        with self._changed:
            came = self._changed.wait_for(is_over, timeout_s)
        if self._failure is not None:
            raise RankError(self._failure)
        if not came:
            missing = " and ".join(f"rank {number}" for number in self._others if number not in self._replies)
            raise RankError(f"{missing} did not answer within {timeout_s:g} s: look at the load of this machine")
        return [self._replies[number] for number in self._others]

    def _watch(self, number: int) -> None:
        """Takes the replies of a rank, in a thread of its own, until the job ends or the rank fails."""
        for reply in self._others[number].messages:
            if "error" in reply:
                self._fail(number, reply["error"])
                return
            with self._changed:
                self._replies[number] = reply
                self._changed.notify_all()
        self._fail(number)

    def _fail(self, number: int, problem: str | None = None) -> None:
        """Ends the job: the first cause is kept, the other ranks are killed, and rank 0 waits for nothing any more."""
        if self._closing:
            return
        end = f": {problem}" if problem else f" {self._others[number].await_end(CLOSING_S).cause}"
        failure = f"rank {number}{end}"
        with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()
        self._end_ranks()

    def _end_ranks(self) -> None:
        """Kills the other ranks, and aborts what rank 0 waits for."""
        for child in self._others.values():
            kill_group(child.process.pid)
        if self._device.type == "cuda":
            with suppress(Exception):  # cuda only
                dist.distributed_c10d._abort_process_group()  # else the kernel of a collective waits without end


def _describe(build: Build) -> dict[str, Any]:
    """Describes a build function so that another process finds it: its module, its name and its keyword values."""
    fault = None
    if isinstance(build, FaultyBuild):
        fault, build = str(build.fault), build.build
    keywords: Mapping[str, Any] = {}
    function: Any = build
    if isinstance(build, partial):
        function, keywords = build.func, build.keywords
        if build.args:
            raise RankError(f"{build} has values without names: name them, other ranks build it from JSON")
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "?")
    if module is None or not name.isidentifier():
        raise RankError(f"other ranks cannot import {name}: make it a function of a module")
    return {"module": module, "name": name, "keywords": dict(keywords), "fault": fault}


# --- another rank ----------------------------------------------------------------------------------------------------


class RankServer:
    """The sides of a rank other than 0. Each method without an underscore is what rank 0 may announce."""

    def __init__(self, orders: Mapping[str, Any]) -> None:
        self._orders, self._device = orders, torch.device(orders["device"])
        self._sides: dict[int, tuple[Side, TorchFlags]] = {}
        self._current = 0  # the side whose flags are set
        self._watching = ExitStack()
        self._watched, self._found = False, dict[str, float]()

    def greet(self) -> dict[str, float]:
        if torch.__version__ != self._orders["torch"]:
            ours, theirs = torch.__version__, self._orders["torch"]
            raise ValueError(f"it has torch {ours}, and rank 0 has {theirs}: give both one environment")
        return {}

    def meet(self) -> None:
        orders = self._orders
        join(orders["file"], orders["rank"], orders["count"], self._device, orders["timeout_s"])

    def build(
        self, side: int, module: str, name: str, keywords: Mapping[str, Any], fault: str | None, **context: Any
    ) -> None:
        TorchFlags().apply()
        build: Build = partial(getattr(importlib.import_module(module), name), **keywords)
        if fault is not None and Fault.parse(fault).kind in OF_RANKS:
            build = apply(Fault.parse(fault), build)
        cache_dir = Path(context.pop("cache"))
        built = build(Context(device=self._device, cache_dir=cache_dir, **context))
        gc.collect()
        self._sides[side], self._current = (built, TorchFlags.current()), side

    def step(self, side: int, inputs: Any) -> None:
        with whole_step(self._device) if self._watched else nullcontext():
            self._use(side).step(torch.tensor(inputs))

    def finish(self, side: int) -> None:
        self._use(side).finish()

    def align(self) -> None:
        gc.collect(1)  # what the last block left: a whole collection would keep all ranks waiting
        await_all_ranks()

    def close(self, side: int) -> None:
        built, _ = self._sides.pop(side)
        built.close()
        del built
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # cuda only

    def watch(self) -> None:
        watched = watch_collectives(self._device, self._orders["count"])
        self._watched, self._found = True, self._watching.enter_context(watched)

    def report(self) -> dict[str, float]:
        self._watching.close()
        self._watched = False
        return dict(self._found)

    def all_reduce_alone(self, byte_count: int) -> None:
        all_reduce_alone_ms(self._device, byte_count)

    def leave(self) -> None:
        dist.destroy_process_group()

    def _use(self, side: int) -> Side:
        built, flags = self._sides[side]
        if side != self._current:
            flags.apply()
            self._current = side
        return built


# --- every rank -------------------------------------------------------------------------------------------------------


def join(file: str, rank: int, count: int, device: torch.device, timeout_s: float) -> None:
    """Meets the other ranks at the file; all are there when it returns."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # cuda only
    dist.init_process_group(
        BACKENDS[device.type],
        init_method=f"file://{file}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=timeout_s),
        device_id=device if device.type == "cuda" else None,
    )
    await_all_ranks()  # NCCL connects at the first collective


def _leave() -> None:
    with suppress(Exception):  # an aborted group
        dist.destroy_process_group()


def _device_of(rank: int, first: torch.device) -> torch.device:
    """The device of a rank: rank 0 has the first, the others the remaining GPUs in order."""
    if first.type != "cuda":
        return first
    others = [index for index in range(torch.cuda.device_count()) if index != (first.index or 0)]  # cuda only
    return torch.device("cuda", others[rank - 1])  # cuda only


def _of_rank(rank: int, count: int) -> dict[str, str]:
    """The variables of torchrun. On a CPU the ranks share the cores."""
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    shared = {} if rank == 0 else {"OMP_NUM_THREADS": str(threads)}
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), **shared}


def main() -> None:
    """Repeats what rank 0 announces, until the messages end."""
    server = RankServer(children.task)
    gc.disable()  # a collection in a timed block would make every rank wait
    for request in children.parent:
        do = request.pop("do")
        try:
            reply = getattr(server, do)(**request)
        except BaseException as error:
            text = (str(error).strip().splitlines() or ["no message"])[0]
            children.parent.send({"error": f"{type(error).__name__}: {text}"})
            os._exit(1)
        if reply is not None:
            children.parent.send(reply)


if __name__ == "__main__":
    main()
