"""A Python that has imported torch and the engine, and forks itself for each module that the engine runs in a child.

A new Python imports them for two seconds. `start` takes the place of `children.start_apart`: the child has the module,
the words, streams, environment and folder, leads a session of its own, and ends with the process that started it.
Only its parent is another one: a process that waits for it. The children of a child are forked here, too.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpugate.machine import children

ROOT = Path(__file__).parents[2]
IMPORTED = ("pytest", "torch.distributed", "gpugate.measurement.run", "gpugate.session.perf_run")
LONGEST = 1 << 17  # of a request, in bytes


class WarmProcess:
    """A process that was forked, as far as the engine uses a Popen: `_ended` has its exit status once it has ended."""

    def __init__(self, args: Sequence[str], ended: socket.socket) -> None:
        self.args, self._ended, self._lock = args, ended, threading.Lock()
        self.returncode: int | None = None
        self.pid = int(ended.recv(32))

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            rest = 1.0 if deadline is None else deadline - time.monotonic()
            with self._lock:  # two threads may wait for one process
                if self.returncode is None and select.select([self._ended], [], [], max(0.0, min(0.02, rest)))[0]:
                    self.returncode = int(self._ended.recv(32))
                    self._ended.close()
            if self.returncode is None and rest <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Client:
    """The end of the requests in a process that starts children."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests

    def start(self, command: Sequence[str], **options: Any) -> WarmProcess | subprocess.Popen[bytes]:
        """Runs a module of the engine warm, and starts every other command as the engine does."""
        if list(command[1:2]) != [children.__file__]:
            return subprocess.Popen(command, start_new_session=True, **options)
        folder, environment = Path(options["cwd"]).absolute(), dict(options["env"])
        request = {"words": command[3:], "folder": str(folder), "environment": environment}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            streams = [theirs.fileno(), options["stdin"].fileno(), options["stdout"].fileno()]
            socket.send_fds(self._requests, [json.dumps(request).encode()], streams)
        return WarmProcess(command, ours)


class WarmPython(Client):
    """The server. A session of a test ends all processes that began in it, so the server begins before."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        super().__init__(ours)
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        # No child of this process: the engine would count its CPU time, and look for workers in each measurement.
        command = ["setsid", "--fork", sys.executable, "-m", __name__, str(os.getpid()), str(ours.fileno())]
        with theirs:
            given, kept = theirs.fileno(), [ours.fileno()]
            subprocess.run(command, cwd=ROOT, env=variables, check=True, stdin=given, pass_fds=kept)

    def start_children(self, patch: pytest.MonkeyPatch) -> None:
        """Makes the engine start its children here."""
        if "coverage" not in sys.modules:  # which measures no process that is forked
            patch.setattr(children, "start_apart", self.start)

    def close(self) -> None:
        self._requests.send(b"")


def serve(requests: socket.socket, tests: int) -> tuple[dict[str, Any], list[int]] | None:
    """Forks a process for each request, which returns with it; returns None at the end of the requests, and of the
    process with the id `tests`."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    end = os.pidfd_open(tests)
    while True:
        waited_for: list[socket.socket | int] = [requests, end]
        if end in select.select(waited_for, [], [])[0]:
            return None
        request, descriptors, *_ = socket.recv_fds(requests, LONGEST, 3)
        if not request:
            return None
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child = os.fork()
            if child == 0:
                return json.loads(request), descriptors
            watch(child, socket.socket(fileno=descriptors[0]), descriptors[1:])
        for descriptor in descriptors:
            os.close(descriptor)


def watch(child: int, ended: socket.socket, streams: Sequence[int]) -> None:
    """Waits for the end of a child, and kills it when the process that started it has ended."""
    for stream in streams:
        os.close(stream)
    end = os.pidfd_open(child)
    if end not in select.select([end, ended.fileno()], [], [])[0]:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    try:
        ended.send(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


def run(request: dict[str, Any], descriptors: Sequence[int], client: Client) -> None:
    """Becomes the child that `children.py` makes of the same words."""
    ended, *streams = descriptors
    os.setsid()
    for number, stream in enumerate((*streams, streams[-1])):
        os.dup2(stream, number)
    os.write(ended, str(os.getpid()).encode())
    for descriptor in descriptors:
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    engine, paths, module, *words = request["words"]
    sys.argv[:] = [children.__file__]
    children.start_apart = client.start  # type: ignore[assignment]
    children._run_module(engine, paths, module, words)


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    wanted = serve(socket.socket(fileno=os.dup(0)), int(sys.argv[1]))
    if wanted is not None:
        run(*wanted, Client(socket.socket(fileno=int(sys.argv[2]))))
