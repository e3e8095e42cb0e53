"""Numbers and names of an autopsy as people read them."""

from __future__ import annotations

from gpugate import units

LONGEST_NAME = 60  # in a line of text; files have the names as they are


def signed(ms: float) -> str:
    """`+0.12 ms`."""
    return f"{'+' if ms >= 0 else '-'}{units.milliseconds(abs(ms))}"


def change(then_ms: float, now_ms: float) -> str:
    """`3.2 ms -> 3.4 ms (+6.3 %)`."""
    share = now_ms / then_ms - 1
    percent = f"{'+' if share >= 0 else '-'}{units.percent(abs(share))}"
    return f"{units.milliseconds(then_ms)} -> {units.milliseconds(now_ms)} ({percent})"


def short(name: str) -> str:
    """A kernel's name without what C++ puts around it."""
    bare = name.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return bare if len(bare) <= LONGEST_NAME else f"{bare[: LONGEST_NAME - 3]}..."
