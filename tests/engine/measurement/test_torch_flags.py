"""Torch's global switches are read and written as one value, and the defaults are those of torch."""

import os
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpugate.measurement.sides import build_side
from gpugate.measurement.torch_flags import CACHE, TorchFlags, choose_cache
from gpugate.workload import Context, Side
from tests.support.code_in_child import run_code

backends: Any = torch.backends
# Every field with another value than the default.
CHANGED: dict[str, Any] = {
    "cudnn_enabled": False,
    "cudnn_benchmark": True,
    "cudnn_deterministic": True,
    "cudnn_allow_tf32": False,
    "cudnn_rnn_allow_tf32": False,
    "matmul_allow_tf32": True,
    "mkldnn_precisions": ("ieee", "bf16", "tf32"),
    "fp16_reduced_precision": False,
    "bf16_reduced_precision": False,
    "mkldnn_enabled": False,
    "deterministic_algorithms": True,
    "inference_mode": True,
    "grad_enabled": False,
    "detect_anomaly": (True, False),
    "autocast": ((True, torch.float16), (True, torch.bfloat16)),
    "autocast_cache": False,
    "autocast_nesting": 2,
    "attention_kernels": (False, True, False, False),
    "flush_denormal": True,
    "default_dtype": torch.float64,
    "num_threads": 3,
}


@pytest.fixture(autouse=True)
def flags_as_found() -> Iterator[None]:
    found = TorchFlags.current()
    yield
    found.apply()


@pytest.mark.usefixtures("warm_children")
def test_the_defaults_are_those_of_a_new_process() -> None:
    program = "from gpugate.measurement.torch_flags import TorchFlags; print(TorchFlags.current() == TorchFlags())"
    assert run_code(program).strip() == "True"


def test_each_number_of_threads_has_its_compiled_code_but_in_a_folder_of_the_user(monkeypatch) -> None:
    for before, after in (("/data/torchinductor_me", "-3-threads"), ("/data/mine", "/data/mine")):
        monkeypatch.setenv(CACHE, before)
        choose_cache(3)
        assert os.environ[CACHE].endswith(after)


def test_outputs_are_expected_in_strict_fp32_and_steps_are_timed_without_it() -> None:
    def build(context: Context) -> Side:
        return Side(lambda x: x + float(torch.backends.cudnn.allow_tf32))

    zero = torch.zeros(1)
    side = build_side("baseline", build, Context(torch.device("cpu"), 1, 0, Path()), zero)
    side.flags = TorchFlags(cudnn_benchmark=True, matmul_allow_tf32=True)
    assert side.output_for(zero, expected=True)[""].item() == 0
    assert TorchFlags.current() == replace(side.flags.without_tf32(), cudnn_benchmark=True)
    assert not TorchFlags.current().matmul_allow_tf32
    assert side.output_for(zero)[""].item() == 1


@pytest.mark.parametrize("names", [*((name,) for name in CHANGED), tuple(CHANGED)], ids=lambda names: names[-1])
def test_every_switch_goes_there_and_back(names: tuple[str, ...]) -> None:
    wanted = replace(TorchFlags(), **{name: CHANGED[name] for name in names})
    assert {field.name for field in fields(TorchFlags)} == set(CHANGED)
    assert wanted != TorchFlags()
    TorchFlags().apply()
    wanted.apply()
    assert TorchFlags.current() == wanted
    TorchFlags().apply()
    assert TorchFlags.current() == TorchFlags()


def set_newer(*places: Any, precision: str = "tf32") -> Callable[[], None]:
    def choose() -> None:
        for place in places:
            place.fp32_precision = precision

    return choose


# How a side may choose its precision -> whether its cuDNN convolutions, its cuDNN RNNs and its matmuls are in TF32.
PRECISIONS: dict[str, tuple[Callable[[], None], tuple[bool, bool, bool]]] = {
    "all": (set_newer(backends), (True, True, False)),  # each `ieee` below it stays
    "all in FP32": (set_newer(backends, precision="ieee"), (True, True, False)),  # each `tf32` below it stays
    "cuDNN": (set_newer(backends.cudnn, precision="ieee"), (True, True, False)),
    "convolutions": (set_newer(backends.cudnn.conv, precision="ieee"), (False, True, False)),
    "RNNs": (set_newer(backends.cudnn.rnn, precision="ieee"), (True, False, False)),
    "both by the older word": (lambda: setattr(backends.cudnn, "allow_tf32", False), (False, False, False)),
    "matmuls": (set_newer(backends.cuda.matmul), (True, True, True)),
    "oneDNN": (set_newer(backends.mkldnn, precision="bf16"), (True, True, False)),
    "oneDNN's matmuls": (set_newer(backends.mkldnn.matmul, precision="bf16"), (True, True, False)),
    "oneDNN's flags": (lambda: backends.mkldnn.set_flags(_fp32_precision="tf32"), (True, True, False)),
    "high": (lambda: torch.set_float32_matmul_precision("high"), (True, True, True)),
    "medium": (lambda: torch.set_float32_matmul_precision("medium"), (True, True, True)),
}
PLACES = (
    backends,
    backends.cuda.matmul,
    backends.cudnn,
    *(backends.cudnn.conv, backends.cudnn.rnn),
    backends.mkldnn,
    *(backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn),
)


def precisions() -> list[str]:
    return [place.fp32_precision for place in PLACES]


@pytest.mark.parametrize("how", PRECISIONS)
def test_a_side_may_use_either_interface_and_the_next_side_sees_nothing_of_it(how: str, tmp_path: Path) -> None:
    choose, expected = PRECISIONS[how]
    TorchFlags().apply()
    default = precisions()

    def build(context: Context) -> Side:
        choose()
        return Side(lambda inputs: inputs)

    side = build_side("fast", build, Context(torch.device("cpu"), items=1, seed=0, cache_dir=tmp_path), None)
    found = side.flags
    assert (found.cudnn_allow_tf32, found.cudnn_rnn_allow_tf32, found.matmul_allow_tf32) == expected
    TorchFlags().apply()  # what the next side is built under
    assert precisions() == default
    assert torch.get_float32_matmul_precision() == "highest"  # raises where both interfaces are at odds
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (False, True)
    found.apply()
    assert TorchFlags.current() == found
    if how in ("high", "medium"):
        assert torch.get_float32_matmul_precision() == how
