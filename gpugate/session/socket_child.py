"""A child process that receives requests on a socket, in lines of JSON, so that its own output goes to a log."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

from gpugate.errors import error_line
from gpugate.session.run_child import LAST_LINES, Ended, start_child

CLOSING_S = 2.0  # for a child to end by itself


class SocketChild:
    """A child from its start until `stack` closes.

    The last argument of its command is the JSON of its orders, with the number of the socket.
    """

    def __init__(self, stack: ExitStack, command: Sequence[str], orders: Mapping[str, Any], **options: Any) -> None:
        """`options` are those of Popen. Raises OSError for a command that cannot be started."""
        self._log: IO[bytes] = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self.socket, theirs = socket.socketpair()
        stack.enter_context(self.socket)
        with theirs:
            words = [*command, json.dumps({**orders, "socket": theirs.fileno()})]
            streams = {"stdin": subprocess.DEVNULL, "stdout": self._log, "stderr": self._log}
            started = start_child(words, pass_fds=[theirs.fileno()], **streams, **options)
            self.child = stack.enter_context(started)
        stack.callback(self.close)

    def close(self) -> None:
        """Ends the requests, and gives the child CLOSING_S to end."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        with suppress(subprocess.TimeoutExpired):
            self.child.wait(CLOSING_S)

    def describe_end(self, reason: str | None = None) -> str:
        """Waits CLOSING_S for the end of a child that takes no requests any more, or kills it.

        Returns the reason of its end, or the `reason` that was given, and the line of its output that names the cause.
        """
        try:
            status = self.child.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            status, reason = self.child.wait(), reason or "closed the socket of its requests"
        self._log.seek(0)
        ended = Ended(status, self._log.read().decode(errors="replace"))
        cause = error_line(ended.last_lines(LAST_LINES)) if status > 0 else ""
        return ": ".join(filter(None, [reason or ended.reason, cause]))


def send_reply(stream: IO[str], reply: Mapping[str, Any]) -> None:
    """Sends one line, in the child."""
    stream.write(json.dumps(reply) + "\n")
    stream.flush()
