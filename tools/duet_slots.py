"""Trials of duets beside each other on a machine with many cores: each slot has a few cores and a copy of the project.

    python -m tools.duet_slots OUTPUT --slots 12 --cores 2 --minutes 9 < trials.txt

Each line of stdin is a trial: the name of its folder below OUTPUT, then arguments of `python -m tools.trust --duet`,
such as `15-s perf_tests -k video/encode --device cpu --budget 15 --slowdowns 5`. A free slot takes the next line, and a
line whose trial ended comes after all others again; a slot that finds no line ends, so give at least as many lines as
slots. At the end of the time, trials that still run are stopped and not kept; the line of a trial that fails is not
taken again. With `--gpus` each slot sees the GPU of its own number.
`python -m tools.trust --duet --report-only --output FOLDER` reports on a folder.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpugate.machine.children import program_command, run_child

NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")


class Slots:
    """The trials that are still to be taken, shared by all slots."""

    def __init__(self, lines: Sequence[str], output: Path, end_s: float) -> None:
        self._lines = deque(lines)
        self._output, self._end_s = output, end_s
        self._lock = threading.Lock()

    def work(self, copy: Path, cores: Sequence[int], environment: dict[str, str]) -> None:
        """Takes trials on these cores until the time is over."""
        while time.monotonic() < self._end_s and (line := self._take()) is not None:
            name, *words = shlex.split(line)
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-m", "tools.trust", "--duet", *words, "--trials", "1"]
                pinned = ["taskset", "-c", ",".join(map(str, cores)), *command, "--output", folder]
                began_s = time.monotonic()
                problem = self._run(pinned, copy, environment)
                if problem is None:
                    self._lines.append(line)
                with self._lock:
                    print(
                        f"{problem or 'taken'} after {time.monotonic() - began_s:.0f} s: {name} {shlex.join(words)}",
                        flush=True,
                    )
                    self._output.joinpath(name).mkdir(parents=True, exist_ok=True)
                    for trial in Path(folder).glob("duets-*.json"):
                        shutil.copy(trial, self._output / name)

    def _take(self) -> str | None:
        """The next line; None where other slots have taken all of them."""
        try:
            return self._lines.popleft()
        except IndexError:
            return None

    def _run(self, command: Sequence[str], copy: Path, environment: dict[str, str]) -> str | None:
        """Runs the command until the end of the time. Returns the problem of one that was stopped or failed."""
        left_s = max(self._end_s - time.monotonic(), 0)
        ended = run_child(program_command(command), left_s, environment=environment, folder=copy)
        if ended.status is None:
            return "stopped"
        return ended.cause if ended.status else None


def main() -> None:
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(description=about, epilog=more, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("output", type=Path, help="folder of the folders of trials")
    parser.add_argument("--slots", type=int, required=True, help="trials beside each other")
    parser.add_argument("--cores", type=int, default=2, help="cores of a slot (default: %(default)s)")
    parser.add_argument("--first-core", type=int, default=0, help="cores below it are left alone (default: 0)")
    parser.add_argument("--gpus", action="store_true", help="each slot has a GPU (default: none has)")
    parser.add_argument("--minutes", type=float, required=True, help="time for all trials")
    options = parser.parse_args()
    lines = [line for line in sys.stdin.read().splitlines() if line.strip()]
    slots = Slots(lines, options.output.resolve(), time.monotonic() + 60 * options.minutes)
    with tempfile.TemporaryDirectory(prefix="duet-slots-") as folder, ThreadPoolExecutor(options.slots) as pool:
        working = []
        for number in range(options.slots):
            copy = Path(folder, str(number))
            shutil.copytree(Path.cwd(), copy, ignore=NOT_COPIED)
            first = options.first_core + number * options.cores
            gpu = str(number) if options.gpus else ""
            environment = {**os.environ, "PYTHONPATH": _path(copy), "CUDA_VISIBLE_DEVICES": gpu}
            working.append(pool.submit(slots.work, copy, range(first, first + options.cores), environment))
        for one in working:
            one.result()


def _path(copy: Path) -> str:
    """PYTHONPATH with the copy in place of the project."""
    kept = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one not in ("", ".", str(Path.cwd()))]
    return os.pathsep.join([str(copy), *kept])


if __name__ == "__main__":
    main()
