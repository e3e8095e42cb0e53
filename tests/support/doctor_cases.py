"""A made-up H200 for the doctor, healthy until a test changes what its children say."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpugate.commands.doctor import packages, tools
from gpugate.commands.doctor.child import Described, Gauge
from gpugate.commands.doctor.children import ANSWER, Children
from gpugate.commands.doctor.examination import Diagnosis, examine
from gpugate.commands.doctor.finding import ProbeResult
from gpugate.machine.environment import machine_name
from gpugate.measurement.record import Pair, TimedBuild
from gpugate.session.run_child import Ended
from gpugate.store import baseline
from gpugate.store.baseline import BaselineFile, Entry, Record
from gpugate.store.codec import to_json
from tests.conftest import H200

YARDSTICKS = {"matmul_bf16_tflops": 788.0, "pinned_copy_gb_per_s": 55.0, "launch_latency_us": 2.1}
GAUGE = Gauge((1965, 1980), (), (), (YARDSTICKS, YARDSTICKS))
PROCESS = (TimedBuild(True, (Pair(2.0, 1.0, True),)),)
Says = Callable[[Path], Ended]


def says(value: object) -> Says:
    return lambda folder: Ended(0, f"noise\n{ANSWER}{json.dumps({'value': to_json(value)})}\n", folder)


def refuses(words: str) -> Says:
    return lambda folder: Ended(0, f"{ANSWER}{json.dumps({'refused': words})}\n", folder)


def fails(error: str) -> Says:
    return lambda folder: Ended(0, f"{ANSWER}{json.dumps({'error': error})}\n", folder)


def ends(status: int | None, output: str = "") -> Says:
    return lambda folder: Ended(status, output, folder, timeout_s=60.0)


def leaves(*names: str, output: str = "") -> Says:
    """A tool that ends well and leaves these files in its folder."""

    def end(folder: Path) -> Ended:
        for name in names:
            (folder / name).touch()
        return Ended(0, output, folder)

    return end


HEALTHY: Mapping[str, Says] = {
    "machine": says(Described(H200, 1)),
    "gauge": says(GAUGE),
    "workloads": says(["net"]),
    "package": says("1.2.3"),
    "cupti": says(1),
    "nsys": leaves("report.nsys-rep"),
    "ncu": ends(0, "    sm__cycles_elapsed.max        cycle        2,345\n"),
}


class Scripted(Children):
    """Children that end as the script says: by the question that they are asked, or by the tool that is run."""

    def __init__(self, script: Mapping[str, Says], folder: Path) -> None:
        super().__init__()
        self.script = script
        self.folder = folder

    def run(self, command: Any, timeout_s: float, own_home: bool = False) -> Ended:
        tool = Path(command[0]).name
        return self.script[tool if tool in ("nsys", "ncu") else command[4]](self.folder)


@dataclass
class Hospital:
    """The machine: `script` says what its children do, `path` holds its baselines."""

    script: dict[str, Says]
    path: Path

    def diagnosis(self, asked: str = "auto") -> Diagnosis:
        with Scripted(self.script, self.path) as children:
            return examine(asked, self.path / "baselines", children)

    def finding(self, name: str) -> ProbeResult:
        return {finding.name: finding for finding in self.diagnosis().findings}[name]

    def record(self, **changes: Any) -> Path:
        """Writes one baseline as five processes measured it on the H200."""
        kept = {"source_hash": "0" * 16, "environment": H200, "processes": (PROCESS,) * 5, "yardsticks": YARDSTICKS}
        record = Record("2030-01-01T00:00:00+00:00", "ada", "first", **{**kept, **changes})
        folder = self.path / "baselines" / machine_name(record.environment)
        baseline.write(folder, BaselineFile("net", folder.name, {"fused/cuda": Entry(record, record)}))
        return folder / "net.json"


def healthy(path: Path, monkeypatch: pytest.MonkeyPatch) -> Hospital:
    """Everything is installed, works, is recorded by five processes, and is idle."""
    for module in (packages, tools):
        monkeypatch.setattr(module, "missing_needs", lambda needs, environment: None)
    monkeypatch.setattr(tools, "find_tool", lambda tool: f"/opt/{tool}")
    monkeypatch.setattr(tools, "_has_library", lambda name: True)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 9.0, 9.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    hospital = Hospital(dict(HEALTHY), path)
    hospital.record()
    return hospital
