"""Torch's global switches. Each side keeps the ones it chose while it was built; no side sees another's."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_THREADS_AT_START = torch.get_num_threads()


@dataclass(frozen=True)
class TorchFlags:
    """The defaults are the suite's: strict FP32 and no autotuning, unless a side asks for it; the rest as in torch."""

    cudnn_enabled: bool = True
    cudnn_benchmark: bool = False
    cudnn_deterministic: bool = False
    cudnn_allow_tf32: bool = False
    matmul_allow_tf32: bool = False
    fp16_reduced_precision: bool = True
    bf16_reduced_precision: bool = True
    mkldnn_enabled: bool = True
    deterministic_algorithms: bool = False
    grad_enabled: bool = True
    default_dtype: torch.dtype = torch.float32
    num_threads: int = _THREADS_AT_START

    @staticmethod
    def current() -> TorchFlags:
        matmul = torch.backends.cuda.matmul
        return TorchFlags(
            cudnn_enabled=torch.backends.cudnn.enabled,
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            cudnn_deterministic=torch.backends.cudnn.deterministic,
            cudnn_allow_tf32=_allows_tf32(torch.backends.cudnn, getattr(torch.backends.cudnn, "conv", None)),
            matmul_allow_tf32=_allows_tf32(matmul, matmul),
            fp16_reduced_precision=matmul.allow_fp16_reduced_precision_reduction,
            bf16_reduced_precision=matmul.allow_bf16_reduced_precision_reduction,
            mkldnn_enabled=bool(torch.backends.mkldnn.enabled),
            deterministic_algorithms=torch.are_deterministic_algorithms_enabled(),
            grad_enabled=torch.is_grad_enabled(),
            default_dtype=torch.get_default_dtype(),
            num_threads=torch.get_num_threads(),
        )

    def apply(self) -> None:
        torch.backends.cudnn.enabled = self.cudnn_enabled
        torch.backends.cudnn.benchmark = self.cudnn_benchmark
        torch.backends.cudnn.deterministic = self.cudnn_deterministic
        torch.backends.cudnn.allow_tf32 = self.cudnn_allow_tf32
        matmul = torch.backends.cuda.matmul
        matmul.allow_tf32 = self.matmul_allow_tf32
        matmul.allow_fp16_reduced_precision_reduction = self.fp16_reduced_precision
        matmul.allow_bf16_reduced_precision_reduction = self.bf16_reduced_precision
        torch.backends.mkldnn.enabled = self.mkldnn_enabled  # type: ignore[assignment]
        torch.use_deterministic_algorithms(self.deterministic_algorithms)
        torch.set_grad_enabled(self.grad_enabled)
        torch.set_default_dtype(self.default_dtype)
        if self.num_threads != torch.get_num_threads():
            torch.set_num_threads(self.num_threads)


def _allows_tf32(older: object, newer: object) -> bool:
    """Torch has two interfaces for TF32: where a side used the newer one, reading the older raises; writing is fine."""
    precision = getattr(newer, "fp32_precision", "none")
    if precision == "none":  # nobody used the newer one, or this torch has none
        return bool(older.allow_tf32)  # type: ignore[attr-defined]
    return bool(precision == "tf32")
