"""One JSON codec for every value on the wire and in the database."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from moorage.core.invalid import Invalid

T = TypeVar("T")


@cache
def _cached(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast(Any, kind))


def adapter(kind: Any) -> TypeAdapter[Any]:
    """The (cached) pydantic adapter of a type."""
    return _cached(kind)


def dumps(value: object, kind: Any = None) -> bytes:
    """JSON of a value; decimals are strings, times are ISO 8601. `kind` where it is not the value's own class."""
    return adapter(kind or type(value)).dump_json(value)


def loads(kind: type[T], text: bytes | str) -> T:
    """The value; unknown fields are ignored, so that a newer minor version can be read.

    Raises:
        Invalid: naming the first field that is wrong, its value and the fix.
    """
    try:
        return cast(T, adapter(kind).validate_json(text))
    except ValidationError as error:
        raise invalid(error) from error


def plain(value: object, kind: Any = None) -> Any:
    """The value as JSON-able dicts, lists and scalars."""
    return adapter(kind or type(value)).dump_python(value, mode="json")


def build(kind: type[T], value: object) -> T:
    """The value of `kind` from plain dicts and lists that a person wrote (for example TOML).

    Raises:
        Invalid: like `loads`; also for a key that `kind` does not have, at any depth: it is a slip of the pen.
    """
    refuse_unknown(kind, value)
    try:
        return cast(T, adapter(kind).validate_python(value))
    except ValidationError as error:
        raise invalid(error) from error


def refuse_unknown(kind: Any, value: object, where: str = "") -> None:
    """Raise `Invalid` for the first key in `value` that the dataclass `kind`, or one inside it, does not have."""
    if isinstance(value, Mapping) and is_dataclass(kind):
        hints = get_type_hints(kind)
        for key, inner in value.items():
            if key not in hints:
                raise Invalid(f"{where}{key}", inner, _no_such(str(key), hints))
            refuse_unknown(hints[key], inner, f"{where}{key}.")
    elif isinstance(value, Sequence) and not isinstance(value, str) and get_origin(kind) is tuple:
        for index, inner in enumerate(value):
            refuse_unknown(get_args(kind)[0], inner, f"{where}{index}.")


def _no_such(key: str, known: Iterable[str]) -> str:
    near = get_close_matches(key, known, 1)
    return f"no such key; did you mean {near[0]}?" if near else f"no such key; known: {', '.join(sorted(known))}"


def invalid(error: ValidationError) -> Invalid:
    """Our sentence for pydantic's first complaint; a complaint of our own passes as it is."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, Invalid):
        return cause
    where = ".".join(str(part) for part in first["loc"]) or "body"
    return Invalid(where, first.get("input"), first["msg"].replace("valid tuple", "list"))
