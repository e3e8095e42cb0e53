"""Strict JSON for our dataclasses: what does not fit the declared types is refused, with its path in the document.

Two things are written in a form of their own. The instances of one process become columns: one list per field of
`Instance` and of `Pair`, the latter with one inner list per instance, so that a new process changes a few lines. Times
are rounded to 6 significant digits. JSON knows no infinity: an infinite `Difference.relative_l2` or
`Difference.max_error` (an output with NaN) is the string "Infinity", and a number that is not finite among
`Verdict.numbers` is "Infinity", "-Infinity" or "NaN".
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import reprlib
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gpugate.errors import GpugateError
from gpugate.measurement.record import Difference, Instance, Pair
from gpugate.results.verdict import Verdict
from gpugate.store.writable_folder import prepare_unfinished
from gpugate.units import Milliseconds, Range

T = TypeVar("T")
SIGNIFICANT_DIGITS = 6
_INT64 = 2**63
_LAST_DIGIT = 1e-9
_PROCESS = tuple[Instance, ...]
_INTERVAL = {"median", "low", "high"}  # the fields of an interval
_TIMES = ("reference_ms", "optimized_ms")
_TIME: Range = get_args(Milliseconds)[1]
_MAY_BE_INFINITE = ((Difference, "relative_l2"), (Difference, "max_error"))
_NOT_FINITE = ("Infinity", "-Infinity", "NaN")
_PLAIN: Mapping[object, tuple[str, tuple[type, ...]]] = {
    float: ("a finite number", (int, float)),
    int: ("a whole number", (int,)),
    str: ("a text", (str,)),
    bool: ("true or false", (bool,)),
}


class FormatError(GpugateError, ValueError):
    """A value does not fit the format; the message names its path, such as `cases.tf32/cuda.current.processes[2]`."""


class NewerFormatError(FormatError):
    """The document was written by a newer version of its format than this one reads."""


def to_json(value: object, where: str = "") -> Any:
    """What `json.dumps` takes for a dataclass. Raises FormatError for a value that JSON cannot carry."""
    if isinstance(value, tuple) and value and isinstance(value[0], Instance):
        return _process_to_json(value, where)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: to_json(_writable(value, name), _under(where, name)) for name in names}
    if isinstance(value, Mapping):
        return {name: to_json(entry, _under(where, name)) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(entry, f"{where}[{index}]") for index, entry in enumerate(value)]
    return _plain_to_json(value, where)


def from_json(cls: type[T], data: object, where: str = "") -> T:
    """The dataclass that `to_json` turned into `data`. Raises FormatError, naming the path, for anything else."""
    return cast(T, _decode(cls, data, where))


def parse(text: str) -> object:
    """`json.loads` that refuses NaN, infinity and repeated names. Raises FormatError for what is not JSON."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise FormatError(f"it is cut off or not JSON ({place}: {error.msg})") from None
    except RecursionError:
        raise FormatError("it is not ours (nested too deep)") from None
    except FormatError:
        raise
    except ValueError:  # Python reads no whole number of more than 4300 digits
        raise FormatError("it is not ours (a number of thousands of digits)") from None


def pretty(data: object, indent: str = "") -> str:
    """JSON with one line per field and per list without objects."""
    inner = indent + "  "
    if isinstance(data, dict) and data:
        lines = [f"{inner}{json.dumps(name)}: {pretty(value, inner)}" for name, value in data.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(data, list) and any(isinstance(value, dict) for value in data):
        return "[\n" + ",\n".join(inner + pretty(value, inner) for value in data) + f"\n{indent}]"
    return json.dumps(data, allow_nan=False)


def with_header(name: str, version: int, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"format": name, "format_version": version, **body}


def without_header(name: str, version: int, data: object) -> dict[str, Any]:
    """The body of a document. Raises FormatError for another format and for a version that is not known here."""
    if not isinstance(data, dict) or data.get("format") != name:
        raise FormatError(f"it does not say that its format is {name!r}")
    found = data.get("format_version")
    if type(found) is not int or found < 1:
        _refuse("format_version", found, "a whole number from 1 on")
    if found > version:
        raise NewerFormatError(f"written by a newer gpugate (format {found}, this one reads up to {version})")
    return {key: value for key, value in data.items() if key not in ("format", "format_version")}


@contextmanager
def naming_the_file(
    path: Path, kind: type[GpugateError], *, unreadable: str, damaged: str, instead_of_upgrading: str
) -> Iterator[None]:
    """What goes wrong with a document that is read inside becomes one sentence of `kind`, with the next step."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise kind(f"{path} cannot be read ({problem}): {unreadable}") from error
    except NewerFormatError as error:
        raise kind(f"{path} was {error}: upgrade gpugate or {instead_of_upgrading}") from error
    except FormatError as error:
        raise kind(f"{path} cannot be used because {error}: {damaged}") from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replaces a file in one step: whoever reads it sees the old content or the new one. Raises OSError."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise OSError("it is not a regular file")
    temporary = prepare_unfinished(target)
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def rounded(value: float) -> float:
    """To 6 significant digits; whole numbers, such as bytes, stay exact."""
    return value if float(value).is_integer() else float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def _writable(owner: Any, name: str) -> Any:
    """The value of a field, with words for what is not finite where that may happen."""
    value = getattr(owner, name)
    if isinstance(owner, Verdict) and name == "numbers":
        return {key: _word_if_not_finite(number) for key, number in value.items()}
    if (type(owner), name) in _MAY_BE_INFINITE and value == math.inf:
        return "Infinity"
    return value


def _word_if_not_finite(value: float | str | None) -> float | str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _process_to_json(process: tuple[Instance, ...], where: str) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name in _hints(Instance):
        if name != "pairs":
            columns[name] = [getattr(instance, name) for instance in process]
    for name in _hints(Pair):
        columns[name] = [[getattr(pair, name) for pair in instance.pairs] for instance in process]
    for name in _TIMES:
        columns[name] = [[rounded(value) for value in values] for values in columns[name]]
    _check_times(columns, where)
    return {name: to_json(column, _under(where, name)) for name, column in columns.items()}


def _plain_to_json(value: object, where: str) -> Any:
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (str, bool)):
        return value
    if not isinstance(value, Real):
        _refuse(where, value, "something that JSON can carry")
    if not math.isfinite(value):
        _refuse(where, value, "a finite number")
    return int(value) if isinstance(value, Integral) else float(value)


def _decode(hint: Any, data: object, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint == _PROCESS:
        return _process_from_json(data, where)
    if dataclasses.is_dataclass(hint):
        hints = _hints(cast(type, hint))
        made = cast(Any, hint)(**_decode_fields(hints, data, where))
        if hints.keys() == _INTERVAL:
            _check_ordered(made, where)
        return made
    if origin is Annotated:
        return _decode_ranged(hint, data, where)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, data, where)
    if origin is Literal:
        return _decode_choice({choice: choice for choice in arguments}, data, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _decode_choice({choice.value: choice for choice in hint}, data, where)
    if origin is tuple and Ellipsis not in arguments and isinstance(data, list) and len(data) != len(arguments):
        _refuse(where, data, f"a list of {len(arguments)} values")
    if origin in (tuple, list):
        return origin(_decode_entries(arguments[0], data, where))
    if origin in (dict, Mapping):
        return _decode_mapping(arguments[1], data, where)
    return _decode_plain(hint, data, where)


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    """The type of each field; where infinity may be, its word is a choice beside the number."""
    known = get_type_hints(cls, include_extras=True)
    wanted = {field.name: known[field.name] for field in dataclasses.fields(cls)}
    infinite = {name: known[name] | Literal["Infinity"] for owner, name in _MAY_BE_INFINITE if owner is cls}
    return {**wanted, **infinite}


def _decode_fields(hints: Mapping[str, Any], data: object, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        _refuse(where, data, "an object")
    for name in data:
        if name not in hints:
            raise FormatError(f"{where or 'the document'} has an unknown field {name!r}")
    for name in hints:
        if name not in data:
            raise FormatError(f"{where or 'the document'} has no field {name!r}")
    return {name: _decode(hint, data[name], _under(where, name)) for name, hint in hints.items()}


def _process_from_json(data: object, where: str) -> tuple[Instance, ...]:
    if data == []:
        return ()
    of_instance = {name: _many(hint) for name, hint in _hints(Instance).items() if name != "pairs"}
    of_pair = {name: _many(_many(hint)) for name, hint in _hints(Pair).items()}
    columns = _decode_fields({**of_instance, **of_pair}, data, where)
    _check_lengths({name: len(column) for name, column in columns.items()}, where)
    return tuple(_instance(columns, index, where) for index in range(len(columns[_TIMES[0]])))


def _instance(columns: Mapping[str, Any], index: int, where: str) -> Instance:
    """One instance of a process, from the columns of all."""
    of_pair = {name: columns[name][index] for name in _hints(Pair)}
    _check_lengths({f"{name}[{index}]": len(column) for name, column in of_pair.items()}, where)
    pairs = tuple(Pair(*row) for row in zip(*of_pair.values(), strict=True))
    return Instance(pairs=pairs, **{name: columns[name][index] for name in _hints(Instance) if name != "pairs"})


def _many(hint: Any) -> types.GenericAlias:
    return types.GenericAlias(tuple, (hint, ...))


def _check_lengths(lengths: Mapping[str, int], where: str) -> None:
    first = next(iter(lengths))
    for name, length in lengths.items():
        if length != lengths[first]:
            raise FormatError(f"{_under(where, name)} has {length} values and {first} has {lengths[first]}")


def _check_times(columns: Mapping[str, Sequence[Sequence[float]]], where: str) -> None:
    for name in _TIMES:
        for index, values in enumerate(columns[name]):
            for place, value in enumerate(values):
                _check_range(_TIME, value, f"{_under(where, name)}[{index}][{place}]")


def _decode_union(options: Sequence[Any], data: object, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    options = [option for option in options if option is not type(None)]
    if len(options) == 1:
        return _decode(options[0], data, where)
    for option in options:
        try:
            value = _decode(option, data, where)
        except FormatError:
            continue
        return float(value) if float in map(_plain, options) and value in _NOT_FINITE else value
    return _refuse(where, data, " or ".join(_called(option) for option in options))


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _called(hint: Any) -> str:
    if get_origin(hint) is Annotated:
        return _range_of(hint).words
    return _PLAIN[hint][0] if hint in _PLAIN else " or ".join(repr(choice) for choice in get_args(hint))


def _decode_ranged(hint: Any, data: object, where: str) -> Any:
    value = _decode(_plain(hint), data, where)
    _check_range(_range_of(hint), value, where)
    return value


def _range_of(hint: Any) -> Range:
    return next(mark for mark in get_args(hint) if isinstance(mark, Range))


def _check_ordered(found: Any, where: str) -> None:
    """A median may lie outside its interval by the last digit of a float."""
    if not found.low * (1 - _LAST_DIGIT) <= found.median <= found.high * (1 + _LAST_DIGIT):
        _refuse(_under(where, "median"), found.median, f"a number from low, {found.low:g}, to high, {found.high:g}")


def _check_range(known: Range, value: float, where: str) -> None:
    if not known.low <= value <= known.high:
        _refuse(where, value, known.words)


def _decode_choice(choices: Mapping[Any, Any], data: object, where: str) -> Any:
    if isinstance(data, (str, int)) and data in choices:
        return choices[data]
    return _refuse(where, data, "one of " + ", ".join(repr(choice) for choice in choices))


def _decode_entries(hint: Any, data: object, where: str) -> list[Any]:
    if not isinstance(data, list):
        _refuse(where, data, "a list")
    return [_decode(hint, entry, f"{where}[{index}]") for index, entry in enumerate(data)]


def _decode_mapping(hint: Any, data: object, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        _refuse(where, data, "an object")
    for name in data:
        _decode_plain(str, name, f"a name in {where or 'the document'}")
    return {name: _decode(hint, entry, _under(where, name)) for name, entry in data.items()}


def _check_unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can hold and no file or terminal takes
        _refuse(where, text, "a text that UTF-8 can hold")


def _decode_plain(hint: Any, data: object, where: str) -> Any:
    called, accepted = _PLAIN[hint]
    if not isinstance(data, accepted) or (isinstance(data, bool) and hint is not bool):
        _refuse(where, data, called)
    if isinstance(data, str) and not data.isascii():
        _check_unicode(data, where)
    if hint is int and not -_INT64 <= cast(int, data) < _INT64:
        _refuse(where, data, "a whole number of 64 bits")
    if hint is not float:
        return data
    if not abs(cast(float, data)) <= sys.float_info.max:  # JSON may hold 1e999, and whole numbers of any length
        _refuse(where, data, called)
    return float(cast(float, data))


def _refuse(where: str, value: object, expected: str) -> NoReturn:
    raise FormatError(f"{where or 'the document'} is {reprlib.repr(value)}, not {expected}")


def _refuse_constant(name: str) -> NoReturn:
    raise FormatError(f"it holds {name}, which is not a number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise FormatError(f"the field {repeated!r} is there twice")
    return data


def _under(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name
