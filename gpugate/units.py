"""Numbers and lists as people read them. Values carry their unit in their name elsewhere; here it becomes text."""

from collections.abc import Sequence

_RATE_PREFIXES: Sequence[tuple[float, str]] = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# How the unit at the end of a yardstick's name is written: (suffix, factor to the base unit, base unit of a rate).
YARDSTICK_RATES = (("_tflops", 1e12, "FLOP"), ("_gflops", 1e9, "FLOP"), ("_gb_per_s", 1e9, "B"))
_YARDSTICK_DURATIONS = (("_us", "us"), ("_ms", "ms"), ("_s", "s"))


def milliseconds(value_ms: float) -> str:
    """`35.9 ms`, `0.0652 ms`: three significant digits, never an exponent."""
    digits = 3 if value_ms < 0.1 else 2 if value_ms < 1 else 1 if value_ms < 100 else 0
    return f"{value_ms:.{digits + 1}f} ms"


def rate(per_second: float, unit: str) -> str:
    """`788 TFLOP/s`, `4.3 TB/s`, `3,563 images/s` with `unit` the singular without `/s`."""
    for factor, prefix in _RATE_PREFIXES:
        if per_second >= factor:
            return f"{per_second / factor:.3g} {prefix}{unit}/s"
    return f"{per_second:.3g} {unit}/s"


def items_per_second(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 100 else f"{value:.3g}/s"


def ratio(value: float) -> str:
    """`9.31x`: a speedup."""
    return f"{value:.2f}x" if value < 100 else f"{value:.0f}x"


def percent(fraction: float) -> str:
    """`1.3 %` of a fraction such as 0.013."""
    return f"{100 * fraction:.2g} %" if abs(fraction) < 0.1 else f"{100 * fraction:.0f} %"


def interval(low: float, high: float) -> str:
    return f"{low:.2f}..{high:.2f}" if high < 100 else f"{low:.0f}..{high:.0f}"


def yardstick_label(name: str) -> str:
    """`matmul bf16` of `matmul_bf16_tflops`."""
    for suffix in (*(suffix for suffix, _, _ in YARDSTICK_RATES), *(suffix for suffix, _ in _YARDSTICK_DURATIONS)):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def yardstick_value(name: str, value: float) -> str:
    """`788 TFLOP/s` of `matmul_bf16_tflops` and 788.0; a name without a known unit gives the bare number."""
    for suffix, factor, unit in YARDSTICK_RATES:
        if name.endswith(suffix):
            return rate(value * factor, unit)
    for suffix, unit in _YARDSTICK_DURATIONS:
        if name.endswith(suffix):
            return f"{value:.3g} {unit}"
    return f"{value:.4g}"


def number_of(number: int, noun: str) -> str:
    """`1 case`, `2 cases`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str], most: int) -> str:
    """`a, b and 3 more`: the first `most` of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
