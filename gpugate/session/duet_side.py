"""A process with one version of each case's side, which it builds and times on request: one half of a live duet.

Requests and replies are lines of JSON on a socket that the leader passes, so that what a side prints disturbs nothing.
A request names a method of `SideServer` and its arguments. Tensors travel as bytes in a file, with their forms in the
reply. With `--own-engine` the leader is a gpugate of another version: raise PROTOCOL with every change of a request.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from gpugate import __version__
from gpugate.catalogue import catalogue
from gpugate.errors import CompareError, GpugateError, SideError
from gpugate.measurement import counters
from gpugate.measurement.cold_inputs import Inputs, check_untouched, checksum, make_inputs, tensors
from gpugate.measurement.device_timer import Timer, timer_for
from gpugate.measurement.difference import problem_with
from gpugate.measurement.settings import Settings
from gpugate.measurement.sides import BuiltSide, blame, build_side, pause_garbage_collection, release
from gpugate.measurement.time_limit import BUILD_SHARE, limit_time
from gpugate.session.other_tree import Layout
from gpugate.session.socket_child import send_reply
from gpugate.store.version import CACHE_FOLDER
from gpugate.store.writable_folder import make_ignored
from gpugate.workload import Case, Context

PROTOCOL = 1
HUNG = 3  # exit status
Form = Sequence[Any]  # the name of the dtype, and the shape


class SideServer:
    """The side of this process and what it needs. Each method without an underscore is a request of the protocol."""

    def __init__(self, root: Path, version: str, device: str, layout: Layout) -> None:
        self._version, self._device, self._cache = version, torch.device(device), root / CACHE_FOLDER
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # cuda only
        self._layout, self._name = layout, ""
        self._cases: dict[str, Case] = {}
        self._case: Case
        self._context: Context
        self._inputs: Inputs
        self._timer: Timer
        self._side: BuiltSide | None = None

    def load(self) -> dict[str, Any]:
        sys.path[:0] = self._layout.find_paths()
        self._cases = self._layout.load_cases(catalogue, sys.path)
        gc.freeze()  # each build is followed by a collection, which then leaves out what was imported
        return {"cases": list(self._cases)}

    def begin(self, case: str, seed: str, file: str, forms: Sequence[Form] | None) -> dict[str, Any]:
        """Makes the inputs. With `forms`, their tensors get the contents in `file`; else they are written to it."""
        self._case = self._cases[case]
        workload = self._case.workload
        self._name = f"{self._case.optimization.name} of the {self._version}"
        make_ignored(self._cache)
        self._context = Context(self._device, self._case.size.items, workload.seed, self._cache)
        self._timer = timer_for(self._device, workload.timing)
        with blame(f"inputs of {workload.name} of the {self._version}", "being made", BUILD_SHARE):
            draw = random.Random(seed)  # noqa: S311  # for repeatability, not for secrets
            made = make_inputs(workload, self._context, Settings().fresh_inputs, draw)
            held = tensors((made.timed, made.fresh))
            if forms is None:
                forms = write_tensors(file, held)
            else:
                _copy(read_tensors(file, forms), held)
        bits = checksum((made.timed, made.fresh))
        self._inputs = Inputs(made.timed, made.fresh, made.fresh_index, bits)
        return {"forms": forms, "seed": made.fresh_index, "input_sets": len(made.timed)}

    def build(self, file: str | None) -> dict[str, Any]:
        """Builds the side. With `file`, it writes the side's outputs for the fresh inputs there."""
        built = build_side(self._name, self._case.optimization.build, self._context, self._inputs.timed[0])
        self._side = built
        check_untouched(self._inputs, self._name)
        pipeline = {name: getattr(built.side, name) for name in ("stock_steps", "works_ahead", "round_steps")}
        reply = {"name": self._name, "cost": asdict(built.cost), "pipeline": pipeline}
        if file is None:
            return reply
        outputs = [built.output_for(one) for one in self._inputs.fresh]
        check_untouched(self._inputs, self._name)
        problems = [problem for one in outputs if (problem := problem_with(one, one)) is not None]
        return {**reply, "problem": problems[0]} if problems else {**reply, "forms": write_tensors(file, outputs)}

    def block(self, steps: int) -> dict[str, Any]:
        return {"step_ms": self._built().timed_block(self._inputs.timed, self._timer.time_ms, steps)}

    def count(self, step_ms: float | None) -> dict[str, Any]:
        """The counters per step, by name; none where kernels cannot be counted."""
        if counters.why_missing(self._device) is not None:
            return {"counters": {}}
        side, timed = self._built(), self._inputs.timed  # cuda only
        with pause_garbage_collection():  # cuda only
            steps = counters.steps_worth_counting([side], [step_ms])
            (activity,) = counters.count([side], timed, steps)
            return {"counters": counters.collect(side, activity, timed, self._timer, step_ms)}

    def close(self) -> dict[str, Any]:
        """Closes the side, if there is one, and frees its memory."""
        side, self._side = self._side, None
        try:
            if side is not None:
                side.close()
                check_untouched(self._inputs, self._name)
        finally:
            del side
            release(self._device)
        return {}

    def _built(self) -> BuiltSide:
        if self._side is None:
            raise CompareError(f"{self._name} is not built: build it first")
        return self._side


def write_tensors(file: str, found: Sequence[torch.Tensor]) -> list[Form]:
    """Writes the bytes of all tensors; returns the form of each."""
    flat = [one.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for one in found]
    np.save(file, torch.cat([torch.empty(0, dtype=torch.uint8), *flat]).numpy(), allow_pickle=False)
    return [_form(one) for one in found]


def read_tensors(file: str, forms: Sequence[Form]) -> list[torch.Tensor]:
    data, found = torch.from_numpy(np.load(file, allow_pickle=False)), []
    for name, shape in forms:
        dtype = getattr(torch, name)
        size = int(np.prod(shape)) * dtype.itemsize
        part, data = data[:size], data[size:]
        found.append(part.clone().view(dtype).reshape(shape))  # a clone is aligned
    return found


def _form(tensor: torch.Tensor) -> Form:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def _copy(source: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
    """Raises ValueError for inputs of another form."""
    theirs, ours = [*map(_form, source)], [*map(_form, into)]
    if theirs != ours:
        raise ValueError(f"they differ in form from those of the head ({ours[:1]} is not {theirs[:1]} or their number)")
    with torch.inference_mode():
        for tensor, values in zip(into, source, strict=True):
            tensor.data.copy_(values)


def _serve(server: SideServer, stream: Any) -> None:
    """Answers until the leader closes the socket."""
    for line in stream:
        request = json.loads(line)
        try:
            reply = getattr(server, request.pop("do"))(**request)
        except GpugateError as error:
            lacks_memory = isinstance(error, SideError) and error.out_of_memory
            reply = {"error": str(error), "out_of_memory": lacks_memory}
        send_reply(stream, reply)


def _end(error: SideError) -> NoReturn:
    print(f"ERROR: {error}", file=sys.stderr, flush=True)
    os._exit(HUNG)


def main(words: Sequence[str]) -> None:
    orders = json.loads(words[0])
    software = f"gpugate {__version__}, Python {platform.python_version()}, torch {torch.__version__}"
    with socket.socket(fileno=orders["socket"]).makefile("rw", encoding="utf-8") as stream:
        send_reply(stream, {"protocol": PROTOCOL, "gpugate": __version__, "software": software})
        if orders["protocol"] != PROTOCOL:
            return
        with limit_time(orders["step_timeout_s"], _end):
            layout = Layout(**orders.get("layout", {"top": str(Path.cwd())}))  # an older leader gives none
            _serve(SideServer(Path.cwd(), orders["version"], orders["device"], layout), stream)


if __name__ == "__main__":
    main(sys.argv[1:])
