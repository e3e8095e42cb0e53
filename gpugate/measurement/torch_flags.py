"""Torch's global switches. Each side keeps the ones it chose while it was built; no side sees another's."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TorchFlags:
    """The defaults are the suite's: strict FP32 and no autotuning, unless a side asks for it."""

    cudnn_benchmark: bool = False
    cudnn_deterministic: bool = False
    cudnn_allow_tf32: bool = False
    matmul_allow_tf32: bool = False
    num_threads: int = 0  # 0: as torch found it

    @staticmethod
    def defaults() -> TorchFlags:
        return TorchFlags(num_threads=_THREADS_AT_START)

    @staticmethod
    def current() -> TorchFlags:
        return TorchFlags(
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            cudnn_deterministic=torch.backends.cudnn.deterministic,
            cudnn_allow_tf32=torch.backends.cudnn.allow_tf32,
            matmul_allow_tf32=torch.backends.cuda.matmul.allow_tf32,
            num_threads=torch.get_num_threads(),
        )

    def apply(self) -> None:
        # The older of torch's two interfaces for TF32: mixing both raises, and the older serves torch 2.8.
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.backends.cudnn.allow_tf32 = self.cudnn_allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.matmul_allow_tf32
        if self.num_threads != torch.get_num_threads():
            torch.set_num_threads(self.num_threads)


_THREADS_AT_START = torch.get_num_threads()
