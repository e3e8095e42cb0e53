"""The device stages of a block between its buffer on the host and its result there: copy in, kernel, copy out.

The stages run either one after the other, or on three streams at once. On a CPU the kernel reads the host's buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workloads.parts.slots import Buffers, StagedSlot
from workloads.parts.stages import stage
from workloads.streaming.block_checksum import half_sums
from workloads.streaming.walsh_shift import WalshShift

Kernel = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Regime:
    """A regime of streaming: a file of `blocks` blocks, float32 [rows, points], with `rounds` of WalshShift on each.

    With 0 rounds the device computes a block's checksum alone, and only that comes back. `buffers` blocks may be on
    their way at once, read by `readers` threads in `pieces` each; `consumers` threads check the results. With a `team`,
    a reader copies out of the mapped file, by so many threads of PyTorch's.
    """

    rows: int
    points: int
    blocks: int
    rounds: int
    buffers: int
    readers: int
    consumers: int
    pieces: int = 1
    team: int = 0

    def kernel(self, device: torch.device) -> Kernel:
        return WalshShift(self.points, self.rounds, device) if self.rounds else half_sums

    def wanted(self, result: Tensor) -> Tensor:
        """int64 [2]: the sums of a result, in memory of its own."""
        return half_sums(result) if self.rounds else result.clone()

    def known(self, checksums: Tensor) -> Tensor:
        """int64 [blocks, 2]: the right values of `wanted`. An odd number of shifts swaps the halves of a block."""
        return checksums.flip(-1) if self.rounds % 2 else checksums

    def piece(self, number: int, block: Tensor) -> Tensor:
        """The part of a block's buffer for piece `number` of the file: float32 [rows x points / pieces]."""
        return block.view(self.pieces, -1)[number % self.pieces]

    def host_block(self, pinned: bool) -> Tensor:
        return torch.empty(self.rows, self.points, pin_memory=pinned)

    def host_result(self, pinned: bool) -> Tensor:
        if self.rounds:
            return self.host_block(pinned)
        return torch.empty(2, dtype=torch.int64, pin_memory=pinned)


@dataclass
class HostSlot:
    """A slot whose kernel blocks: the block as it was read, and the result."""

    inputs: Tensor
    result: Tensor


class BlockingDevice:
    """A device that takes one block at a time; all its work is over when the call returns."""

    def __init__(self, regime: Regime, device: torch.device, pinned: bool) -> None:
        self._kernel, self.pinned = regime.kernel(device), pinned
        self._on_cuda = device.type == "cuda"
        if self._on_cuda:
            self._inputs = torch.empty(regime.rows, regime.points, device=device)  # cuda only
            self.result = regime.host_result(pinned)  # cuda only

    def __call__(self, block: Tensor) -> Tensor:
        """The result for a block on the host; on CUDA it lasts until the next call."""
        if not self._on_cuda:
            with stage("compute", 1):
                return self._kernel(block)
        with stage("copy in", 1):  # cuda only
            self._inputs.copy_(block)
        with stage("compute", 1):  # cuda only
            result = self._kernel(self._inputs)
        with stage("copy out", 1):  # cuda only
            return self.result.copy_(result)


class StagedDevice:  # cuda only
    """A stream for each direction of copying, the kernel on the caller's; only streams wait, for each other."""

    def __init__(self, regime: Regime, device: torch.device) -> None:
        self._device, self._kernel = device, regime.kernel(device)
        self._copy_in, self._copy_out = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]

    def submit(self, slot: StagedSlot) -> None:
        """`slot.host.output` holds the result for `slot.host.inputs` once `slot.host.done` is over."""
        compute = torch.cuda.current_stream(self._device)
        with stage("copy in", 1), self._copy_in:
            slot.inputs.copy_(slot.host.inputs, non_blocking=True)
        slot.arrived.record(self._copy_in)
        compute.wait_event(slot.arrived)
        # The slot keeps the result until its next turn, when the copy out is known to be over: see two_layer_net.
        with stage("compute", 1):
            slot.result = self._kernel(slot.inputs)
        slot.computed.record(compute)
        self._copy_out.wait_event(slot.computed)
        with stage("copy out", 1), self._copy_out:
            slot.host.output.copy_(slot.result, non_blocking=True)
        slot.host.done.record(self._copy_out)


def staged_slot(regime: Regime, device: torch.device) -> StagedSlot:  # cuda only
    """Page-locked buffers on the host, one for the block and one for the result; one buffer on the device."""
    # Waiting for an ordinary event is a busy loop: many waiting threads would take the cores of the others.
    done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    host = Buffers(regime.host_block(pinned=True), regime.host_result(pinned=True), done)
    return StagedSlot(host, torch.empty(regime.rows, regime.points, device=device))


def pageable(buffers: Sequence[Tensor]) -> str | None:
    """The number of these host buffers that are not page-locked, in words; None if all are."""
    count = sum(not buffer.is_pinned() for buffer in buffers)
    return f"{count} of {len(buffers)} host buffers are pageable" if count else None
