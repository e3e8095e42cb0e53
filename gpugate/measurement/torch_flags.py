"""Torch's global switches. Each side runs with the switches that it chose while it was built, and with no others."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.backends import cudnn

_default_threads = torch.get_num_threads()
_CUDNN: Any = cudnn
_MKLDNN: Any = torch.backends.mkldnn
_MKLDNN_OPERATIONS = (_MKLDNN.matmul, _MKLDNN.conv, _MKLDNN.rnn)
_MATMUL = torch.backends.cuda.matmul
_AUTOCAST_DEVICES = ("cpu", "cuda")
_ATTENTION_KERNELS = ("flash", "math", "mem_efficient", "cudnn")
CACHE, _NAME = "TORCHINDUCTOR_CACHE_DIR", "torchinductor_"


def choose_cache(threads: int) -> None:
    """Gives Inductor's compiled code a folder for this number of threads, unless the user chose a folder.

    Inductor compiles C++ for a number of threads, and finds it in its cache for any other number: code for two threads
    took twenty times as long with one.
    """
    if Path(os.environ.get(CACHE, _NAME)).name.startswith(_NAME):
        os.environ[CACHE] = str(Path(tempfile.gettempdir(), f"{_NAME}{os.getuid()}-{threads}-threads"))


choose_cache(_default_threads)


def _switch(default: Any, read: Callable[[], Any], write: Callable[[Any], object] | None = None) -> Any:
    """Declares a switch of torch with its functions; `TorchFlags.apply` writes one that has no `write`."""
    return field(default=default, metadata={"read": read, "write": write})


def _attribute(default: bool, place: object, name: str) -> Any:
    return _switch(default, lambda: bool(getattr(place, name)), partial(setattr, place, name))


def _allows_tf32(place: Any) -> bool:
    """Reads TF32 by torch's newer interface: after a side used it, reading the older one raises.

    Writing by the older interface works, and the newer one shows the value.
    """
    return bool(place.fp32_precision == "tf32")


def _set_deterministic(wanted: bool) -> None:
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    if warns_only or wanted != torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(wanted)  # imports torch's compiler: 3 s


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


def _read_autocast() -> tuple[tuple[bool, torch.dtype], ...]:
    return tuple((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _AUTOCAST_DEVICES)


def _set_autocast(wanted: tuple[tuple[bool, torch.dtype], ...]) -> None:
    for device, (enabled, dtype) in zip(_AUTOCAST_DEVICES, wanted, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)


def _read_nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _set_nesting(wanted: int) -> None:
    """Drops torch's cached casts where the nesting changes, as at the end of an autocast."""
    missing = wanted - _read_nesting()
    if missing:
        torch.clear_autocast_cache()
    for _ in range(abs(missing)):
        (torch.autocast_increment_nesting if missing > 0 else torch.autocast_decrement_nesting)()


def _read_attention() -> tuple[bool, ...]:
    return tuple(getattr(torch.backends.cuda, f"{kernel}_sdp_enabled")() for kernel in _ATTENTION_KERNELS)


def _set_attention(wanted: tuple[bool, ...]) -> None:
    for kernel, enabled in zip(_ATTENTION_KERNELS, wanted, strict=True):
        getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(enabled)


def _flushes_denormal() -> bool:
    """Computes a denormal number, half of the smallest normal one, since torch has a setter only."""
    smallest = sys.float_info.min
    return smallest * 0.5 == 0.0


def _set_flush_denormal(wanted: bool) -> None:
    if wanted != _flushes_denormal():
        torch.set_flush_denormal(wanted)


def _set_threads(wanted: int) -> None:
    if wanted != torch.get_num_threads():
        torch.set_num_threads(wanted)


def set_default_threads(wanted: int) -> None:
    """Sets the threads of torch for all sides from now on, which are otherwise those of the start of the process."""
    global _default_threads
    _default_threads = wanted
    _set_threads(wanted)


@dataclass(frozen=True)
class TorchFlags:
    """Torch's switches. The defaults are those of torch itself: convolutions in TF32, no autotuning."""

    cudnn_enabled: bool = _attribute(True, cudnn, "enabled")
    cudnn_benchmark: bool = _attribute(False, cudnn, "benchmark")
    cudnn_deterministic: bool = _attribute(False, cudnn, "deterministic")
    cudnn_allow_tf32: bool = _switch(True, partial(_allows_tf32, _CUDNN.conv))  # in convolutions
    cudnn_rnn_allow_tf32: bool = _switch(True, partial(_allows_tf32, _CUDNN.rnn))
    matmul_allow_tf32: bool = _switch(False, partial(_allows_tf32, _MATMUL))
    mkldnn_precisions: tuple[str, ...] = _switch(  # of matmul, conv and rnn
        ("none",) * len(_MKLDNN_OPERATIONS), lambda: tuple(one.fp32_precision for one in _MKLDNN_OPERATIONS)
    )
    fp16_reduced_precision: bool = _attribute(True, _MATMUL, "allow_fp16_reduced_precision_reduction")
    bf16_reduced_precision: bool = _attribute(True, _MATMUL, "allow_bf16_reduced_precision_reduction")
    mkldnn_enabled: bool = _attribute(True, _MKLDNN, "enabled")
    deterministic_algorithms: bool = _switch(False, torch.are_deterministic_algorithms_enabled, _set_deterministic)
    inference_mode: bool = _switch(False, torch.is_inference_mode_enabled, _set_inference_mode)
    grad_enabled: bool = _switch(True, torch.is_grad_enabled, torch.set_grad_enabled)  # inference mode sets it too
    detect_anomaly: tuple[bool, bool] = _switch(  # in backward passes; the second: with a search for NaN
        (False, True),
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda wanted: torch.set_anomaly_enabled(*wanted),
    )
    autocast: tuple[tuple[bool, torch.dtype], ...] = _switch(  # of CPU and CUDA
        ((False, torch.bfloat16), (False, torch.float16)), _read_autocast, _set_autocast
    )
    autocast_cache: bool = _switch(True, torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    autocast_nesting: int = _switch(0, _read_nesting, _set_nesting)  # torch forgets its cached casts at the outermost
    attention_kernels: tuple[bool, ...] = _switch((True,) * len(_ATTENTION_KERNELS), _read_attention, _set_attention)
    flush_denormal: bool = _switch(False, _flushes_denormal, _set_flush_denormal)
    default_dtype: torch.dtype = _switch(torch.float32, torch.get_default_dtype, torch.set_default_dtype)
    num_threads: int = field(
        default_factory=lambda: _default_threads, metadata={"read": torch.get_num_threads, "write": _set_threads}
    )

    def without_tf32(self) -> TorchFlags:
        """These switches with TF32 off: expected outputs and proofs are computed in strict FP32."""
        return replace(self, cudnn_allow_tf32=False, cudnn_rnn_allow_tf32=False, matmul_allow_tf32=False)

    @staticmethod
    def current() -> TorchFlags:
        return TorchFlags(**{name: read() for name, read, _ in _SWITCHES})

    def apply(self) -> None:
        """Writes all switches, in the order of their fields after those of precision."""
        self._apply_precision()
        for name, _, write in _SWITCHES:
            if write is not None:
                write(getattr(self, name))

    def _apply_precision(self) -> None:
        """Writes by torch's older interface, which both can read, and by the newer one the settings of it alone."""
        # Settings that would apply wherever the older interface only resets its own.
        places: tuple[Any, ...] = (torch.backends, cudnn, *_MKLDNN_OPERATIONS)
        for place in places:
            place.fp32_precision = "none"
        # Not by `mkldnn.fp32_precision`: in torch 2.11 writing it sets that of all backends.
        _MKLDNN.set_flags(_fp32_precision="none")
        cudnn.allow_tf32 = self.cudnn_allow_tf32
        _MATMUL.allow_tf32 = self.matmul_allow_tf32
        if self.cudnn_rnn_allow_tf32 != self.cudnn_allow_tf32:
            cudnn.rnn.fp32_precision = "tf32" if self.cudnn_rnn_allow_tf32 else "none"  # type: ignore[attr-defined]
        if self.matmul_allow_tf32 and "bf16" in self.mkldnn_precisions[:1]:
            torch.set_float32_matmul_precision("medium")
        for operation, precision in zip(_MKLDNN_OPERATIONS, self.mkldnn_precisions, strict=True):
            operation.fp32_precision = precision


_SWITCHES = tuple((one.name, one.metadata["read"], one.metadata["write"]) for one in fields(TorchFlags))
