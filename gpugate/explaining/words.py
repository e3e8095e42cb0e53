"""Numbers and names of an autopsy as people read them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpugate import units

LEAST_MS = 0.00005  # what is shorter would be written as 0.0000 ms
LONGEST_NAME = 60  # in a line of text; files have the names as they are
HEAD, BEFORE = 20, 4  # how much stays of a name's beginning, and before what tells it from others
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
    """Short names, of which no two are alike where the names are not: then they show where the names differ."""
    bare = [_bare(name) for name in names]
    found = [_cut(name) for name in bare]
    for alike in {name for name in found if found.count(name) > 1}:
        those = [number for number, name in enumerate(found) if name == alike]
        differ = _alike([bare[number] for number in those])
        if differ < max(len(bare[number]) for number in those):
            for number in those:
                found[number] = _cut_from(bare[number], differ)
    return found


def _alike(names: Sequence[str]) -> int:
    """Counts the characters of the common beginning of all names."""
    first, last = min(names), max(names)
    pairs = zip(first, last, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(first), len(last)))


def _bare(name: str) -> str:
    for noise in ("void ", "at::native::", "(anonymous namespace)::", "<unnamed>::"):
        name = name.replace(noise, "")
    return _CASTS.sub("", name)


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def _cut_from(name: str, differ: int) -> str:
    """Cuts a long name to its beginning and the part where it begins to differ from other names."""
    room = LONGEST_NAME - HEAD - 6
    start = max(HEAD, min(differ - BEFORE, len(name) - room))
    end = "..." if len(name) > start + room else ""
    return f"{name[:HEAD]}...{name[start : start + room]}{end}"
