"""Torch's global switches. Each side keeps the ones it chose while it was built; no side sees another's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_THREADS_AT_START = torch.get_num_threads()
_HAS_NEWER_PRECISION = hasattr(torch.backends, "fp32_precision")  # from torch 2.9 on
_MKLDNN_OPERATIONS = 3 if _HAS_NEWER_PRECISION else 0


@dataclass(frozen=True)
class TorchFlags:
    """The defaults are the suite's: strict FP32 and no autotuning, unless a side asks for it; the rest as in torch."""

    cudnn_enabled: bool = True
    cudnn_benchmark: bool = False
    cudnn_deterministic: bool = False
    cudnn_allow_tf32: bool = False  # in convolutions
    cudnn_rnn_allow_tf32: bool = False
    matmul_allow_tf32: bool = False
    mkldnn_precisions: tuple[str, ...] = ("none",) * _MKLDNN_OPERATIONS  # of matmul, conv and rnn
    fp16_reduced_precision: bool = True
    bf16_reduced_precision: bool = True
    mkldnn_enabled: bool = True
    deterministic_algorithms: bool = False
    grad_enabled: bool = True
    default_dtype: torch.dtype = torch.float32
    num_threads: int = _THREADS_AT_START

    @staticmethod
    def current() -> TorchFlags:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        return TorchFlags(
            cudnn_enabled=torch.backends.cudnn.enabled,
            cudnn_benchmark=torch.backends.cudnn.benchmark,
            cudnn_deterministic=torch.backends.cudnn.deterministic,
            cudnn_allow_tf32=_allows_tf32(cudnn, getattr(cudnn, "conv", None)),
            cudnn_rnn_allow_tf32=_allows_tf32(cudnn, getattr(cudnn, "rnn", None)),
            matmul_allow_tf32=_allows_tf32(matmul, matmul),
            mkldnn_precisions=tuple(one.fp32_precision for one in _mkldnn_operations()),
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
        self._apply_precision()
        matmul = torch.backends.cuda.matmul
        matmul.allow_fp16_reduced_precision_reduction = self.fp16_reduced_precision
        matmul.allow_bf16_reduced_precision_reduction = self.bf16_reduced_precision
        torch.backends.mkldnn.enabled = self.mkldnn_enabled  # type: ignore[assignment]
        torch.use_deterministic_algorithms(self.deterministic_algorithms)
        torch.set_grad_enabled(self.grad_enabled)
        torch.set_default_dtype(self.default_dtype)
        if self.num_threads != torch.get_num_threads():
            torch.set_num_threads(self.num_threads)

    def _apply_precision(self) -> None:
        """By the older interface, which both can read afterwards, and the newer one for what only that can say."""
        _forget_newer_precision()
        torch.backends.cudnn.allow_tf32 = self.cudnn_allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.matmul_allow_tf32
        if self.cudnn_rnn_allow_tf32 != self.cudnn_allow_tf32:
            torch.backends.cudnn.rnn.fp32_precision = "tf32" if self.cudnn_rnn_allow_tf32 else "none"  # type: ignore[attr-defined]
        if self.matmul_allow_tf32 and "bf16" in self.mkldnn_precisions[:1]:
            torch.set_float32_matmul_precision("medium")
        for operation, precision in zip(_mkldnn_operations(), self.mkldnn_precisions, strict=True):
            operation.fp32_precision = precision


def _allows_tf32(older: object, newer: object) -> bool:
    """Torch has two interfaces for TF32: where a side used the newer one, reading the older raises; writing is fine.

    What is written by the older shows in the newer.
    """
    if _HAS_NEWER_PRECISION:
        return bool(newer.fp32_precision == "tf32")  # type: ignore[attr-defined]
    return bool(older.allow_tf32)  # type: ignore[attr-defined]


def _mkldnn_operations() -> tuple[Any, ...]:
    mkldnn: Any = torch.backends.mkldnn
    return (mkldnn.matmul, mkldnn.conv, mkldnn.rnn) if _HAS_NEWER_PRECISION else ()


def _forget_newer_precision() -> None:
    """What is set for all operations would hold wherever the older interface only takes its own choice back."""
    if not _HAS_NEWER_PRECISION:
        return
    backends: Any = torch.backends
    for place in (backends, backends.cudnn, *_mkldnn_operations()):
        place.fp32_precision = "none"
    # Not by `mkldnn.fp32_precision`: in torch 2.11 writing it sets that of all backends.
    backends.mkldnn.set_flags(_fp32_precision="none")
