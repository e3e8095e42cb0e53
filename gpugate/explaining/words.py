"""Numbers and names of an autopsy as people read them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpugate import units

LEAST_MS = 0.00005  # what is shorter would be written as 0.0000 ms
LONGEST_NAME = 60  # in a line of text; files have the names as they are
HEAD = 20  # characters of a name's beginning that stay where its middle is cut out
_CASTS = re.compile(r"\((?:bool|char|int|unsigned int|long|unsigned long)\)(?=-?\d)")  # as nsys spells numbers


def write_signed(ms: float) -> str:
    """`+0.12 ms`."""
    return f"{'+' if ms >= 0 else '-'}{units.milliseconds(abs(ms))}"


def change(then_ms: float, now_ms: float) -> str:
    """`3.2 ms -> 3.4 ms (+6.3 %)`."""
    share = now_ms / then_ms - 1
    percent = f"{'+' if share >= 0 else '-'}{units.percent(abs(share))}"
    return f"{units.milliseconds(then_ms)} -> {units.milliseconds(now_ms)} ({percent})"


def short(name: str) -> str:
    """Shortens a kernel's name by its C++ namespaces and casts, and cuts a long name."""
    return _cut(_bare(name))


def shorten_names(names: Sequence[str]) -> list[str]:
    """Shortens names by their ends; where two would be alike, by their middles: tiles of a kernel differ at the end."""
    bare = [_bare(name) for name in names]
    found = [_cut(name) for name in bare]
    return [
        f"{whole[:HEAD]}...{whole[HEAD + 3 - LONGEST_NAME :]}" if found.count(name) > 1 and name != whole else name
        for whole, name in zip(bare, found, strict=True)
    ]


def _bare(name: str) -> str:
    for noise in ("void ", "at::native::", "(anonymous namespace)::", "<unnamed>::"):
        name = name.replace(noise, "")
    return _CASTS.sub("", name)


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."
