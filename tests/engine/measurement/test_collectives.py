"""The collectives of a made-up trace are counted by step, with their bytes and those before the last gradient."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from gpugate.measurement import collectives
from gpugate.measurement.collectives import STEP, read_collectives

Trace = list[Mapping[str, Any]]
RANKS = 2


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", **args: object) -> Mapping[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "cat": cat, "args": args}


def node(name: str, ts: float) -> Mapping[str, Any]:
    return event(f"autograd::engine::evaluate_function: {name}", ts, 1)


def gloo(ts: float, dur: float, count: int, kind: str = "float", name: str = "all_reduce") -> Mapping[str, Any]:
    named: dict[str, Any] = {"Input Dims": [[count]], "Input type": [kind]}
    return event(f"gloo:{name}", ts, dur, "user_annotation", **named)


def step(start: float) -> Trace:
    """Two all-reduces; the second one is called by the node that accumulates the last gradient."""
    return [
        event(STEP, start, 100, "user_annotation"),
        node("ConvolutionBackward0", start + 10),
        event("c10d::allreduce_", start + 20, 1),
        node("ConvolutionBackward0", start + 30),
        node("torch::autograd::AccumulateGrad", start + 40),
        event("c10d::allreduce_", start + 41, 1),
    ]


STEPS: Trace = [*step(0), *step(200), *step(400)]


def test_the_last_step_a_barrier_and_the_marks_on_a_gpu_are_not_counted() -> None:
    transfers = [gloo(22, 20, 1000), gloo(42, 10, 48, "c10::BFloat16"), gloo(222, 30, 1000), gloo(422, 9, 1)]
    barrier = event("c10d::barrier", 25, 1)
    on_gpu = [event(STEP, start, 90, "gpu_user_annotation") for start in (5, 205, 405)]
    found = read_collectives([*STEPS, *transfers, barrier, *on_gpu], RANKS)
    assert found == {
        "collectives": 4,
        "all_reduces": 4,
        "early_collectives": 2,
        "collective_bytes": 4 * 2024,
        "communication_ms": pytest.approx(0.060),
        "steps_ms": pytest.approx(0.200),
    }


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_message_is_the_whole_of_what_is_gathered_or_scattered_whatever_the_number_of_ranks(ranks: int) -> None:
    share = 800 // ranks
    of_gloo = [gloo(22, 1, share, name="all_gather"), gloo(24, 1, 800)]  # gloo scatters by an all-reduce
    assert read_collectives([*STEPS, *of_gloo], ranks)["collective_bytes"] == 2 * 3200
    forms = {"In msg nelems": share, "Out msg nelems": 800}, {"In msg nelems": 800, "Out msg nelems": share}
    of_nccl = [event("record_param_comms", 22, 1, **form, dtype="Float") for form in forms]
    assert read_collectives([*STEPS, *of_nccl], ranks)["collective_bytes"] == 2 * 3200


def test_nccl_reports_bytes_by_its_own_events_and_its_time_by_kernels() -> None:
    of_nccl: dict[str, Any] = {"In msg nelems": 500, "dtype": "BFloat16"}
    trace = [
        *STEPS,
        event("nccl:all_reduce", 21, 1, "user_annotation", **{"Input Dims": [[7]], "Input type": ["float"]}),
        event("record_param_comms", 21, 1, **of_nccl),
        event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 30, 40, "kernel", **of_nccl),
        event("volta_sgemm", 30, 60, "kernel"),
    ]
    found = read_collectives(trace, RANKS)
    assert (found["collective_bytes"], found["communication_ms"]) == (1000, pytest.approx(0.040))


def test_the_profiler_is_detached_after_it_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    detached: list[torch.device] = []
    monkeypatch.setattr(collectives, "detach", detached.append)
    with collectives.watch_collectives(torch.device("cpu"), RANKS):
        assert detached == []
    assert detached == [torch.device("cpu")]
