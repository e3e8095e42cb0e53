"""The pipeline of the streaming workloads, with stages of its own: an exception and a close end all threads."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from tests.support.patience import HANGS_S, soon
from workloads.streaming.blocks import Regime
from workloads.streaming.sides import Pipeline

pytestmark = pytest.mark.usefixtures("no_thread_stays")


@dataclass
class FakeSlot:
    block: int | None = None  # the one that it holds
    submitted: int = -1


def read(slot: FakeSlot, number: int) -> None:
    assert slot.block is None, f"block {number} is read over block {slot.block}, which nobody has consumed"
    slot.block = number
    time.sleep(number % 3 / 1000)


def submit(slot: FakeSlot) -> None:
    slot.submitted = slot.block


def consume(slot: FakeSlot) -> torch.Tensor:
    time.sleep(slot.submitted % 2 / 1000)
    assert slot.submitted == slot.block
    slot.block = None
    return torch.tensor(slot.submitted)


def pipeline(
    slots: int = 3, readers: int = 2, consumers: int = 2, read=read, submit=submit, consume=consume
) -> Pipeline[FakeSlot]:
    regime = Regime(rows=1, points=1, blocks=1, rounds=0, buffers=slots, readers=readers, consumers=consumers)
    made = [FakeSlot() for _ in range(slots)]
    return Pipeline(made, regime, consumers, read=read, submit=submit, consume=consume)


def threads_of_pipelines() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stream-")]


def collected(made: Pipeline[FakeSlot], numbers: list[int]) -> list[int]:
    return [int(each.result(HANGS_S)) for each in made.stream(numbers)]


def failing(run, at: int, number_of: Callable[..., int]):
    def failed(*arguments):
        if number_of(*arguments) == at:
            raise OSError(f"block {at} is lost")
        return run(*arguments)

    return failed


@pytest.mark.parametrize(("slots", "readers", "at"), [(1, 1, 0), (2, 4, 3), (4, 2, 19)])
@pytest.mark.parametrize(
    "stage",
    [
        {"read": failing(read, 0, lambda slot, number: number)},
        {"submit": failing(submit, 0, lambda slot: slot.block)},
        {"consume": failing(consume, 0, lambda slot: slot.block)},
    ],
    ids=["read", "submit", "consume"],
)
def test_an_exception_in_a_stage_ends_all_threads_with_it(slots: int, readers: int, at: int, stage) -> None:
    made = pipeline(slots, readers, **stage)
    numbers = [(number - at) % 20 for number in range(20)]  # block 0, which is lost, at that place

    def run() -> None:
        with made.closed_on_error():
            collected(made, numbers)

    with pytest.raises(OSError, match="block 0 is lost"):
        soon(run)
    assert threads_of_pipelines() == []
    made.close()


def test_a_closed_pipeline_refuses_blocks_and_drops_those_on_their_way() -> None:
    consuming, closing = threading.Event(), threading.Event()

    def consume_late(slot: FakeSlot) -> torch.Tensor:
        consuming.set()
        assert closing.wait(HANGS_S)
        return consume(slot)

    made = pipeline(slots=3, readers=1, consumers=1, consume=consume_late)
    first, *others = made.stream([0, 1, 2])
    assert consuming.wait(HANGS_S)
    threading.Timer(0.05, closing.set).start()  # when `close` waits for the block that is being consumed
    made.close()
    assert int(first.result(HANGS_S)) == 0
    assert all(each.cancelled() for each in others)
    with pytest.raises(RuntimeError, match="cannot schedule new futures after shutdown"):
        soon(lambda: made.stream([3]))


def test_a_block_is_on_its_way_when_its_reading_begins() -> None:
    most = list[int]()

    def read_slowly(slot: FakeSlot, number: int) -> None:
        time.sleep(0.02)  # meanwhile all blocks are requested
        most.append(made.most_in_flight)
        read(slot, number)

    made = pipeline(slots=3, readers=1, read=read_slowly)
    soon(lambda: collected(made, [0, 1, 2]))
    made.close()
    assert most[0] == 1
