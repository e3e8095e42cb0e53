"""The cases of the catalogue, the GPUs whose records are in baselines/, and the promises of these records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpugate.catalogue import catalogue
from gpugate.results.case import Promise
from gpugate.workload import Case, DeviceKind, for_device_class

ROOT = Path(__file__).parents[1]
# Workloads whose sides changed, with the time of the change. They stand here until they are recorded again:
# their promises and limits are of the new sides, and the records of the old ones.
CHANGED_AT: Mapping[str, str] = {
    **dict.fromkeys(
        ("resnet50-inference", "resnet50-inference-batch1", "resnet18-training", "driving"),
        "2026-11-27T16:00:00+00:00",
    ),
    **dict.fromkeys(
        (
            *("host-preparation-cheap", "host-preparation-expensive", "driving-workers"),
            *("streaming-compute", "streaming-copy", "streaming-long-compute"),
        ),
        "2026-11-29T02:00:00+00:00",
    ),
    **dict.fromkeys(
        (
            *("video/decode", "video/decode-hevc", "video/preprocess", "video/segment", "video/composite"),
            *("video/encode", "video/end-to-end"),
        ),
        "2026-11-30T08:45:00+00:00",
    ),
    **dict.fromkeys(("llm-decode", "driving-batch"), "2026-11-30T08:20:00+00:00"),
    "sparse-weights": "2026-11-30T22:35:00+00:00",
}


def is_outdated(case: Case, measured_at: str) -> bool:
    """True where the sides of the case changed after it was measured, at a time in ISO 8601."""
    changed_at = CHANGED_AT.get(case.workload.name)
    return changed_at is not None and datetime.fromisoformat(measured_at) < datetime.fromisoformat(changed_at)


@dataclass(frozen=True)
class Machine:
    """A GPU. `name` is the name of its folder in baselines/, and `folder` the name of its folder in results/."""

    gpu: str
    name: str
    folder: str

    @property
    def device_classes(self) -> tuple[str, ...]:
        return (self.name, "sm_90", "cuda")

    @property
    def baselines(self) -> Path:
        return ROOT / "baselines" / self.name

    @property
    def results(self) -> Path:
        return ROOT / "results" / self.folder

    def promise(self, case: Case, recorded_at: str) -> Promise:
        """The promise that the machine's record of a case is held to: none where the sides changed after it."""
        optimization = case.optimization
        if is_outdated(case, recorded_at):
            return Promise(None, optimization.tolerated, None)
        return Promise(
            for_device_class(optimization.min_speedup, self.device_classes),
            optimization.tolerated,
            for_device_class(optimization.contract, self.device_classes),
        )


H200 = Machine("H200", "nvidia-h200", "h200")
H100 = Machine("H100", "nvidia-h100-80gb-hbm3", "h100")
MACHINES = (H200, H100)


def list_cases(kind: DeviceKind) -> list[Case]:
    """The cases of `workloads` on one kind of device, in the order of the catalogue, which is loaded once."""
    if not catalogue.cases():
        catalogue.register_module("workloads")
        catalogue.load()
    return [case for case in catalogue.cases() if case.device_kind == kind]
