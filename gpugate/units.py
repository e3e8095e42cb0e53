"""Ranges of stored numbers, printed numbers and names. Elsewhere a value has its unit in its name."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from annotated_types import Interval

T = TypeVar("T")
_BYTES = ((1e10, "GB", 1e9), (1e6, "MB", 1e6), (1e3, "kB", 1e3), (0.0, "bytes", 1.0))  # from so many on
_RATE_PREFIXES: Sequence[tuple[float, str]] = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# The unit at the end of a yardstick's name: (suffix, factor to the base unit, base unit of a rate).
YARDSTICK_RATES = (("_tflops", 1e12, "FLOP"), ("_gflops", 1e9, "FLOP"), ("_gb_per_s", 1e9, "B"))
SHORT_COMMIT = 12  # hexadecimal digits of a commit that a reader sees
LONGEST_NAME = 60  # of a kernel in a line of text; files have the names as they are
HEAD = 20  # characters of a name's beginning that stay where its middle is cut out
_CASTS = re.compile(r"\((?:bool|char|int|unsigned int|long|unsigned long)\)(?=-?\d)")  # as nsys spells numbers


@dataclass(frozen=True)
class NotFinite:
    """A number that may be infinite or NaN: JSON has no such number, so it is stored as one of `words`."""

    words: tuple[str, ...] = ("Infinity", "-Infinity", "NaN")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        known = " or ".join(map(repr, self.words))
        return core_schema.no_info_after_validator_function(
            lambda stored: float(stored) if stored in self.words else stored,
            core_schema.union_schema(
                [core_schema.literal_schema(list(self.words)), handler(source)],
                custom_error_type="not_finite",
                custom_error_message=f"Input should be a value in its range or {known}",
            ),
            serialization=core_schema.plain_serializer_function_ser_schema(_word_if_not_finite),
        )


def _word_if_not_finite(value: object) -> object:
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def stored_unless(default: T) -> T:
    """Declares a field of a dataclass that is stored only where it differs from its default: older files lack it."""
    declared: T = field(default=default, metadata={"exclude_if": lambda value: value == default})
    return declared


_MOST = 2**53  # a larger whole number is no exact float

Milliseconds = Annotated[float, Interval(ge=1e-9, le=1e12)]
Positive = Annotated[float, Interval(ge=1e-30, le=1e30)]
Bound = Annotated[float, Interval(ge=1e-200, le=1e200)]  # an end of an interval, however wide
NotNegative = Annotated[float, Interval(ge=0)]
Speedup = Annotated[float, Interval(gt=0)]  # a promised one
Share = Annotated[float, Interval(ge=0, le=1)]
Count = Annotated[int, Interval(ge=0, le=_MOST)]
Natural = Annotated[int, Interval(ge=1, le=_MOST)]
Seed = Annotated[int, Interval(ge=0, lt=2**63)]
MOST_PROCESSES = 10_000  # of one record, of one command and of one night's checks: each is a process or a case
MOST_SECONDS = 1e6
Processes = Annotated[int, Interval(ge=1, le=MOST_PROCESSES)]


def round_stored(value: float) -> float:
    """Rounds to 6 significant digits, as times are stored; whole numbers, such as bytes, stay exact."""
    return value if float(value).is_integer() else float(f"{value:.6g}")


def milliseconds(value_ms: float) -> str:
    """Writes a time as `35.9 ms` or `0.0652 ms`: three significant digits, never an exponent."""
    digits = 3 if value_ms < 0.1 else 2 if value_ms < 1 else 1 if value_ms < 100 else 0
    return f"{value_ms:.{digits + 1}f} ms"


def item(name: str, value: float) -> str:
    """Writes the value of a counter by the unit in its name, as `35.9 ms`, `424.4 MB`, `48 bytes` or `57`."""
    if name.endswith("_ms"):
        return milliseconds(value)
    if name.endswith("_bytes"):
        unit, size = next((unit, size) for least, unit, size in _BYTES if value >= least)
        return f"{value / size:.4g} {unit}"
    return f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


def duration(seconds: float) -> str:
    """Writes a time as `0.4 s`, `52 s`, `12 min` or `1 h 05 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def date_of(time: str) -> str:
    """`2026-11-23` of a time in ISO 8601, such as `2026-11-23T02:00:05+01:00`."""
    return time.partition("T")[0]


def rate(per_second: float, unit: str) -> str:
    """Writes a rate as `788 TFLOP/s` or `4.3 TB/s`; `unit` is the unit without prefix and `/s`."""
    for factor, prefix in _RATE_PREFIXES:
        if per_second >= factor:
            return f"{per_second / factor:.3g} {prefix}{unit}/s"
    return f"{per_second:.3g} {unit}/s"


def items_per_second(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 100 else f"{value:.3g}/s"


def ratio(value: float) -> str:
    """Writes a speedup as `9.31x`."""
    return f"{value:.2f}x" if value < 100 else f"{value:.0f}x"


def percent(fraction: float) -> str:
    """Writes a fraction such as 0.013 as `1.3 %`."""
    return f"{100 * fraction:.2g} %" if abs(fraction) < 0.1 else f"{100 * fraction:.0f} %"


def signed_percent(share: float) -> str:
    """Writes a share such as -0.052 as `-5.2 %`, and never `-0.0 %`."""
    return f"{round(100 * share, 1) + 0.0:+.1f} %"


def interval(low: float, high: float) -> str:
    return f"{low:.2f}..{high:.2f}" if high < 100 else f"{low:.0f}..{high:.0f}"


def yardstick_label(name: str) -> str:
    """Writes a yardstick's name without its unit: `matmul bf16` for `matmul_bf16_tflops`."""
    for suffix in (*(suffix for suffix, _, _ in YARDSTICK_RATES), "_us"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def yardstick_value(name: str, value: float) -> str:
    """Writes 788.0 of `matmul_bf16_tflops` as `788 TFLOP/s`; a name without a known unit gives the bare number."""
    for suffix, factor, unit in YARDSTICK_RATES:
        if name.endswith(suffix):
            return rate(value * factor, unit)
    return f"{value:.3g} us" if name.endswith("_us") else f"{value:.4g}"


def number_of(number: int, noun: str, plural: str | None = None) -> str:
    """Writes `1 case` or `2 cases`, with a comma between thousands; `plural` is for a noun that takes no bare s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def list_names(names: Sequence[str], most: int = 5) -> str:
    """Writes the first `most` names, as in `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def shorten_name(name: str) -> str:
    """Shortens a kernel's name by its C++ namespaces and casts, and cuts a long name."""
    return _cut(_bare(name))


def shorten_names(names: Sequence[str]) -> list[str]:
    """Shortens kernels' names by their ends; where two would be alike, by their middles: tiles differ at the end."""
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


def format_now() -> str:
    """Writes the local time in ISO 8601 with the UTC offset, to the second."""
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")
