"""Without -k, a CPU measures the cases whose optimizations pay on a CPU, and few that make it slower.

The CPU sides of the other workloads run the code of the GPU's ladders, at sizes that say nothing about their speed, or
take too long for a first look.
"""

from __future__ import annotations

import pytest

from gpugate.session.selection import cases_of, deselect

CHECKED_ONLY = (
    "activation-memory/",
    "attention-",
    "compile-modes/",
    "ddp-scaling/",
    "diffusion-step/",
    "driving/",
    "driving-workers/",
    "four-bit-weights/",
    "host-preparation-cheap/",
    "host-preparation-expensive/",
    "llm-batch-small/",
    "llm-decode-1k-small/",
    "llm-decode-small/whole-step/",
    "llm-prefill-small/",
    "llm-serving/",
    "low-precision/",
    "memory-access/",
    "migration/",
    "mixture-of-experts/",
    "resnet18-training-small/",
    "resnet50-inference/",
    "streaming-",
    "video/",
)
_LEFT_OUT = pytest.StashKey[set[str]]()


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.keyword or any("::" in argument for argument in config.args):
        return
    cases = {item: case for item in items for case in cases_of(item)[:1]}
    left_out = {item for item, case in cases.items() if case.device_kind == "cpu" and case.id.startswith(CHECKED_ONLY)}
    config.stash[_LEFT_OUT] = {cases[item].id for item in left_out}
    deselect(config, items, left_out)


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """One line about the cases that are left out."""
    left_out = config.stash.get(_LEFT_OUT, set())
    if not left_out:
        return None
    why = "whose CPU sides only check the code or take long"
    return f"left out: {len(left_out)} cases {why}; -k selects them, such as -k video"
