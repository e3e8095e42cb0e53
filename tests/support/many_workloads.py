"""The cost of a case at the start and the end of a long session: `python -m tests.support.many_workloads [NUMBER]`.

Writes a project of trivial CPU workloads, 200 by default, and runs it with `--perf-json`. For every tenth of a session
it prints seconds a case, of the clock and of the processor, resident memory and open file descriptors: they must not
grow with the number of cases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.tiny_project import TinyProject, environment

WORKLOADS = """
from dataclasses import replace

import tiny

WORKLOADS = tuple(replace(tiny.WORKLOADS[0], name=f"tiny-{number}") for number in range(NUMBER))
"""
CONFTEST = """
import json
import os
import time
from pathlib import Path

LAST = {}

def pytest_runtest_logreport(report):
    case = report.nodeid.partition("[")[2].removesuffix("/cpu]")
    if report.when == "teardown" and "/cuda" not in case and "/quick" in case:
        LAST[case] = {
            "ended_s": time.perf_counter(),
            "computed_s": time.process_time(),
            "resident_kb": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") // 1024,
            "descriptors": len(os.listdir("/proc/self/fd")),
        }

def pytest_sessionfinish():
    Path("costs.json").write_text(json.dumps(list(LAST.values())))
"""


def make_project(path: Path, number: int) -> TinyProject:
    """`number` workloads of one optimization each, whose steps take no time that counts."""
    project = TinyProject(path)
    project.write("many.py", WORKLOADS.replace("NUMBER", str(number)))
    conftest = (path / "conftest.py").read_text(encoding="utf-8")
    project.write("conftest.py", conftest.replace('register_module("tiny")', 'register_module("many")') + CONFTEST)
    return project


def main(words: list[str]) -> int:
    number = int(words[0]) if words else 200
    with tempfile.TemporaryDirectory(prefix="gpugate-many-") as folder:
        project = make_project(Path(folder), number)
        options = ["--perf-device=cpu", "--perf-budget=0.05", "-operf_processes=1", "--perf-json=run.json", "-q"]
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "gpugate.plugin",
            "-p",
            "no:cacheprovider",
            "perf_tests",
            *options,
        ]
        ended = subprocess.run(
            [*command, "-W", "ignore"], cwd=folder, env={**os.environ, **environment(project.path)}, check=False
        )
        costs = json.loads((project.path / "costs.json").read_text(encoding="utf-8"))
    tenth = max(1, len(costs) // 10)
    print("    cases  s/case  CPU s/case  resident MiB  descriptors")
    for first in range(tenth, len(costs), tenth):
        before, after = costs[first - 1], costs[min(first + tenth, len(costs)) - 1]
        seconds, computed = ((after[name] - before[name]) / tenth for name in ("ended_s", "computed_s"))
        memory = f"{after['resident_kb'] / 1024:12.0f}  {after['descriptors']:11d}"
        print(f"{f'{first + 1}-{first + tenth}':>9}  {seconds:6.3f}  {computed:10.3f}  {memory}")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
