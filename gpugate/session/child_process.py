"""Commands for child processes that end when this process ends, however it ends.

This file is also the program that a child runs first: `child_process.py PARENT_PID COMMAND...` becomes COMMAND, and
`child_process.py PARENT_PID -m ENGINE PATHS MODULE WORDS...` runs a Python module. A `preexec_fn` could do the same,
and may deadlock in a process that has threads.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]  # this folder, whose files may be named like modules of others

import errno
import os
from collections.abc import Sequence
from pathlib import Path

ENGINE = Path(__file__).parents[2]  # the folder of this gpugate package
PR_SET_PDEATHSIG = 1  # prctl(2): the signal stays set when the process executes another program


def module_command(module: str, words: Sequence[str]) -> list[str]:
    """The command that runs a Python module, with the search path and the gpugate package of this process.

    `python -m` would search the working folder first, where another folder may be named `gpugate`.
    """
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    return [sys.executable, __file__, str(os.getpid()), "-m", str(ENGINE), paths, module, *words]


def program_command(command: Sequence[str]) -> list[str]:
    """The command that becomes `command`. The kernel kills it when the thread that starts it ends.

    Raises OSError for a program that is not there or cannot be executed, as starting it would.
    """
    import shutil

    if shutil.which(command[0]) is None:
        number = errno.EACCES if Path(command[0]).exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), command[0])
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent ends. Does nothing on systems other than Linux."""
    if sys.platform == "linux":
        import ctypes
        from signal import SIGKILL

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the kernel knew
            os._exit(1)


def _run_module(engine: str, paths: str, module: str, words: Sequence[str]) -> None:
    """Runs the module with the search path `paths`."""
    import runpy

    sys.path[:0] = [engine]
    import gpugate  # noqa: F401  # stays in sys.modules: no folder on the path can take its place

    sys.path[:] = paths.split(os.pathsep)
    sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    if sys.argv[2] == "-m":
        _run_module(sys.argv[3], sys.argv[4], sys.argv[5], sys.argv[6:])
    else:
        try:
            os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 there is no shell in between
        except OSError as problem:
            sys.exit(f"{sys.argv[2]} cannot be started ({problem.strerror})")
