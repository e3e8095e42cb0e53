"""Child processes: nothing that one has started outlives it.

A Python module in a child ends when this process ends, however that ends. They exchange messages: each is a line of
JSON, on a socket that the module has as its standard input. Its first message is its task. Its output goes to a log,
whose last words explain an early end.

This file is also the program that such a child runs first: `children.py PARENT_PID ENGINE PATHS MODULE WORDS...`. A
`preexec_fn` could end a child with its parent, too, and may deadlock in a process that has threads.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # this folder, whose files may be named like modules of others

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

ENGINE = Path(__file__).parents[2]  # the folder of this gpugate package
PR_SET_PDEATHSIG = 1  # prctl(2): the signal stays set when the process executes another program
GRACE_S = 5.0  # for an interrupted child to remove what is temporary
CLOSING_S = 2.0  # for a child to end by itself, once its messages have ended
LAST_LINES = 15  # of the output, among which the cause of an end stands
ERROR = "ERROR: "  # as pytest begins a usage error


class Messages:
    """One end of the messages between a process and its child. A loop over it takes each message as it comes, until the
    other end closes."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._lines = end, end.makefile("rb")

    def send(self, message: object) -> None:
        """Raises OSError where the other end has closed."""
        self.send_encoded(encode(message))

    def send_encoded(self, line: bytes) -> None:
        """Sends a message that is for several children."""
        self._socket.sendall(line)

    def end(self) -> None:
        """Ends the messages at both ends; those that have come can still be taken."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def __iter__(self) -> Iterator[Any]:
        with suppress(ConnectionResetError):
            for line in self._lines:
                if line.endswith(b"\n"):  # a process that is killed may leave a part of one
                    yield json.loads(line)


def encode(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


# In a module that runs in a child:
parent: Messages
task: Any = None  # the first message


@dataclass(frozen=True)
class Ended:
    """A child that has ended.

    `status` is negative for a signal, and None where the child was killed at its time limit. `output` is that of both
    streams, or without the `errors` where these were kept apart.
    """

    status: int | None
    output: str
    timeout_s: float | None = None
    errors: str = ""
    messages: tuple[Any, ...] = ()

    @property
    def reason(self) -> str:
        """For example `ended with status 3`, `was killed by SIGSEGV` or `did not end within 60 s`."""
        if self.status is None:
            return f"did not end within {self.timeout_s:.4g} s"
        if self.status < 0:
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"ended with status {self.status}"

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """The last lines of the output that are not blank."""
        return [line.rstrip() for line in self.output.splitlines() if line.strip()][-count:]

    @property
    def cause(self) -> str:
        """The reason, and the last line of the output that names an error, or else the last line."""
        from gpugate.errors import error_line  # not in the program that a child runs first

        return ": ".join(filter(None, [self.reason, error_line(self.last_lines())]))

    def explain(self, subject: str) -> str:
        """The last usage error of pytest in the output, else how the `subject` ended."""
        errors = [line.removeprefix(ERROR) for line in self.output.splitlines() if line.startswith(ERROR)]
        return errors[-1] if errors else f"{subject} {self.cause}"


def run_child(
    command: Sequence[str],
    timeout_s: float | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    apart: bool = False,
) -> Ended:
    """Runs a command to its end, and kills it after `timeout_s`. With `apart`, its errors are kept apart.

    The environment is by default that of this process. Where this process is interrupted, so is the child, which has
    GRACE_S to end. Raises OSError for a command that cannot be started.
    """
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as errors:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": errors if apart else subprocess.STDOUT}
        with start_child(command, env=environment, **streams) as process:
            status = _await_end(process, timeout_s)
        return Ended(status, _read(log), timeout_s, _read(errors))


def run_module(
    module: str,
    words: Sequence[str] = (),
    task: object = None,
    timeout_s: float | None = None,
    receive: Callable[[Any], object] = lambda message: None,
    **options: Any,
) -> Ended:
    """Runs a Python module to its end, as `run_child` runs a command, and returns its messages with its end.

    `receive` gets each message as it comes, in a thread, and its first error is raised at the end. The `options` are
    those of `Child`.
    """
    messages, failed = list[Any](), list[Exception]()

    def read() -> None:
        for message in child.messages:
            messages.append(message)
            try:
                receive(message)
            except Exception as error:
                failed.append(error)

    with Child(module, words, task, **options) as child:
        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        ended = child.await_end(timeout_s)
        child.messages.end()  # a process that it forked may keep the socket open
        reading.join()
    if failed:
        raise failed[0]
    return replace(ended, messages=tuple(messages))


class Child:
    """A Python module in a child, from its start to the end of the block. The task is a value of JSON."""

    def __init__(
        self,
        module: str,
        words: Sequence[str] = (),
        task: object = None,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path = Path(),
        log_path: Path | None = None,
    ) -> None:
        """The output goes to the file `log_path`, or to a temporary one; `environment` is beside that of this process.

        Raises OSError where Python cannot be started.
        """
        variables = {**os.environ, "PY_COLORS": "0", **(environment or {})}  # an error in colours would not be found
        with ExitStack() as stack:
            log = log_path.open("w+b") if log_path else tempfile.TemporaryFile()  # noqa: SIM115
            self._log: IO[bytes] = stack.enter_context(log)
            ours, theirs = socket.socketpair()
            with theirs:
                self.messages = Messages(stack.enter_context(ours))
                streams = {"stdin": theirs, "stdout": self._log, "stderr": subprocess.STDOUT}
                started = start_child(module_command(module, words), env=variables, cwd=folder, **streams)
                self.process = stack.enter_context(started)
            self._stack = stack.pop_all()
        with suppress(OSError):  # a child that has ended already
            self.messages.send(task)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the messages, and gives the child CLOSING_S to end."""
        with self._stack:
            self.messages.end()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(CLOSING_S)

    def await_end(self, timeout_s: float | None = None) -> Ended:
        """Waits for the end of the child, and kills it after `timeout_s`, with the rest of its process group."""
        try:
            status = _await_end(self.process, timeout_s)
        finally:
            kill_group(self.process.pid)
        return Ended(status, _read(self._log), timeout_s)


@contextmanager
def start_child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a command as `start_apart` does. At the end of the block the command and the rest of its process group are
    killed."""
    process = start_apart(command, **options)
    try:
        yield process
    finally:
        kill_group(process.pid)
        process.wait()


def start_apart(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a command in a session of its own, which the Ctrl-C of a terminal does not reach. `options` are those of
    Popen."""
    return subprocess.Popen(command, start_new_session=True, **options)


def kill_group(leader: int) -> None:
    """Kills the process group of a leader, which may have ended already."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _await_end(process: subprocess.Popen[bytes], timeout_s: float | None) -> int | None:
    """Returns the status of a process; None for one that still runs after `timeout_s`."""
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    except BaseException:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        raise


def _read(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace")


def module_command(module: str, words: Sequence[str]) -> list[str]:
    """The command that runs a Python module, with the search path and the gpugate package of this process.

    `python -m` would search the working folder first, where another folder may be named `gpugate`.
    """
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    return [sys.executable, __file__, str(os.getpid()), str(ENGINE), paths, module, *words]


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the kernel knew
        os._exit(1)


def _run_module(engine: str, paths: str, module: str, words: Sequence[str]) -> None:
    """Runs the module with the search path `paths`, once its task has come."""
    import runpy

    sys.path[:0] = [engine]
    from gpugate.machine import children  # stays in sys.modules: no folder on the path can take its place

    children.parent = children.Messages(socket.socket(fileno=os.dup(0)))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    children.task = next(iter(children.parent))
    sys.path[:] = paths.split(os.pathsep)
    sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    _run_module(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
