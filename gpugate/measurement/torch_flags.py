"""Torch's global switches. Each side runs with the switches that it chose while it was built, and with no others."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import torch

_THREADS_AT_START = torch.get_num_threads()
_HAS_NEWER_PRECISION = hasattr(torch.backends, "fp32_precision")  # from torch 2.9 on
_MKLDNN_OPERATIONS = 3 if _HAS_NEWER_PRECISION else 0
_AUTOCAST_DEVICES = ("cpu", "cuda")
_ATTENTION_KERNELS = ("flash", "math", "mem_efficient", "cudnn")


@dataclass(frozen=True)
class TorchFlags:
    """Torch's switches. The defaults are those of torch itself: convolutions in TF32, no autotuning."""

    cudnn_enabled: bool = True
    cudnn_benchmark: bool = False
    cudnn_deterministic: bool = False
    cudnn_allow_tf32: bool = True  # in convolutions
    cudnn_rnn_allow_tf32: bool = True
    matmul_allow_tf32: bool = False
    mkldnn_precisions: tuple[str, ...] = ("none",) * _MKLDNN_OPERATIONS  # of matmul, conv and rnn
    fp16_reduced_precision: bool = True
    bf16_reduced_precision: bool = True
    mkldnn_enabled: bool = True
    deterministic_algorithms: bool = False
    inference_mode: bool = False
    grad_enabled: bool = True
    detect_anomaly: tuple[bool, bool] = (False, True)  # in backward passes; the second: with a search for NaN
    autocast: tuple[tuple[bool, torch.dtype], ...] = ((False, torch.bfloat16), (False, torch.float16))  # CPU, CUDA
    autocast_cache: bool = True
    autocast_nesting: int = 0  # torch forgets its cached casts when the outermost autocast ends
    attention_kernels: tuple[bool, ...] = (True,) * len(_ATTENTION_KERNELS)
    flush_denormal: bool = False
    default_dtype: torch.dtype = torch.float32
    num_threads: int = _THREADS_AT_START

    def without_tf32(self) -> TorchFlags:
        """These switches with TF32 off: expected outputs and proofs are computed in strict FP32."""
        return replace(self, cudnn_allow_tf32=False, cudnn_rnn_allow_tf32=False, matmul_allow_tf32=False)

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
            inference_mode=torch.is_inference_mode_enabled(),
            grad_enabled=torch.is_grad_enabled(),
            detect_anomaly=(torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            autocast=tuple(
                (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _AUTOCAST_DEVICES
            ),
            autocast_cache=torch.is_autocast_cache_enabled(),
            autocast_nesting=_autocast_nesting(),
            attention_kernels=tuple(
                getattr(torch.backends.cuda, f"{kernel}_sdp_enabled")() for kernel in _ATTENTION_KERNELS
            ),
            flush_denormal=_flushes_denormal(),
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
        warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
        if warns_only or self.deterministic_algorithms != torch.are_deterministic_algorithms_enabled():
            torch.use_deterministic_algorithms(self.deterministic_algorithms)  # imports torch's compiler: 3 s
        _set_inference_mode(self.inference_mode)
        torch.set_grad_enabled(self.grad_enabled)  # after inference mode, which sets it too
        torch.set_anomaly_enabled(*self.detect_anomaly)
        self._apply_autocast()
        for kernel, enabled in zip(_ATTENTION_KERNELS, self.attention_kernels, strict=True):
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(enabled)
        if self.flush_denormal != _flushes_denormal():
            torch.set_flush_denormal(self.flush_denormal)
        torch.set_default_dtype(self.default_dtype)
        if self.num_threads != torch.get_num_threads():
            torch.set_num_threads(self.num_threads)

    def _apply_autocast(self) -> None:
        """Applies autocast, and drops torch's cached casts where the nesting changes, as at the end of an autocast."""
        for device, (enabled, dtype) in zip(_AUTOCAST_DEVICES, self.autocast, strict=True):
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.autocast_cache)
        missing = self.autocast_nesting - _autocast_nesting()
        if missing:
            torch.clear_autocast_cache()
        for _ in range(abs(missing)):
            (torch.autocast_increment_nesting if missing > 0 else torch.autocast_decrement_nesting)()

    def _apply_precision(self) -> None:
        """Writes by torch's older interface, which both can read, and by the newer one the settings of it alone."""
        _forget_newer_precision()
        torch.backends.cudnn.allow_tf32 = self.cudnn_allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.matmul_allow_tf32
        if self.cudnn_rnn_allow_tf32 != self.cudnn_allow_tf32:
            torch.backends.cudnn.rnn.fp32_precision = "tf32" if self.cudnn_rnn_allow_tf32 else "none"  # type: ignore[attr-defined]
        if self.matmul_allow_tf32 and "bf16" in self.mkldnn_precisions[:1]:
            torch.set_float32_matmul_precision("medium")
        for operation, precision in zip(_mkldnn_operations(), self.mkldnn_precisions, strict=True):
            operation.fp32_precision = precision


_guard: torch.inference_mode | None = None  # its end would restore the mode before it


def _set_inference_mode(enabled: bool) -> None:
    """Sets inference mode by a guard: torch has no plain setter, and a guard that is freed restores the mode before it.

    So the previous guard is freed before the new one is made: the new guard overwrites the mode that the previous guard
    restores.
    """
    global _guard  # the mode is global, too
    if torch.is_inference_mode_enabled() != enabled:
        _guard = None
        _guard = torch.inference_mode(enabled)
        _guard.__enter__()


def _autocast_nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _flushes_denormal() -> bool:
    """Computes a denormal number, half of the smallest normal one, since torch has a setter only."""
    smallest = sys.float_info.min
    return smallest * 0.5 == 0.0


def _allows_tf32(older: object, newer: object) -> bool:
    """Reads TF32 by torch's newer interface, where it exists: after a side used it, reading the older one raises.

    Writing by the older interface works, and the newer one shows the value.
    """
    if _HAS_NEWER_PRECISION:
        return bool(newer.fp32_precision == "tf32")  # type: ignore[attr-defined]
    return bool(older.allow_tf32)  # type: ignore[attr-defined]


def _mkldnn_operations() -> tuple[Any, ...]:
    mkldnn: Any = torch.backends.mkldnn
    return (mkldnn.matmul, mkldnn.conv, mkldnn.rnn) if _HAS_NEWER_PRECISION else ()


def _forget_newer_precision() -> None:
    """Clears the newer interface's settings, which would apply wherever the older interface only resets its own."""
    if not _HAS_NEWER_PRECISION:
        return
    backends: Any = torch.backends
    for place in (backends, backends.cudnn, *_mkldnn_operations()):
        place.fp32_precision = "none"
    # Not by `mkldnn.fp32_precision`: in torch 2.11 writing it sets that of all backends.
    backends.mkldnn.set_flags(_fp32_precision="none")
