"""Strict JSON for frozen dataclasses: pydantic refuses what does not fit the declared types, with its path.

Every field is stored, also a field with a default, unless it is declared by `stored_unless`; a name without a
field is refused, and no value is converted into another type. A field of older files, which nothing reads, is an
`InitVar`: it is accepted and not stored. A type may state its stored form by pydantic's
`__get_pydantic_core_schema__`, see `Process` and `NotFinite`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpugate.errors import GpugateError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, SchemaSerializer, SchemaValidator

T = TypeVar("T")
# pydantic's strict types take only their own instances; in JSON a dataclass is an object, a tuple a list, a time text.
_STORED_AS_ANOTHER_TYPE = ("dataclass", "tuple", "enum", "datetime")
_NAMES = {"missing": "has no field", "unexpected_keyword_argument": "has an unknown field"}
_IN_JSON = {"dataclass_type": "an object", "dict_type": "an object", "tuple_type": "a list", "list_type": "a list"}


class FormatError(GpugateError, ValueError):
    """A value does not fit the format; the message names its path, such as `cases.tf32/cuda.record.processes[2]`."""


def to_json(value: object) -> Any:
    """Converts a dataclass for `json.dumps`. Raises FormatError for a value that `from_json` would refuse."""
    validator, serializer = _schema(cast(Hashable, type(value)))
    data = serializer.to_python((value,), warnings="none")
    _validate(validator, data)
    return data[0]


def from_json(cls: type[T], data: object) -> T:
    """Converts the result of `to_json` back to a `cls`. Raises FormatError, with the path, for other data."""
    return cast(T, _validate(_schema(cast(Hashable, cls))[0], [data]))


@cache
def _schema(cls: Any) -> tuple[SchemaValidator, SchemaSerializer]:
    from pydantic_core import SchemaSerializer, SchemaValidator

    schema = core_schema(cls)
    return SchemaValidator(schema), SchemaSerializer(schema)


def core_schema(cls: Any) -> Any:
    """Returns pydantic's schema of the stored form of `tuple[cls]`."""
    from pydantic import ConfigDict, TypeAdapter

    # Any limit of length refuses half a surrogate pair, which JSON can contain and no file or terminal takes.
    config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, str_min_length=0)
    # A configuration applies within the adapted type only.
    return _stored_schema(TypeAdapter(tuple[cls], config=config).core_schema)


def _stored_schema(schema: Any) -> Any:
    """Returns a schema in which no stored field may be missing and dataclasses, tuples and enums are read from JSON."""
    if isinstance(schema, list):
        return [_stored_schema(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: _stored_schema(entry) for name, entry in schema.items()}
    is_field = schema.get("type") == "dataclass-field"
    is_stored = is_field and "serialization_exclude_if" not in schema and not schema.get("init_only")
    if is_stored and schema["schema"]["type"] == "default":
        schema["schema"] = schema["schema"]["schema"]
    return {**schema, "strict": False} if schema.get("type") in _STORED_AS_ANOTHER_TYPE else schema


def _validate(validator: SchemaValidator, data: Sequence[object]) -> Any:
    from pydantic_core import ValidationError

    try:
        return validator.validate_python(data)[0]
    except ValidationError as error:
        raise FormatError(_sentence(error.errors(include_url=False)[0])) from None


def _sentence(error: ErrorDetails) -> str:
    kind, path, found = error["type"], list(error["loc"][1:]), reprlib.repr(error["input"])
    if kind in _NAMES:
        name = path.pop()
        return f"{_join_path(path)} {_NAMES[kind]} {name!r}"
    if kind == "value_error":
        return f"{_join_path(path)}: {error['ctx']['error']}"
    expected = _IN_JSON.get(kind, error["msg"].removeprefix("Input should be "))
    for bound in {"ge", "le", "lt"} & error.get("ctx", {}).keys():  # pydantic writes 1e-30 with 30 zeros
        expected = f"{expected.rpartition(' ')[0]} {error['ctx'][bound]:g}"
    if path and path[-1] == "[key]":
        return f"a name in {_join_path(path[:-2])} is {found}, not {expected}"
    return f"{_join_path(path)} is {found}, not {expected}"


def _join_path(path: Sequence[str | int]) -> str:
    """Writes a path such as `cases.tf32/cuda.record.processes[2]`; the path of nothing is the document."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path if part != ""]
    return "".join(parts).removeprefix(".") or "the document"
