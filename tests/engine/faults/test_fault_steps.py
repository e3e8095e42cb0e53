"""The steps of faulty sides, without a GPU."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpugate.faults import mutate
from gpugate.faults.fault import Fault
from gpugate.faults.mutate import apply
from gpugate.workload import Build, Context, Side

CONTEXT = Context(torch.device("cpu"), items=4, seed=3, cache_dir=Path())


def side_of(kind: str, build: Build, **context: Any) -> Side:
    return apply(Fault(kind, 0.01), build)(replace(CONTEXT, **context))


def identity(context: Context) -> Side:
    return Side(lambda inputs: inputs + 0.0)


@pytest.mark.parametrize(
    ("kind", "operator", "more"), [("launch", "aten::mul_", 3), ("copy", "aten::to", 6), ("sync", "synchronize", 3)]
)
def test_what_three_steps_do_more(kind: str, operator: str, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def synchronize(device: torch.device) -> None:
        with torch.profiler.record_function("synchronize"):
            pass

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)

    def count(side: Side) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
            outputs = [side.step(torch.ones(2)) for _ in range(3)]
        assert all(torch.equal(output, torch.ones(2)) for output in outputs)
        return sum(event.count for event in profiler.key_averages() if event.key == operator)

    assert count(side_of(kind, identity)) - count(identity(CONTEXT)) == more


@pytest.mark.parametrize("reused", [False, True], ids=["another tensor each step", "the same tensor each step"])
def test_a_stale_side_returns_the_output_before(reused: bool) -> None:
    def build(context: Context) -> Side:
        buffer = torch.zeros(2)
        return Side(lambda inputs: buffer.copy_(inputs) if reused else inputs + 0.0)

    side = side_of("stale", build)
    outputs = [float(side.step(torch.full((2,), float(number)))[0]) for number in range(6)]
    # That a tensor is filled again is known once it was: from then on it is copied.
    assert outputs == ([0, 1, 1, 2, 3, 4] if reused else [0, 0, 1, 2, 3, 4])


def test_a_pipeline_may_fill_the_stale_output_at_the_end() -> None:
    """Two buffers in turn, filled by `finish()`, as those of a ring are."""

    def build(context: Context) -> Side:
        buffers, pending = [torch.zeros(1), torch.zeros(1)], []

        def step(inputs: torch.Tensor) -> torch.Tensor:
            buffers.reverse()
            pending.append((buffers[0], inputs))
            return buffers[0]

        def finish() -> None:
            for buffer, inputs in pending:
                buffer.copy_(inputs)

        return Side(step, finish=finish)

    side = side_of("stale", build)
    outputs = [side.step(torch.tensor([float(number)])) for number in range(4)]
    side.finish()
    assert outputs[-1].item() == 2.0


@pytest.mark.parametrize(
    ("dtype", "relative_l2"),
    [(torch.float32, 1e-4), (torch.float64, 1e-9), (torch.bfloat16, 0.02)],
)
def test_a_wrong_output_is_off_by_what_was_asked(dtype: torch.dtype, relative_l2: float) -> None:
    inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    build = apply(Fault("wrong", relative_l2), lambda context: Side(lambda x: x.clone()))
    outputs = []
    for _ in range(2):
        side = build(CONTEXT)
        outputs.append(side.step(inputs))
        side.finish()
    error = (outputs[0].double() - inputs.double()).norm() / inputs.double().norm()
    assert float(error) == pytest.approx(relative_l2, rel=0.01)
    assert outputs[0].dtype == dtype
    assert torch.equal(outputs[0], outputs[1]), "the noise is seeded"


def test_a_wrong_output_is_made_after_the_pipeline_is_joined() -> None:
    output = torch.zeros(8)
    side = side_of("wrong", lambda context: Side(lambda inputs: output, finish=lambda: output.fill_(5.0)))
    given = side.step(None)
    side.finish()
    assert float((given - 5.0).norm() / torch.full((8,), 5.0).norm()) == pytest.approx(0.01, rel=0.01)
    assert torch.equal(output, torch.full((8,), 5.0)), "the side's own buffer stays as it is"


def test_an_output_of_zeros_is_wrong_too_and_whole_numbers_cannot_be() -> None:
    side = side_of("wrong", lambda context: Side(torch.zeros_like))
    given = side.step(torch.ones(8))
    side.finish()
    assert float(given.norm()) == pytest.approx(0.01, rel=0.01)
    for output, found in ((torch.ones(2, dtype=torch.int64), r"torch\.int64"), (2.5, "none")):
        side = side_of("wrong", lambda context, output=output: Side(lambda inputs: output))
        with pytest.raises(
            ValueError, match=f"wrong perturbs floating-point tensors, and those of this output are {found}"
        ):
            side.step(torch.ones(2))


def test_faults_of_outputs_change_the_tensors_in_an_output_of_several_parts() -> None:
    def build(context: Context) -> Side:
        return Side(lambda x: {"logits": x.clone(), "ids": (x.long(), None)})

    x = torch.full((8, 2), 3.0)
    for name, wrong in (("wrong", True), ("stale", False), ("skip-work", False)):
        side = side_of(name, build, items=8)
        first, second = side.step(x), side.step(2 * x)
        side.finish()
        found = first if name == "wrong" else second
        assert [*found] == ["logits", "ids"], name
        assert torch.equal(found["ids"][0], (2 * x if name != "stale" else x).long()), name
        assert torch.equal(found["logits"], 2 * x if name == "skip-work" else x) is not wrong, name


@pytest.mark.parametrize("items", [2, 5])
def test_skipping_work_computes_half_and_returns_it_twice(items: int) -> None:
    seen: list[int] = []

    def build(context: Context) -> Side:
        seen.append(context.items)

        def step(inputs: dict[str, Any]) -> torch.Tensor:
            seen.append(len(inputs["x"]))
            return inputs["x"] @ inputs["weight"]

        return Side(step)

    x = torch.arange(float(items * (items + 1))).reshape(items, -1)
    inputs = {"x": x, "weight": torch.ones(items + 1, 3), "name": "a"}
    side = side_of("skip-work", build, items=items)
    output = side.step(inputs)
    side.finish()
    half = items // 2
    assert seen == [half, half]
    whole = x @ inputs["weight"]
    assert torch.equal(output, whole[torch.arange(items) % half])


@pytest.mark.parametrize(
    ("step", "inputs", "sentence"),
    [
        (torch.clone, torch.ones(3, 4), "no input's first dimension is the 4 items per step"),
        (lambda inputs: inputs.T, torch.ones(4, 3), r"this one has shape \(3, 2\), not 2 rows"),
    ],
)
def test_what_has_no_batch_cannot_skip_half_of_it(step, inputs, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        side_of("skip-work", lambda context: Side(step)).step(inputs)


def test_outputs_of_inference_mode_can_be_wrong_and_stale_and_half() -> None:
    def build(context: Context) -> Side:
        return Side(torch.inference_mode()(lambda inputs: inputs + 1.0))

    inputs = torch.randn(4, 3)
    for kind in ("wrong", "stale", "skip-work"):
        side = side_of(kind, build)
        for _ in range(2):
            output = side.step(inputs).clone()
            side.finish()
        assert output.shape == inputs.shape


def test_a_leak_grows_every_step_and_stays_below_its_bound(monkeypatch) -> None:
    monkeypatch.setattr(mutate, "LEAKED_BYTES_AT_MOST", 8 * mutate.LEAKED_BYTES_PER_STEP)
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
    allocate = torch.empty

    def noted(size: int, **how: Any) -> torch.Tensor:
        tensor = allocate(size, **how)
        assert tensor.nbytes == mutate.LEAKED_BYTES_PER_STEP
        alive.add(tensor)
        return tensor

    monkeypatch.setattr(torch, "empty", noted)
    side = side_of("leak", identity)
    grown = []
    for _ in range(20):
        side.step(torch.ones(1))
        grown.append(len(alive))
    assert grown == [1, 2, 3, 4, 5, 6, 7, *[8] * 13]
    side.finish()
    side.step(torch.ones(1))
    side.finish()
    assert len(alive) == 1, "at the end of a block there is room again"
