"""Errors and restored state of failed captures, on a stand-in for CUDA that fails as torch's does."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from workloads.parts.graph_capture import WARM_UP_CALLS, recorded

GPU = torch.device("cuda", 0)
POOL = (0, 7)
HIDING = "CUDA error: operation failed due to a previous error during capture\nwith a second line"


class FakeCuda:
    """Streams and one capture, as far as `recorded` asks for them; `log` is what was asked, in order."""

    def __init__(self, ends: bool = True) -> None:
        self.log: list[str] = []
        self.streams = ["default"]
        self.ends, self.capturing, self.pool_open, self.on_hold = ends, False, False, False

    @contextlib.contextmanager
    def stream(self, stream: SimpleNamespace) -> Iterator[None]:
        """Leaving it makes the stream current that was so before it was entered."""
        before = list(self.streams)
        self.streams.append(stream.name)
        try:
            yield
        finally:
            self.streams[:] = before

    @contextlib.contextmanager
    def graph(
        self, graph: SimpleNamespace, pool: object, stream: SimpleNamespace, capture_error_mode: str
    ) -> Iterator[None]:
        """A capture whose end fails: torch restores neither the stream, nor the pool, nor the random numbers."""
        assert (pool, capture_error_mode) == (POOL, "thread_local")
        self.log.append("capture")
        self.streams.append(stream.name)
        self.capturing = self.pool_open = self.on_hold = True
        try:
            yield
        finally:
            self.capturing = False
            if not self.ends:
                raise torch.AcceleratorError(HIDING)
            self.streams.pop()
            self.pool_open = self.on_hold = False

    def end_pool(self, index: int, pool: object) -> None:
        assert (index, pool) == (0, POOL)
        if not self.pool_open:
            raise RuntimeError("not currently recording to mempool_id")
        self.pool_open = False
        self.log.append("pool ended")

    def release_pool(self, index: int, pool: object) -> None:
        self.log.append("pool released")

    def clone_state(self) -> str:
        return "the same numbers"

    def graphsafe_set_state(self, numbers: str) -> None:
        assert numbers == "the same numbers"
        self.on_hold = False


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeCuda]:
    def made(**how: bool) -> FakeCuda:
        fake = FakeCuda(**how)
        stand_ins = {
            "current_stream": lambda device: "compute",
            "stream": fake.stream,
            "CUDAGraph": SimpleNamespace,
            "graph_pool_handle": lambda: POOL,
            "graph": fake.graph,
            "default_generators": (fake,),
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", fake.end_pool)
        monkeypatch.setattr(torch._C, "_cuda_releasePool", fake.release_pool)
        return fake

    return made


def stream_of(fake: FakeCuda) -> SimpleNamespace:
    return SimpleNamespace(
        name="side",
        device=GPU,
        wait_stream=lambda other: fake.log.append(f"wait for {other}"),
        synchronize=lambda: fake.log.append("synchronize"),
    )


def capture(fake: FakeCuda, failing: BaseException | None = None) -> object:
    def work() -> str:
        assert fake.streams[-1] == "side"
        fake.log.append("work")
        assert gc.isenabled() is not fake.capturing
        if fake.capturing and failing is not None:
            raise failing
        return f"result {fake.log.count('work')}"

    return recorded(work, stream_of(fake))[1]


def test_work_is_warmed_up_and_then_captured(cuda: Callable[..., FakeCuda]) -> None:
    fake = cuda()
    assert capture(fake) == f"result {WARM_UP_CALLS + 1}"
    warm_up = ["work"] * WARM_UP_CALLS
    assert fake.log == ["wait for compute", *warm_up, "synchronize", "capture", "work"]
    assert fake.streams == ["default"]
    assert gc.isenabled()


def test_what_spoiled_the_capture_is_said_and_not_what_ending_it_raised(cuda: Callable[..., FakeCuda]) -> None:
    cause = torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing\nCompile with ...")
    with pytest.raises(RuntimeError) as raised:
        capture(cuda(ends=False), cause)
    assert str(raised.value) == (
        "no CUDA graph could be captured (AcceleratorError: CUDA error: operation not permitted when stream is "
        "capturing): keep what waits for the device out of it"
    )


@pytest.mark.parametrize("ends", [True, False])
def test_afterwards_the_device_is_usable(cuda: Callable[..., FakeCuda], ends: bool) -> None:
    fake = cuda(ends=ends)
    with pytest.raises(RuntimeError, match="ValueError: no such picture"):
        capture(fake, ValueError("no such picture"))
    assert not fake.pool_open
    assert not fake.on_hold
    assert gc.isenabled()
    assert fake.streams == ["default"]
    assert fake.log[-2:] == ["capture", "work"] if ends else ["pool ended", "pool released"]


def test_an_end_that_fails_by_itself_is_the_cause(cuda: Callable[..., FakeCuda]) -> None:
    with pytest.raises(RuntimeError, match=r"\(AcceleratorError: CUDA error: operation failed due to a previous error"):
        capture(cuda(ends=False))


def test_an_error_that_was_being_handled_before_is_not_blamed(cuda: Callable[..., FakeCuda]) -> None:
    try:
        raise KeyError("of another matter")
    except KeyError:
        with pytest.raises(RuntimeError, match="ValueError: no such picture"):
            capture(cuda(ends=False), ValueError("no such picture"))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), KeyboardInterrupt()])
def test_too_little_memory_and_an_interruption_stay_what_they_are(
    cuda: Callable[..., FakeCuda], error: BaseException
) -> None:
    with pytest.raises(type(error)) as raised:
        capture(cuda(ends=False), error)
    assert raised.value is error
