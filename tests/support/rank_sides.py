"""Sides of a job of ranks, for tests: another process imports their build functions."""

import gc
import os
import signal
import time

import torch
import torch.distributed as dist

from gpugate.workload import Context, Side


def adding(context: Context, factor: int = 1) -> Side:
    """Each step adds the input, times the rank plus one, over all ranks."""

    def step(inputs: torch.Tensor) -> torch.Tensor:
        found = inputs.double() * factor * (dist.get_rank() + 1)
        dist.all_reduce(found)
        return found

    return Side(step)


def failing_build(context: Context) -> Side:
    if dist.get_rank() == 1:
        raise ValueError("no luck")
    dist.all_reduce(torch.zeros(1))
    return Side(lambda inputs: inputs)


def ending(context: Context, how: str) -> Side:
    """On rank 1 a step ends the process, fails, or skips the sum for which rank 0 waits; rank 2 hangs.

    On rank 0 Ctrl-C may interrupt it before the sum, for which rank 1 waits.
    """

    def step(inputs: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == 2:
            time.sleep(600)
        if dist.get_rank() == 1 and how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if dist.get_rank() == 1 and how == "failed":
            raise ValueError("no luck")
        if dist.get_rank() == 0 and how == "interrupted":
            raise KeyboardInterrupt
        if dist.get_rank() == 0 or how != "skipped":
            dist.all_reduce(torch.zeros(1))
        return inputs

    return Side(step)


def idle_for_ever(context: Context) -> Side:
    time.sleep(600)
    return Side(lambda inputs: inputs)


def counting_collectors(context: Context) -> Side:
    """The output is the number of other ranks that collect garbage by themselves."""

    def step(inputs: torch.Tensor) -> torch.Tensor:
        found = torch.tensor([float(dist.get_rank() > 0 and gc.isenabled())])
        dist.all_reduce(found)
        return found

    return Side(step)
