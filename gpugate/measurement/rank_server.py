"""The process of a rank other than 0: it repeats what rank 0 announces, until the messages end."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gpugate.faults.fault import OF_RANKS, Fault
from gpugate.faults.mutate import apply
from gpugate.machine import children
from gpugate.measurement.collectives import all_reduce_alone_ms, watch_collectives, whole_step
from gpugate.measurement.ranks import await_all_ranks, join
from gpugate.measurement.torch_flags import TorchFlags
from gpugate.workload import Build, Context, Side


class RankServer:
    """The sides of a rank other than 0. Rank 0 announces the name of a method and its arguments."""

    def __init__(self, task: Mapping[str, Any]) -> None:
        self._task, self._device = task, torch.device(task["device"])
        self._sides: dict[int, tuple[Side, TorchFlags]] = {}
        self._current = 0  # the side whose flags are set
        self._watching = ExitStack()
        self._watched, self._found = False, dict[str, float]()

    def greet(self) -> dict[str, float]:
        return {}

    def meet(self) -> None:
        task = self._task
        join(task["file"], task["rank"], task["count"], self._device, task["timeout_s"])

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
        watched = watch_collectives(self._device, self._task["count"])
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
