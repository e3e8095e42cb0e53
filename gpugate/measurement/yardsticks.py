"""Yardsticks: this machine's ceilings, measured in about a second. They separate a sick machine from a regression."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from gpugate.measurement.device_timer import CudaEventTimer, HostTimer
from gpugate.measurement.record import Yardstick
from gpugate.measurement.torch_flags import TorchFlags

PROBES = 7
CUDA_MATMUL = 8192
CUDA_COPY_BYTES = 2**30
PINNED_COPY_BYTES = 2**27
LAUNCHES = 200
CPU_MATMUL = 1024
# Up to this many threads, half of that size reaches the same rate, in a millisecond or two: beside two busy processes
# on two cores, the best of seven such products had 93 % of the rate of an idle machine, and of the larger ones 47 %.
FEW_THREADS = 4
CPU_PICTURE = 28  # rows and columns of a layer of ResNet
CPU_COPY_BYTES = 2**26


def probe(device: torch.device) -> Yardstick:
    """Measures matmul, copy and launch ceilings, each the best of seven; units are in the names.

    The data is random: zeros run 13 % faster.
    """
    TorchFlags().apply()
    return Yardstick(_cuda(device) if device.type == "cuda" else _cpu())


def _best_ms(timer: HostTimer, run: Callable[[], object], calls: int = 1) -> float:
    def block() -> None:
        for _ in range(calls):
            run()

    block()
    return min(timer.time_ms(block) for _ in range(PROBES)) / calls


def _cpu() -> dict[str, float]:
    timer, size = HostTimer(), CPU_MATMUL // (2 if torch.get_num_threads() <= FEW_THREADS else 1)
    left, right = torch.randn(2, size, size)
    source = left.flatten().repeat(CPU_COPY_BYTES // 4 // left.numel())  # drawing them takes longer
    target = torch.empty_like(source)
    # Another library computes convolutions: on an AMD CPU at 2.4 times the rate of a matmul.
    channels = size // 4
    image = torch.randn(1, channels, CPU_PICTURE, CPU_PICTURE).to(memory_format=torch.channels_last)
    weight = torch.randn(channels, channels, 3, 3).to(memory_format=torch.channels_last)
    matmul_ms = _best_ms(timer, lambda: torch.mm(left, right))
    convolution_ms = _best_ms(timer, lambda: F.conv2d(image, weight, padding=1))
    copy_ms = _best_ms(timer, lambda: target.copy_(source))
    fastest = max(2 * size**3 / matmul_ms, 2 * weight.numel() * CPU_PICTURE**2 / convolution_ms)
    ceilings = {"matmul_fp32_tflops": fastest / 1e9, "memcpy_gb_per_s": 2 * CPU_COPY_BYTES / copy_ms / 1e6}
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        halves = left.bfloat16(), right.bfloat16()
        ceilings["matmul_bf16_cpu_tflops"] = 2 * size**3 / _best_ms(timer, lambda: torch.mm(*halves)) / 1e9
    return ceilings


def _cuda(device: torch.device) -> dict[str, float]:  # cuda only
    timer = CudaEventTimer(device)
    half = torch.randn(2, CUDA_MATMUL, CUDA_MATMUL, device=device, dtype=torch.bfloat16)
    source = torch.randn(CUDA_COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    pinned = torch.empty(PINNED_COPY_BYTES // 4, pin_memory=True).copy_(source[: PINNED_COPY_BYTES // 4])
    small = torch.randn(32, device=device)
    matmul_ms = _best_ms(timer, lambda: torch.mm(half[0], half[1]), calls=4)
    copy_ms = _best_ms(timer, lambda: target.copy_(source), calls=4)
    on_device = target[: pinned.numel()]
    pinned_ms = _best_ms(timer, lambda: on_device.copy_(pinned, non_blocking=True))
    launch_ms = _best_ms(timer, lambda: small.add_(1.0), calls=LAUNCHES)
    return {
        "matmul_bf16_tflops": 2 * CUDA_MATMUL**3 / matmul_ms / 1e9,
        "device_copy_gb_per_s": 2 * CUDA_COPY_BYTES / copy_ms / 1e6,
        "pinned_copy_gb_per_s": PINNED_COPY_BYTES / pinned_ms / 1e6,
        "launch_latency_us": 1e3 * launch_ms,
    }


def device_problem(device: torch.device) -> str | None:
    """Returns one sentence why nothing can be measured on the device any more; None while it computes.

    After some errors CUDA refuses every call until the process ends.
    """
    try:
        answer = int((torch.ones(2, device=device) + 1).sum().item())
    except RuntimeError as error:
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return f"the device {device} stopped answering ({first_line}): look at dmesg and nvidia-smi, then run again"
    return None if answer == 4 else f"the device {device} gives {answer} for 4: it computes wrongly, take it out of use"
