"""A probe of the GPU's encoder in a child process, which encodes four grey pictures.

A GPU without NVENC makes the CUDA context of a process unusable that tries to create an encoder. The child runs this
file as its program, so that it imports no other module of the project.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

PACKAGE, INSTALL = "PyNvVideoCodec", "pip install PyNvVideoCodec"
LIMIT_S = 60.0
SIDE = 256  # pixels: NVENC refuses pictures much smaller
ANSWER = "nvenc-answer "  # starts the line with the answer
LONGEST_ERROR = 160  # characters


@functools.cache
def why_not(gpu: int, codec: str = "h264") -> str | None:
    """The reason why this GPU, by CUDA's index, cannot encode, as one sentence with the next step; None if it can.

    A child process tries it, which takes seconds; the answer is kept for this process.
    """
    if find_spec(PACKAGE) is None:
        return f"NVENC needs the package {PACKAGE}: {INSTALL}"
    problem = _problem(gpu, codec, LIMIT_S)
    if problem is None:
        return None
    return f"GPU {gpu} encodes no {codec} by NVENC ({problem}): take another encoder, A100, H100 and H200 have none"


def _problem(gpu: int, codec: str, limit_s: float) -> str | None:
    try:
        child = subprocess.run(
            [sys.executable, __file__, str(gpu), codec],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return f"a trial did not end within {limit_s:g} s"
    answers = [line.removeprefix(ANSWER) for line in child.stdout.splitlines() if line.startswith(ANSWER)]
    if not answers:
        return f"a trial died with status {child.returncode}"
    error = json.loads(answers[-1]).get("error")
    return None if error is None else str(error)


def _trial(gpu: int, codec: str) -> dict[str, Any]:
    """The result of a trial: `packets`, their number, or `error` in one line."""
    try:
        nvc: Any = importlib.import_module(PACKAGE)
        numpy: Any = importlib.import_module("numpy")
        encoder = nvc.CreateEncoder(SIDE, SIDE, "NV12", True, gpu_id=gpu, codec=codec)
        grey = numpy.full((SIDE * 3 // 2, SIDE), 128, dtype=numpy.uint8)
        packets = sum(len(encoder.Encode(grey)) for _ in range(4)) + len(encoder.EndEncode())
    except BaseException as error:  # also SystemExit of an imported package
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST_ERROR]}
    return {"packets": packets} if packets else {"error": "nothing came out of the encoder"}


if __name__ == "__main__":
    print(f"\n{ANSWER}{json.dumps(_trial(int(sys.argv[1]), sys.argv[2]))}", flush=True)
    os._exit(0)  # a library's cleanup at Python's end can no longer crash or hang it
